"""The shipping thread: who ships, what it says while the server is away, and how it ends."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmrouter.errors import StoreUnavailable
from llmrouter.ledger.postgres.ship import Shipper
from llmrouter.ledger.postgres.spool import Spool
from llmrouter.postgres import Postgres
from tests.ledger.books import attempt, entry
from tests.ledger.postgres.server import asked, fill, new_file, shipped, waiting_in
from tests.servers import PostgresServer

PATIENCE_S = 20.0


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for another thread; fails when it takes too long."""
    give_up = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < give_up, f"waited in vain until {what}"
        pause.wait(0.01)


@pytest.fixture
async def start(server, path):
    made: list[Shipper] = []

    def make(**options: Any) -> Shipper:
        given = {"spool_entries": 1000, "interval_s": 0.02, "longest_pause_s": 0.05} | options
        made.append(Shipper(given.pop("path", path), given.pop("database", server), **given))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        await each.aclose()


async def test_what_is_booked_is_shipped_a_moment_later(server, path, start):
    shipper = start()
    for request_id in ("r0", "r1", "r2"):
        fill(path, [entry(request_id)])
        until(lambda booked=request_id: booked in shipped(server), "it is shipped")  # type: ignore[misc]
    until(lambda: shipper.status.backlog == 1, "the backlog is known")
    assert shipper.status.active
    assert shipper.status.shipped == 3
    assert shipper.status.last_error is None
    assert not shipper.full


@pytest.mark.parametrize("end", [PostgresServer.stop, PostgresServer.kill])
async def test_a_server_that_goes_away_and_comes_back_is_caught_up_with(
    server, postgres_server, path, start, caplog, end
):
    shipper = start(spool_entries=20)
    fill(path, [entry("r0")])
    until(lambda: shipped(server) == ["r0"], "it is shipped")
    end(postgres_server)
    fill(path, [entry(f"r{number}") for number in range(1, 10)])
    until(lambda: shipper.status.last_error is not None, "the thread has noticed")
    assert not shipper.full
    fill(path, [entry(f"r{number}") for number in range(10, 30)])
    until(lambda: shipper.full, "so much waits that new calls are refused")
    assert len(waiting_in(path)) == 30
    postgres_server.start()
    until(lambda: len(shipped(server)) == 30, "all are shipped")
    until(lambda: not shipper.full, "there is room again")
    assert shipper.status.last_error is None
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 2
    assert "cannot be shipped" in said[0]
    assert "takes ledger entries again" in said[1]


async def test_pauses_double_up_to_their_bound_while_the_server_is_away(path, tmp_path):
    shipper = Shipper(
        path, Postgres("postgresql://nobody@127.0.0.1:1/none"), spool_entries=10, longest_pause_s=3.0, drain_s=0.0
    )
    fill(path, [entry("r1")])
    pauses = []
    for _ in range(5):
        shipper._try()
        pauses.append(shipper._pause_s)
    assert pauses == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert "cannot be used" in (shipper.status.last_error or "")
    await shipper.aclose()


async def test_of_all_that_share_a_file_one_ships_and_another_takes_over(server, path, start):
    first = start()
    fill(path, [entry("r1")])
    until(lambda: shipped(server) == ["r1"], "the first ships")
    second = start()
    assert second.ship_once() == 0
    assert (first.status.active, second.status.active) == (True, False)
    mine = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    until(lambda: asked(server, mine) == [(2,)], "only the one that ships, and this question, are connected")
    await first.aclose()
    fill(path, [entry("r2")])
    until(lambda: shipped(server) == ["r1", "r2"], "the second has taken over")
    assert second.status.active


async def test_a_server_that_dies_again_and_again_in_mid_shipping_gets_each_entry_once(
    server, postgres_server, path, start
):
    fill(path, [entry(f"r{number:04}", attempts=(attempt(0), attempt(1))) for number in range(3000)])
    shipper = start(spool_entries=10_000, batch=40)
    for _ in range(3):
        before = shipper.status.shipped
        until(lambda so_far=before: shipper.status.shipped > so_far + 80, "some are shipped")  # type: ignore[misc]
        postgres_server.kill()
        postgres_server.start()
    until(lambda: shipper.status.backlog == 1, "all are shipped")
    assert shipped(server) == [f"r{number:04}" for number in range(3000)]
    assert asked(server, "SELECT count(*) FROM attempts") == [(6000,)]


async def test_two_gateways_ship_at_once(server, tmp_path, start):
    paths = [new_file(tmp_path / name) for name in ("a.db", "b.db")]
    for each in paths:
        start(path=each, batch=7)
    for number in range(20):
        for which, each in enumerate(paths):
            fill(each, [entry(f"{which}-{number}")])
    until(lambda: len(shipped(server)) == 40, "all are there")
    assert asked(server, "SELECT count(*) FROM spools") == [(2,)]


async def test_g105_closing_ships_what_waits(server, path, start):
    shipper = start(interval_s=60.0)
    until(lambda: shipper.status.active, "it has looked once")
    fill(path, [entry(f"r{number:02}") for number in range(50)])
    await shipper.aclose()
    assert len(shipped(server)) == 50
    await shipper.aclose()


async def test_closing_after_a_restart_that_nobody_noticed_ships_what_waits(server, postgres_server, path, start):
    shipper = start(interval_s=60.0)
    fill(path, [entry("r1")])
    until(lambda: shipper.status.active, "it has looked once")
    postgres_server.kill()
    postgres_server.start()
    fill(path, [entry("r2")])
    await shipper.aclose()
    assert shipped(server) == ["r1", "r2"]


async def test_closing_while_the_server_is_away_leaves_all_for_the_next_start(server, postgres_server, path, start):
    postgres_server.stop()
    shipper = start()
    fill(path, [entry("r1"), entry("r2")])
    await shipper.aclose()
    assert waiting_in(path) == ["r1", "r2"]
    postgres_server.start()
    start()
    until(lambda: shipped(server) == ["r1", "r2"], "the next start ships them")


async def test_a_thread_outlives_what_it_does_not_expect(server, path, start):
    class Broken(Spool):
        broken = True

        def after(self, entry_id, limit):
            if self.broken:
                raise ZeroDivisionError("a bug")
            return super().after(entry_id, limit)

    spool = Broken(path)
    shipper = start(spool=spool)
    fill(path, [entry("r1")])
    until(lambda: "a bug" in (shipper.status.last_error or ""), "it has failed")
    spool.broken = False
    until(lambda: shipped(server) == ["r1"], "it goes on")


def test_a_file_that_is_missing_is_said_at_the_start(tmp_path: Path) -> None:
    shipper = Shipper(tmp_path / "none.db", Postgres("postgresql://nobody@127.0.0.1:1/none"), spool_entries=10)
    with pytest.raises(StoreUnavailable, match=r"none\.db"):
        shipper.start()
