"""What every `Ledger` promises, whatever it keeps the books in. A new one is a line in `LEDGERS`."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from llmrouter.database import migrate
from llmrouter.errors import StoreUnavailable
from llmrouter.ledger.queries import recent_entries
from llmrouter.ledger.sqlite import SqliteLedger
from llmrouter.protocols import Ledger
from llmrouter.types import LedgerEntry
from tests.ledger.books import attempt, entry


@dataclass(frozen=True)
class Books:
    """One place for books: `open` may be called again after `aclose`, `read` sees what is durable."""

    open: Callable[[], Ledger]
    read: Callable[[], list[LedgerEntry]]


def sqlite(folder: Path) -> Books:
    path = folder / "llmrouter.db"
    migrate(path)
    return Books(open=lambda: SqliteLedger(path), read=lambda: recent_entries(path, 10_000))


LEDGERS: dict[str, Callable[[Path], Books]] = {
    "sqlite": sqlite,
}


@pytest.fixture(params=LEDGERS)
def books(request, tmp_path):
    return LEDGERS[request.param](tmp_path)


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
