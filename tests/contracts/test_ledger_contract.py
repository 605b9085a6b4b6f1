"""What every `Ledger` promises, whatever it keeps the books in. A new one is a line in `LEDGERS`."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from llmrouter.database import migrate, reading
from llmrouter.errors import StoreUnavailable
from llmrouter.ledger.postgres.queries import shared_entries
from llmrouter.ledger.postgres.ship import Shipper
from llmrouter.ledger.postgres.spooled import SpooledLedger
from llmrouter.ledger.queries import recent_entries
from llmrouter.ledger.sqlite import SqliteLedger
from llmrouter.postgres import Postgres, migrate_postgres
from llmrouter.protocols import Ledger
from llmrouter.types import Admission, LedgerEntry
from tests.ledger.books import attempt, entry, reservation


@dataclass(frozen=True)
class Books:
    """One place for books: `open` may be called again after `aclose`, `read` sees what is durable."""

    open: Callable[[], Ledger]
    read: Callable[[], list[LedgerEntry]]
    under_way: Callable[[], set[str]]
    """Request ids of the durable reservations that have not ended."""


def sqlite(folder: Path, _: pytest.FixtureRequest) -> Books:
    path = folder / "llmrouter.db"
    migrate(path)
    return Books(
        open=lambda: SqliteLedger(path),
        read=lambda: recent_entries(path, 10_000),
        under_way=lambda: under_way(path),
    )


def postgresql(folder: Path, request: pytest.FixtureRequest) -> Books:
    """A file that is shipped to a server all the time; what is in either is in the books."""
    path = folder / "llmrouter.db"
    migrate(path)
    server = Postgres(request.getfixturevalue("postgres_url"))
    migrate_postgres(server)

    def shipper() -> Shipper:
        return Shipper(path, server, spool_entries=10_000, batch=20, interval_s=0.005)

    return Books(
        open=lambda: SpooledLedger(SqliteLedger(path), shipper()),
        read=lambda: shared_entries(path, server, 10_000),
        under_way=lambda: under_way(path),
    )


def under_way(path: Path) -> set[str]:
    with reading(path) as connection:
        return {request_id for (request_id,) in connection.execute("SELECT request_id FROM reservations")}


LEDGERS: dict[str, Callable[[Path, pytest.FixtureRequest], Books]] = {
    "sqlite": sqlite,
    "postgresql": postgresql,
}


@pytest.fixture(params=LEDGERS)
def books(request, tmp_path):
    return LEDGERS[request.param](tmp_path, request)


async def test_an_entry_is_in_the_books_when_record_returns(books):
    ledger = books.open()
    recorded = entry("r1", attempts=(attempt(0, outcome="timeout", committed=False), attempt(1)))
    await ledger.record(recorded)
    assert books.read() == [recorded]
    await ledger.aclose()


async def test_an_entry_without_attempts_or_answer_is_an_entry(books):
    ledger = books.open()
    recorded = entry("r1", attempts=(), model_id=None, reference_model_id=None, reference_cost_usd=None, status=503)
    await ledger.record(recorded)
    assert books.read() == [recorded]
    await ledger.aclose()


async def test_entries_recorded_at_once_are_all_there(books):
    ledger = books.open()
    await asyncio.gather(*(ledger.record(entry(f"r{number}")) for number in range(200)))
    assert {found.request_id for found in books.read()} == {f"r{number}" for number in range(200)}
    await ledger.aclose()


async def test_g047_a_repeat_of_a_request_id_changes_nothing(books):
    ledger = books.open()
    first = entry("r1")
    second = replace(first, status=500, attempts=(attempt(0), attempt(1)))
    await ledger.record(first)
    await ledger.record(second)
    await asyncio.gather(*(ledger.record(second) for _ in range(10)))
    assert books.read() == [first]
    await ledger.aclose()


async def test_a_repeat_after_a_restart_changes_nothing(books):
    ledger = books.open()
    await ledger.record(entry("r1"))
    await ledger.aclose()
    again = books.open()
    await again.record(entry("r1", status=500))
    assert books.read() == [entry("r1")]
    await again.aclose()


async def test_two_ledgers_share_the_books(books):
    """As the workers of one machine do."""
    ledgers = [books.open(), books.open()]
    await asyncio.gather(*(ledgers[number % 2].record(entry(f"r{number // 2}")) for number in range(80)))
    assert sorted(found.request_id for found in books.read()) == sorted(f"r{number}" for number in range(40))
    await asyncio.gather(*(ledger.aclose() for ledger in ledgers))


async def test_a_cancelled_wait_does_not_take_the_entry_back(books):
    ledger = books.open()
    waiting = asyncio.create_task(ledger.record(entry("r1")))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await ledger.aclose()
    assert books.read() == [entry("r1")]


async def test_g105_closing_writes_what_was_recorded_before(books):
    ledger = books.open()
    waiting = [asyncio.create_task(ledger.record(entry(f"r{number}"))) for number in range(100)]
    await asyncio.sleep(0)
    await ledger.aclose()
    await asyncio.gather(*waiting)
    assert len(books.read()) == 100


async def test_closing_twice_is_harmless_and_a_closed_ledger_refuses(books):
    ledger = books.open()
    await ledger.aclose()
    await ledger.aclose()
    with pytest.raises(StoreUnavailable):
        await ledger.record(entry("r1"))
    assert books.read() == []


async def test_an_entry_that_cannot_be_stored_is_refused_and_the_others_are_not(books):
    ledger = books.open()
    outcomes = await asyncio.gather(
        ledger.record(entry("r1")),
        ledger.record(entry("bad", total_s=float("nan"))),
        ledger.record(entry("r2")),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), StoreUnavailable, type(None)]
    assert {found.request_id for found in books.read()} == {"r1", "r2"}
    await ledger.aclose()


async def test_a_reservation_is_durable_when_open_returns_and_ends_with_its_entry(books):
    ledger = books.open()
    assert await ledger.open(reservation("r1")) == Admission()
    assert books.under_way() == {"r1"}
    assert books.read() == []
    await ledger.record(entry("r1"))
    assert books.under_way() == set()
    assert books.read() == [entry("r1")]
    await ledger.aclose()


async def test_g047_opening_again_changes_nothing_neither_under_way_nor_booked(books):
    ledger = books.open()
    await asyncio.gather(*(ledger.open(reservation("r1")) for _ in range(10)))
    assert books.under_way() == {"r1"}
    await ledger.record(entry("r1"))
    assert await ledger.open(reservation("r1")) == Admission()
    assert books.under_way() == set()
    assert books.read() == [entry("r1")]
    await ledger.aclose()


async def test_calls_opened_and_recorded_at_once_are_all_there_and_none_is_left_open(books):
    ledger = books.open()

    async def call(request_id: str) -> None:
        await ledger.open(reservation(request_id))
        await ledger.record(entry(request_id))

    await asyncio.gather(*(call(f"r{number}") for number in range(200)))
    assert {found.request_id for found in books.read()} == {f"r{number}" for number in range(200)}
    assert books.under_way() == set()
    await ledger.aclose()


async def test_an_opening_whose_caller_was_cancelled_leaves_nothing(books):
    ledger = books.open()
    waiting = [asyncio.create_task(ledger.open(reservation(f"r{number}"))) for number in range(20)]
    for number, task in enumerate(waiting):
        for _ in range(number // 4):
            await asyncio.sleep(0)
        task.cancel()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    admitted = {f"r{number}" for number, outcome in enumerate(outcomes) if isinstance(outcome, Admission)}
    await ledger.record(entry("behind"))
    assert books.under_way() == admitted
    await ledger.aclose()


async def test_a_reservation_that_cannot_be_stored_is_refused_and_the_others_are_not(books):
    ledger = books.open()
    outcomes = await asyncio.gather(
        ledger.open(reservation("r1")),
        ledger.open(reservation("bad", tier="\ud800")),
        ledger.record(entry("r2")),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [Admission, StoreUnavailable, type(None)]
    assert books.under_way() == {"r1"}
    await ledger.aclose()


async def test_a_closed_ledger_opens_nothing(books):
    ledger = books.open()
    await ledger.aclose()
    with pytest.raises(StoreUnavailable):
        await ledger.open(reservation("r1"))
    assert books.under_way() == set()


async def test_what_is_open_when_the_ledger_closes_stays_in_the_books(books):
    ledger = books.open()
    await ledger.open(reservation("r1"))
    await ledger.aclose()
    assert books.under_way() == {"r1"}
