"""Single calls and totals out of the books: exact, and adding up."""

from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrouter.database import migrate, open_database
from llmrouter.errors import StoreUnavailable, UsageError
from llmrouter.ledger.append import append
from llmrouter.ledger.queries import Grouping, ModelUsage, Totals, model_usage, recent_entries, totals
from llmrouter.pricing.money import MAX_STORED_USD
from llmrouter.types import LedgerEntry, Usage
from tests.ledger.books import NOON, attempt, entries, entry


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "llmrouter.db"
    migrate(path)
    return path


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    path = tmp_path_factory.mktemp("books") / "llmrouter.db"
    migrate(path)
    with closing(open_database(path)):  # whoever closes a database last merges its log, which takes long
        yield path


def fill(database: Path, made: Sequence[LedgerEntry]) -> None:
    with closing(open_database(database)) as connection:
        connection.execute("DELETE FROM ledger")
        append(connection, made)


def test_the_newest_entries_come_first(database):
    moments = {"old": NOON - timedelta(days=1), "new": NOON, "newest": NOON + timedelta(microseconds=1)}
    fill(database, [entry(name, ts=moments[name]) for name in ("new", "newest", "old")])
    assert [found.request_id for found in recent_entries(database, 2)] == ["newest", "new"]


def test_one_request_is_found_by_its_id(database):
    fill(database, [entry("r1"), entry("r2")])
    assert recent_entries(database, 10, "r1") == [entry("r1")]
    assert recent_entries(database, 10, "r9") == []


def test_totals_of_a_group(database):
    fill(
        database,
        [
            entry("r1", cost_usd=Decimal("0.1"), reference_cost_usd=Decimal("0.3")),
            entry("r2", cost_usd=Decimal("0.2"), reference_cost_usd=Decimal("0.3")),
            entry("r3", tenant_id="other"),
        ],
    )
    assert totals(database, by="tenant")[0] == Totals(
        key="acme",
        requests=2,
        failed=0,
        input_tokens=3000,
        cached_tokens=1800,
        output_tokens=800,
        reasoning_tokens=0,
        cost_usd=Decimal("0.3"),
        reference_cost_usd=Decimal("0.6"),
        incomparable_cost_usd=Decimal(0),
    )
    assert totals(database, by="tenant")[0].saved_usd == Decimal("0.3")


def test_failed_calls_lower_the_savings_and_calls_without_a_counterfactual_leave_them_alone(database):
    failed = {"model_id": None, "reference_model_id": None, "reference_cost_usd": None}
    embedding = {"endpoint": "embeddings", "reference_model_id": None, "reference_cost_usd": None}
    fill(
        database,
        [
            entry("answered", cost_usd=Decimal("0.1"), reference_cost_usd=Decimal("0.5")),
            entry("failed", cost_usd=Decimal("0.03"), **failed),
            entry("embedding", cost_usd=Decimal("7"), **embedding),
        ],
    )
    (everything,) = totals(database)
    assert everything.cost_usd == Decimal("7.13")
    assert everything.incomparable_cost_usd == 7
    assert everything.failed == 1
    assert everything.saved_usd == Decimal("0.37")


def test_a_loss_is_shown_as_one(database):
    fill(database, [entry(cost_usd=Decimal("0.5"), reference_cost_usd=Decimal("0.1"))])
    assert totals(database)[0].saved_usd == Decimal("-0.4")


def test_a_period_includes_its_start_and_not_its_end(database):
    later = NOON + timedelta(hours=1)
    fill(database, [entry("r1", ts=NOON), entry("r2", ts=later)])
    assert [group.requests for group in totals(database, NOON, later)] == [1]
    assert [group.requests for group in totals(database, NOON, later + timedelta(microseconds=1))] == [2]
    assert totals(database, later + timedelta(microseconds=1)) == []


def test_days_are_those_of_utc(database):
    fill(database, [entry("r1", ts=NOON), entry("r2", ts=NOON + timedelta(hours=12))])
    assert {group.key for group in totals(database, by="day")} == {"2026-12-01", "2026-12-02"}


def test_an_unknown_grouping_is_refused(database):
    with pytest.raises(UsageError, match="cannot group by 'colour'; known: all, tenant"):
        totals(database, by="colour")  # type: ignore[arg-type]


def test_totals_beyond_a_64_bit_sum_are_exact(database):
    fill(database, [entry(f"r{number}", cost_usd=MAX_STORED_USD) for number in range(3)])
    assert totals(database)[0].cost_usd == 3 * MAX_STORED_USD


@settings(deadline=None, max_examples=40)
@given(st.lists(entries, max_size=6, unique_by=lambda made: made.request_id))
def test_totals_are_the_sum_of_the_entries_however_they_are_grouped(shared, made):
    fill(shared, made)
    cost = sum((one.cost_usd for one in made), Decimal(0))
    reference = sum((one.reference_cost_usd or Decimal(0) for one in made), Decimal(0))
    for by in get_args(Grouping):
        groups = totals(shared, by=by)
        assert sum(group.requests for group in groups) == len(made)
        assert sum((group.cost_usd for group in groups), Decimal(0)) == cost
        assert sum((group.reference_cost_usd for group in groups), Decimal(0)) == reference
        assert sum(group.input_tokens for group in groups) == sum(one.usage.input_tokens for one in made)


@settings(deadline=None, max_examples=40)
@given(st.lists(entries, max_size=6, unique_by=lambda made: made.request_id))
def test_what_models_did_adds_up_to_all_attempts(shared, made):
    fill(shared, made)
    all_attempts = [one for each in made for one in each.attempts]
    found = model_usage(shared)
    assert sum(usage.attempts for usage in found) == len(all_attempts)
    assert sum((usage.cost_usd for usage in found), Decimal(0)) == sum((a.cost_usd for a in all_attempts), Decimal(0))


def test_a_models_usage_counts_its_failed_attempts(database):
    failed = attempt(0, outcome="timeout", usage=Usage(100, output_tokens=7), cost_usd=Decimal("0.1"), committed=False)
    fill(database, [entry("r1", attempts=(failed, attempt(1, model_id="large", cost_usd=Decimal("0.2"))))])
    assert model_usage(database, NOON, NOON + timedelta(seconds=1)) == [
        ModelUsage("large", 1, 0, 1, 1500, 900, 400, 0, Decimal("0.2")),
        ModelUsage("small", 1, 1, 0, 100, 0, 7, 0, Decimal("0.1")),
    ]
    assert model_usage(database, NOON + timedelta(seconds=1)) == []


def test_a_store_that_was_never_set_up_is_an_error_and_not_an_empty_report(tmp_path):
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        totals(tmp_path / "llmrouter.db")
