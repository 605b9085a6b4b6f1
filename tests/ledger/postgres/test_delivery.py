"""Batches from the spool to the server: each entry there once, whole, whatever dies or is refused meanwhile."""

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmrouter.database import open_database, writing
from llmrouter.errors import StoreUnavailable
from llmrouter.ledger.entries import ENTRY_COLUMNS
from llmrouter.ledger.postgres.delivery import Delivery
from llmrouter.ledger.postgres.partitions import partition_days
from llmrouter.ledger.postgres.spool import ENTRIES, Spool
from llmrouter.ledger.prices import keep_prices
from llmrouter.types import Price
from tests.ledger.books import NOON, attempt, entry
from tests.ledger.postgres.server import asked, fill, new_file, shipped, waiting_in


@pytest.fixture
def deliver(server):
    """Makes deliveries that are closed in the end."""
    made = []

    def make(path, **options):
        made.append(Delivery(options.pop("spool", None) or Spool(path), server, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def ship_all(delivery: Delivery) -> None:
    while delivery.ship_once():
        pass


def test_a_batch_is_there_with_its_attempts_and_its_last_entry_stays_here(server, path, deliver):
    fill(path, [entry(f"r{number}", attempts=(attempt(0), attempt(1))) for number in range(5)])
    delivery = deliver(path)
    assert delivery.ship_once() == 5
    assert delivery.ship_once() == 0
    assert shipped(server) == ["r0", "r1", "r2", "r3", "r4"]
    assert asked(server, "SELECT request_id, count(*) FROM attempts GROUP BY 1 ORDER BY 1")[0] == ("r0", 2)
    assert waiting_in(path) == ["r4"]
    assert delivery.shipped == 5


def test_every_column_arrives_as_it_was_booked(server, path, deliver):
    booked = entry(
        "r1",
        ts=datetime(2026, 12, 1, 23, 59, 59, 999999, tzinfo=UTC),
        cost_usd=Decimal("0.000000000001"),
        reference_cost_usd=None,
        tags={"team": 'quo"te', "tab": "a\tb\\n"},
        user_id="ünï\tcode\n\\N",
        degraded_to="economy",
        latency_class="batch",
    )
    fill(path, [booked])
    deliver(path).ship_once()
    with closing(open_database(path)) as connection:
        here = connection.execute(f"SELECT {', '.join(ENTRIES)} FROM ledger").fetchone()
    there = asked(server, f"SELECT {', '.join(ENTRIES)} FROM ledger")[0]
    by_name = dict(zip(ENTRIES, there, strict=True))
    assert by_name.pop("ts") == booked.ts
    assert by_name.pop("tags") == booked.tags
    assert by_name == {name: value for name, value in zip(ENTRIES, here, strict=True) if name in by_name}


def test_the_server_has_every_column_of_the_file(server):
    there = {
        name
        for (name,) in asked(server, "SELECT column_name FROM information_schema.columns WHERE table_name = 'ledger'")
    }
    assert there == set(ENTRY_COLUMNS) - {"id"}


def test_older_entries_go_first_in_bounded_batches(server, path, deliver):
    fill(path, [entry(f"r{number}") for number in range(5)])
    delivery = deliver(path, most=2)
    assert [delivery.ship_once() for _ in range(2)] == [2, 2]
    assert shipped(server) == ["r0", "r1", "r2", "r3"]
    assert waiting_in(path) == ["r3", "r4"]


def test_an_entry_booked_later_has_a_number_of_its_own(server, path, deliver):
    """Numbers must not start anew when the spool is empty: a mark on the server refers to them."""
    delivery = deliver(path)
    for number in range(4):
        fill(path, [entry(f"r{number}")])
        ship_all(delivery)
        assert waiting_in(path) == [f"r{number}"]
    assert shipped(server) == ["r0", "r1", "r2", "r3"]


def test_g047_what_was_shipped_before_is_not_doubled(server, path, deliver):
    """As after a death between the server's commit and the deletion here."""

    class Forgetful(Spool):
        def forget(self, entry_ids):
            raise StoreUnavailable("the disk is gone")

    booked = [entry(f"r{number}", attempts=(attempt(0), attempt(1))) for number in range(7)]
    fill(path, booked)
    dying = deliver(path, spool=Forgetful(path), most=4)
    with pytest.raises(StoreUnavailable):
        dying.ship_once()
    assert shipped(server) == ["r0", "r1", "r2", "r3"]
    assert len(waiting_in(path)) == 7
    after = deliver(path, most=3)
    ship_all(after)
    assert asked(server, "SELECT count(*), sum(cost_picousd) FROM ledger") == [(7, 7 * 450_000_000)]
    assert asked(server, "SELECT count(*) FROM attempts") == [(14,)]
    assert waiting_in(path) == ["r6"]
    assert after.shipped == 3


_DIES = """
    import os, signal, sys
    from pathlib import Path
    from llmrouter.ledger.postgres.delivery import Delivery
    from llmrouter.ledger.postgres.spool import Spool
    from llmrouter.postgres import Postgres

    class Deadly(Spool):
        left = int(sys.argv[3])
        def forget(self, entry_ids):
            Deadly.left -= 1
            if Deadly.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            super().forget(entry_ids)

    delivery = Delivery(Deadly(Path(sys.argv[1])), Postgres(sys.argv[2]), most=10)
    while delivery.ship_once():
        pass
"""


@pytest.mark.process
def test_kill_9_between_the_servers_commit_and_the_deletion_loses_and_doubles_nothing(server, postgres_url, path):
    fill(path, [entry(f"r{number:03}") for number in range(95)])
    deaths = 0
    for survives in (0, 3, 0, 2, 100):
        program = [sys.executable, "-c", textwrap.dedent(_DIES), str(path), postgres_url, str(survives)]
        died = subprocess.run(program, timeout=60, check=False, env={**os.environ, "PYTHONWARNINGS": "ignore"})
        deaths += died.returncode == -signal.SIGKILL
    assert deaths == 4
    assert shipped(server) == [f"r{number:03}" for number in range(95)]
    assert asked(server, "SELECT count(*) FROM attempts") == [(95,)]
    assert waiting_in(path) == ["r094"]


def test_two_spools_ship_into_one_database(server, tmp_path, deliver):
    """Their entries carry the same numbers."""
    paths = [new_file(tmp_path / name) for name in ("a.db", "b.db")]
    for which, each in enumerate(paths):
        fill(each, [entry(f"{which}-{number}") for number in range(5)])
    deliveries = [deliver(each, most=2) for each in paths]
    for _ in range(4):
        for each in deliveries:
            each.ship_once()
    assert len(shipped(server)) == 10
    assert asked(server, "SELECT count(*), count(DISTINCT name), min(last_id) FROM spools") == [(2, 2, 5)]


def test_a_nul_that_text_cannot_hold_is_replaced(server, path, deliver):
    """A client chooses such texts; they must not fill the spool."""
    fill(path, [entry("r1"), entry("r2", user_id="a\0b", tags={"x\0": "\0", "y": "\\u0000"}), entry("r3")])
    delivery = deliver(path)
    ship_all(delivery)
    found = asked(server, "SELECT user_id, tags FROM ledger WHERE request_id = 'r2'")
    assert found == [("a\ufffdb", {"x\ufffd": "\ufffd", "y": "\\u0000"})]
    assert shipped(server) == ["r1", "r2", "r3"]
    assert delivery.refused == 0


def test_a_row_that_the_server_will_not_hold_is_set_aside_and_the_others_go_on(server, path, deliver, caplog):
    with server.transaction("BEGIN") as connection:
        connection.execute("ALTER TABLE ledger ADD CONSTRAINT ours CHECK (tenant_id <> 'poison')")
    fill(
        path, [entry(f"r{number:02}", tenant_id="poison" if number in (0, 13, 29) else "acme") for number in range(30)]
    )
    delivery = deliver(path, most=20)
    ship_all(delivery)
    assert len(shipped(server)) == 27
    assert waiting_in(path) == ["r00", "r13", "r28", "r29"]
    assert delivery.refused == 3
    assert "r13" in caplog.text
    reasons = asked(server, "SELECT entry_id, reason FROM spool_refused ORDER BY entry_id")
    assert [entry_id for entry_id, _ in reasons] == [1, 14, 30]
    assert "ours" in reasons[0][1]


def test_what_was_set_aside_is_not_tried_again_until_somebody_says_so(server, path, deliver):
    with server.transaction("BEGIN") as connection:
        connection.execute("ALTER TABLE ledger ADD CONSTRAINT ours CHECK (tenant_id <> 'poison')")
    fill(path, [entry("r1"), entry("r2", tenant_id="poison"), entry("r3")])
    ship_all(deliver(path))
    with server.transaction("BEGIN") as connection:
        connection.execute("ALTER TABLE ledger DROP CONSTRAINT ours")
    again = deliver(path)
    fill(path, [entry("r4")])
    ship_all(again)
    assert shipped(server) == ["r1", "r3", "r4"]
    assert waiting_in(path) == ["r2", "r4"]
    with server.transaction("BEGIN") as connection:
        connection.execute("DELETE FROM spool_refused")
    ship_all(deliver(path))
    assert shipped(server) == ["r1", "r2", "r3", "r4"]
    assert waiting_in(path) == ["r4"]


def test_a_restored_file_is_shipped_from_its_beginning(server, path, deliver, tmp_path):
    """Its numbers have been used for other entries meanwhile."""
    fill(path, [entry("r1"), entry("r2")])
    copy = tmp_path / "copy.db"
    Spool(path).name()
    with closing(open_database(path)) as connection:
        connection.execute(f"VACUUM INTO '{copy}'")
    fill(path, [entry(f"late{number}") for number in range(5)])
    ship_all(deliver(path))
    fill(copy, [entry("r3"), entry("r4")])
    ship_all(deliver(copy))
    assert shipped(server) == ["late0", "late1", "late2", "late3", "late4", "r1", "r2", "r3", "r4"]
    assert waiting_in(copy) == ["r4"]


def test_a_file_that_is_pruned_while_it_is_shipped_goes_on(server, path, deliver):
    delivery = deliver(path)
    fill(path, [entry("r1"), entry("r2")])
    ship_all(delivery)
    with writing(path) as connection:
        connection.execute("DELETE FROM ledger")
    fill(path, [entry("r3")])
    ship_all(delivery)
    assert shipped(server) == ["r1", "r2", "r3"]


def test_a_day_gets_its_partition_when_a_batch_needs_it(server, path, deliver):
    days = [datetime(2024, 2, 29, tzinfo=UTC), NOON, datetime(2031, 1, 1, tzinfo=UTC) - timedelta(microseconds=1)]
    fill(path, [entry(f"r{number}", ts=day) for number, day in enumerate(days)])
    deliver(path, now=lambda: NOON).ship_once()
    assert len(shipped(server)) == 3
    found = partition_days(server)
    assert {day.date() for day in days} <= set(found)
    assert {NOON.date() + timedelta(days=ahead) for ahead in range(8)} <= set(found)


def test_a_partition_that_was_dropped_meanwhile_is_made_again(server, path, deliver):
    delivery = deliver(path)
    fill(path, [entry("r1")])
    ship_all(delivery)
    with server.transaction("BEGIN") as connection:
        connection.execute("DROP TABLE ledger_20261201, attempts_20261201")
    fill(path, [entry("r2")])
    ship_all(delivery)
    assert shipped(server) == ["r2"]
    assert delivery.refused == 0


def test_prices_follow_their_entries(server, path, deliver):
    keep_prices(path, [Price("config:small#12345678", Decimal(1), output_usd_per_mtok=Decimal(2))])
    fill(path, [entry("r1")])
    delivery = deliver(path)
    ship_all(delivery)
    keep_prices(path, [Price("later", Decimal(3))])
    fill(path, [entry("r2", attempts=(attempt(price_id="later"),))])
    ship_all(delivery)
    assert asked(server, "SELECT price_id FROM prices ORDER BY 1") == [("config:small#12345678",), ("later",)]


def test_sums_are_exact_beyond_64_bits(server, path, deliver):
    most = Decimal(2**63 - 1).scaleb(-12)
    fill(path, [entry(f"r{number}", cost_usd=most, attempts=()) for number in range(3)])
    ship_all(deliver(path))
    assert asked(server, "SELECT sum(cost_picousd) FROM ledger") == [(3 * (2**63 - 1),)]


def test_entries_on_the_server_cannot_be_changed(server, path, deliver):
    fill(path, [entry("r1")])
    ship_all(deliver(path))
    for table in ("ledger", "attempts"):
        with pytest.raises(Exception, match="used wrongly"), server.transaction("BEGIN") as connection:
            connection.execute(f"UPDATE {table} SET cost_picousd = 0")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(counts=st.lists(st.integers(0, 12), max_size=4), most=st.integers(1, 5), dies_at=st.sets(st.integers(0, 8)))
def test_whatever_dies_when_the_server_ends_with_each_entry_once(server, tmp_path_factory, counts, most, dies_at):
    path = new_file(tmp_path_factory.mktemp("spool") / "llmrouter.db")
    calls = 0

    class Dying(Spool):
        def forget(self, entry_ids):
            nonlocal calls
            calls += 1
            if calls in dies_at:
                raise StoreUnavailable("killed")
            super().forget(entry_ids)

    name = Spool(path).name()
    booked = []
    for round_, count in enumerate(counts):
        new = [entry(f"{name}-{round_}-{number}") for number in range(count)]
        booked += [each.request_id for each in new]
        fill(path, new)
        delivery = Delivery(Dying(path), server, most=most)
        try:
            ship_all(delivery)
        except StoreUnavailable:
            pass
        finally:
            delivery.close()
    last = Delivery(Spool(path), server, most=most)
    ship_all(last)
    last.close()
    found = asked(server, f"SELECT request_id FROM ledger WHERE request_id LIKE '{name}-%'")
    assert sorted(request_id for (request_id,) in found) == sorted(booked)
    assert len(waiting_in(path)) == min(len(booked), 1)
