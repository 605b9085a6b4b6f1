"""Days of the books: made ahead, made by several at once, dropped whole."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import date, timedelta

import pytest

from llmrouter.errors import StoreUnavailable
from llmrouter.ledger.postgres.delivery import Delivery
from llmrouter.ledger.postgres.partitions import days_ahead, drop_partitions, make_partitions, partition_days
from llmrouter.ledger.postgres.spool import Spool
from tests.ledger.books import NOON, entry
from tests.ledger.postgres.server import asked, fill, shipped

TODAY = NOON.date()


def test_today_and_the_week_after_are_made_ahead():
    assert days_ahead(date(2026, 12, 28))[-1] == date(2027, 1, 4)
    assert len(days_ahead(TODAY)) == 8


def test_several_make_the_same_days_at_once(server):
    together = threading.Barrier(4)

    def make(_: int) -> None:
        with server.errors(), closing(server.connect()) as connection:
            together.wait(10)
            make_partitions(connection, days_ahead(TODAY))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, range(4)))
    assert partition_days(server) == days_ahead(TODAY)


def test_dropping_takes_whole_days_with_their_attempts(server, path):
    fill(path, [entry(f"r{ago:02}", ts=NOON - timedelta(days=ago)) for ago in range(10)])
    delivery = Delivery(Spool(path), server, now=lambda: NOON)
    delivery.ship_once()
    delivery.close()
    dropped = drop_partitions(server, TODAY - timedelta(days=3))
    assert dropped == [TODAY - timedelta(days=ago) for ago in range(9, 3, -1)]
    assert shipped(server) == ["r00", "r01", "r02", "r03"]
    assert asked(server, "SELECT count(*) FROM attempts") == [(4,)]
    assert asked(server, "SELECT count(*) FROM usage") == [(4,)]
    assert drop_partitions(server, TODAY - timedelta(days=3)) == []


def test_a_report_that_reads_a_day_is_not_torn_and_the_drop_gives_up_in_time(server, postgres_url):
    quick = type(server)(postgres_url, timeout_s=0.2)
    with closing(server.connect()) as reader:
        make_partitions(reader, [TODAY])
        with reader.transaction():
            reader.execute("SELECT count(*) FROM ledger")
            with pytest.raises(StoreUnavailable, match="locked"):
                drop_partitions(quick, TODAY + timedelta(days=1))
    assert partition_days(server) == [TODAY]
    assert drop_partitions(quick, TODAY + timedelta(days=1)) == [TODAY]
    quick.close()


def test_a_partition_keeps_the_rules_of_the_books(server):
    with closing(server.connect()) as connection:
        make_partitions(connection, [TODAY])
    keys = "SELECT count(*) FROM pg_constraint WHERE conrelid = 'ledger_20261201'::regclass AND contype = 'p'"
    assert asked(server, keys) == [(1,)]
    triggers = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 'attempts_20261201'::regclass"
    assert asked(server, triggers) == [(1,)]


@pytest.mark.parametrize("table", ["ledger", "attempts"])
def test_a_partition_that_somebody_dropped_by_hand_is_made_again(server, path, table):
    delivery = Delivery(Spool(path), server, now=lambda: NOON)
    fill(path, [entry("r1")])
    delivery.ship_once()
    with server.errors(), closing(server.connect()) as connection:
        connection.execute(f"DROP TABLE {table}_{TODAY:%Y%m%d}".encode())
    fill(path, [entry("r2")])
    delivery.ship_once()
    delivery.close()
    assert "r2" in shipped(server)
    assert asked(server, "SELECT request_id FROM attempts WHERE request_id = 'r2'") == [("r2",)]
