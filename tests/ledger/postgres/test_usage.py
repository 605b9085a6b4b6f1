"""Usage of a spool, its server and an archive from the time before: as exact as of one file."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from llmrouter.errors import UsageError
from llmrouter.ledger.archive import Archive
from llmrouter.ledger.archiving import archive_entries
from llmrouter.ledger.postgres.delivery import Delivery
from llmrouter.ledger.postgres.spool import Spool
from llmrouter.ledger.retention import Gone, drop_before, would_go
from llmrouter.ledger.usage import DIMENSIONS, Question, ask
from llmrouter.ledger.usage_books import usage_sources
from llmrouter.types import LedgerEntry
from tests.ledger.books import NOON, attempt, entry
from tests.ledger.postgres.server import fill, new_file
from tests.ledger.usage_oracle import expected, found

TODAY = NOON.date()
MADE = [
    entry(
        f"r{number}",
        ts=NOON - timedelta(days=number % 4, hours=number, microseconds=number),
        tenant_id=("acme", "it's", "")[number % 3],
        user_id=(None, "ann")[number % 2],
        latency_class="batch" if number % 5 else "interactive",
        degraded_to="cheap" if number % 4 == 1 else None,
        model_id=None if number % 7 == 0 else "small",
        error_code="unknown" if number % 7 == 0 else None,
        reference_cost_usd=None if number % 3 else Decimal("9000000.000000000001"),
        tags={} if number % 2 else {"team": "search", 'a/b"c': "ü"},
        attempts=(attempt(0, outcome="timeout"), attempt(1, model_id="large", price_id="p2")),
    )
    for number in range(24)
]
QUESTIONS = [
    *(
        Question(measure, (name,))
        for measure, names in DIMENSIONS.items()
        for name in (*names, "tag:team", 'tag:a/b"c')
    ),
    *(Question(measure, ("tenant", "day", "tag:team", "model")) for measure in DIMENSIONS),
    Question("calls", (), TODAY - timedelta(days=2), TODAY),
    Question("attempts", ("model",), TODAY - timedelta(days=1), None, ("acme", "it's")),
    Question("calls", ("hour", "tier"), None, TODAY),
    Question("calls", (), date(2030, 1, 1)),
]


def ship(path, server, batches: int) -> None:
    delivery = Delivery(Spool(path), server, most=5)
    for _ in range(batches):
        delivery.ship_once()
    delivery.close()


def holds(path, server, made: list[LedgerEntry]) -> None:
    with usage_sources(path, server) as sources:
        for question in QUESTIONS:
            assert found(ask(sources, question).groups) == expected(made, question), question


@pytest.mark.parametrize("batches", [0, 2, 9])
def test_spool_and_server_answer_together(server, path, batches):
    fill(path, MADE)
    ship(path, server, batches)
    holds(path, server, MADE)


def test_two_spools_count_once_they_are_shipped(server, path, tmp_path):
    other = new_file(tmp_path / "other.db")
    fill(path, MADE[:12])
    fill(other, MADE[12:])
    ship(other, server, 9)
    ship(path, server, 1)
    holds(path, server, MADE)


def test_days_archived_before_there_was_a_server_count_on(server, path):
    fill(path, MADE)
    list(archive_entries(path, TODAY - timedelta(days=1), pause=lambda _: None))
    ship(path, server, 2)
    assert len(Archive.of(path).days()) > 1
    holds(path, server, MADE)


def test_days_of_the_server_are_dropped_whole_and_what_waits_stays(server, path):
    old = [replace(each, request_id=f"old-{each.request_id}", ts=each.ts - timedelta(days=30)) for each in MADE]
    fill(path, old)
    list(archive_entries(path, TODAY - timedelta(days=33), pause=lambda _: None))
    fill(path, MADE)
    ship(path, server, 20)
    waiting = entry("waiting", ts=datetime(2026, 1, 1, tzinfo=UTC))
    fill(path, [waiting])
    before = TODAY - timedelta(days=9)
    would = would_go(path, server, before)
    assert would.archived_days
    assert would.server_days
    assert drop_before(path, server, before) == would
    holds(path, server, [*MADE, waiting])
    assert drop_before(path, server, before) == Gone(before)


def test_a_question_that_takes_too_long_is_given_up_on_the_server_too(server, path):
    fill(path, MADE)
    ship(path, server, 9)

    def wait() -> None:
        with usage_sources(path, server, timeout_s=0.2) as sources:
            sources[-1].connection.execute("SELECT pg_sleep(30)", ())  # type: ignore[attr-defined]

    with pytest.raises(UsageError, match=r"longer than 0.2 s"):
        wait()
