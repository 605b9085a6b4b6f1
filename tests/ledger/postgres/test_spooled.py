"""The ledger of a gateway that ships: the server is never waited for, and a full spool refuses new calls only."""

import threading
from collections.abc import Callable

import pytest

from llmrouter.errors import StoreUnavailable
from llmrouter.ledger.postgres.ship import Shipper
from llmrouter.ledger.postgres.spooled import SpooledLedger
from llmrouter.ledger.sqlite import SqliteLedger
from llmrouter.types import Admission
from tests.ledger.books import entry, reservation
from tests.ledger.postgres.server import fill, shipped, waiting_in


def until(holds: Callable[[], bool]) -> None:
    """Wait for the shipping thread."""
    pause = threading.Event()
    for _ in range(2000):
        if holds():
            return
        pause.wait(0.01)
    pytest.fail("waited in vain for the shipping thread")


async def test_a_full_spool_refuses_new_calls_and_books_those_under_way(server, postgres_server, path):
    postgres_server.stop()
    shipper = Shipper(path, server, spool_entries=20, interval_s=0.01, longest_pause_s=0.05)
    ledger = SpooledLedger(SqliteLedger(path), shipper)
    assert await ledger.open(reservation("under-way")) == Admission()
    fill(path, [entry(f"r{number}") for number in range(20)])
    until(lambda: shipper.full)
    with pytest.raises(StoreUnavailable, match=r"20 ledger entries wait .* ledger\.spool_entries") as refused:
        await ledger.open(reservation("new"))
    assert refused.value.retry_after_s is not None
    await ledger.record(entry("under-way"))
    assert len(waiting_in(path)) == 21
    postgres_server.start()
    until(lambda: not shipper.full)
    assert await ledger.open(reservation("new")) == Admission()
    await ledger.record(entry("new"))
    await ledger.aclose()
    assert len(shipped(server)) == 22


async def test_g105_closing_books_and_ships_what_was_recorded(server, path):
    ledger = SpooledLedger(SqliteLedger(path), Shipper(path, server, spool_entries=1000, interval_s=60))
    for number in range(30):
        await ledger.record(entry(f"r{number:02}"))
    await ledger.aclose()
    await ledger.aclose()
    assert len(shipped(server)) == 30
    with pytest.raises(StoreUnavailable):
        await ledger.record(entry("late"))
