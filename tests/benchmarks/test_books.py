from __future__ import annotations

import asyncio

from benchmarks.gateway.books import Booked, Calls, faults, read_books
from llmrouter.database import migrate
from llmrouter.ledger.sqlite import SqliteLedger
from llmrouter.types import Usage
from tests.benchmarks.measurements import client
from tests.ledger.books import entry

CALLS = Calls(issued=10, good=10, output_tokens=4000, answered=10)
BOOKED = Booked(rows=10, complete=10, input_tokens=15000, output_tokens=4000, attempts=10)


def changed(booked: Booked, **changes: int) -> Booked:
    return Booked(**{name: changes.get(name, getattr(booked, name)) for name in Booked.__slots__})


def test_books_that_hold_every_call_once_are_right():
    assert faults(CALLS, BOOKED) == []


def test_a_missing_row_is_a_fault():
    assert faults(CALLS, Booked(9, 9, 13500, 3600, 9))


def test_a_row_too_many_is_a_fault():
    assert faults(CALLS, Booked(11, 11, 16500, 4400, 11))


def test_an_answer_booked_as_aborted_is_a_fault():
    assert faults(CALLS, changed(BOOKED, complete=9))


def test_wrong_tokens_are_a_fault():
    assert faults(CALLS, changed(BOOKED, output_tokens=3999))
    assert faults(CALLS, changed(BOOKED, input_tokens=14999))


def test_a_hidden_second_attempt_is_a_fault():
    assert faults(CALLS, changed(BOOKED, attempts=11))


def test_a_lost_call_may_be_booked_either_way_but_not_twice():
    calls = Calls(issued=10, good=9, lost=1, output_tokens=3600, answered=10)
    assert faults(calls, BOOKED) == []
    assert faults(calls, Booked(9, 9, 13500, 3600, 9)) == []
    assert faults(calls, Booked(11, 10, 15000, 4000, 11))


def test_a_refused_call_needs_no_row():
    calls = Calls(issued=10, good=9, refused=1, output_tokens=3600, answered=9)
    assert faults(calls, Booked(9, 9, 13500, 3600, 9)) == []
    assert faults(calls, Booked(8, 8, 12000, 3200, 8))


def test_calls_add_up_over_the_runs_of_the_client():
    calls = Calls()
    calls.add(client(issued=5, good=3, refused=1, late=1), tokens=400, answered=4)
    calls.add(client(issued=2, good=2), tokens=36, answered=2)
    assert calls == Calls(issued=7, good=5, lost=1, refused=1, output_tokens=3 * 400 + 2 * 36, answered=6)


async def test_the_totals_of_a_real_ledger_are_read(tmp_path):
    store = tmp_path / "books.db"
    migrate(store)
    ledger = SqliteLedger(store)
    usage = Usage(input_tokens=1500, output_tokens=400)
    whole = [entry(f"r{n}", status=200, aborted=False, usage=usage) for n in range(2)]
    await asyncio.gather(*map(ledger.record, [*whole, entry("left", status=499, aborted=True)]))
    await ledger.aclose()
    booked = read_books(store)
    assert (booked.rows, booked.complete, booked.input_tokens, booked.output_tokens) == (3, 2, 3000, 800)
    assert booked.attempts == sum(len(each.attempts) for each in whole) + len(entry().attempts)
