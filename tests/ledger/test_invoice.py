"""An invoice adds up exactly to the rows, and every attempt is in exactly one of its lines."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings

from llmrouter.database import writing
from llmrouter.errors import UsageError
from llmrouter.ledger.archiving import archive_entries
from llmrouter.ledger.invoice import LINE_KEYS, invoice, invoice_as_json, parse_month
from llmrouter.ledger.usage import NUMBERS
from llmrouter.ledger.usage_books import usage_sources
from llmrouter.types import LedgerEntry
from tests.ledger.books import attempt, entry
from tests.ledger.test_usage import booked, fill

NOVEMBER = date(2026, 11, 1)


def owed(made: list[LedgerEntry], tenant: str, month: str) -> Decimal:
    attempts = [
        tried
        for each in made
        if each.tenant_id == tenant and f"{each.ts.astimezone(UTC):%Y-%m}" == month
        for tried in each.attempts
    ]
    return sum((tried.cost_usd for tried in attempts), Decimal(0))


@settings(max_examples=30, deadline=None)
@given(made=booked())
def test_the_sum_of_the_lines_is_the_sum_of_the_rows(tmp_path_factory, made):
    path = fill(tmp_path_factory.mktemp("books") / "llmrouter.db", made)
    for month in (NOVEMBER, date(2026, 12, 1)):
        with usage_sources(path) as sources:
            shown = invoice_as_json(invoice(sources, "acme", month))
        lines = sum((Decimal(line["cost_usd"]) for line in shown["lines"]), Decimal(0))
        assert lines == Decimal(shown["total"]["cost_usd"]) == owed(made, "acme", f"{month:%Y-%m}")
        attempts = [
            tried
            for each in made
            if each.tenant_id == "acme" and each.ts.astimezone(UTC).month == month.month
            for tried in each.attempts
        ]
        assert sum(line["attempts"] for line in shown["lines"]) == len(attempts)
        keys = [tuple(line[name] for name in LINE_KEYS) for line in shown["lines"]]
        assert len(set(keys)) == len(keys)


def test_a_line_is_of_one_day_tier_model_and_price(tmp_path):
    last = datetime(2026, 11, 30, 23, 59, 59, 999_999, tzinfo=UTC)
    made = [
        entry("r1", ts=last, attempts=(attempt(0, outcome="timeout", price_id="p1"), attempt(1, price_id="p2"))),
        entry("r2", ts=last - timedelta(hours=30), attempts=(attempt(0, price_id="p1"),)),
        entry("next month", ts=last + timedelta(microseconds=1)),
        entry("other tenant", ts=last, tenant_id="other"),
    ]
    path = fill(tmp_path / "l.db", made)
    list(archive_entries(path, date(2026, 11, 30), pause=lambda _: None))
    with usage_sources(path) as sources:
        made_out = invoice(sources, "acme", NOVEMBER)
    assert [group.keys for group in made_out.lines.groups] == [
        ("2026-11-29", "auto", "small", "p1"),
        ("2026-11-30", "auto", "small", "p1"),
        ("2026-11-30", "auto", "small", "p2"),
    ]
    shown = invoice_as_json(made_out)
    assert (shown["tenant"], shown["month"], shown["requests"]) == ("acme", "2026-11", 2)
    assert shown["total"]["cost_usd"] == "0.00135"
    assert shown["lines"][1]["failed"] == 1


def test_books_that_were_changed_by_hand_are_told(tmp_path):
    path = fill(tmp_path / "l.db", [entry("r1")])
    with usage_sources(path) as sources:
        assert invoice(sources, "acme", date(2026, 12, 1)).adds_up
    with writing(path) as connection:
        connection.execute("DELETE FROM attempts")
    with usage_sources(path) as sources:
        made = invoice(sources, "acme", date(2026, 12, 1))
    assert not made.adds_up
    assert invoice_as_json(made)["calls_cost_usd"] == "0.00045"
    assert made.lines.total()[NUMBERS["attempts"].index("cost_usd")] == 0


@pytest.mark.parametrize("text", ["2026", "2026-13", "2026-11-01", "November"])
def test_what_is_no_month_is_named(text):
    with pytest.raises(UsageError, match=text):
        parse_month(text, "--month")


@pytest.mark.parametrize("month", [date(1, 1, 1), date(9999, 12, 1)])
def test_the_first_and_the_last_month_that_there_are_have_invoices(tmp_path, month):
    with usage_sources(fill(tmp_path / "llmrouter.db", [entry()])) as sources:
        assert invoice(sources, "acme", month).lines.groups == ()
