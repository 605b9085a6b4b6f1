"""The same questions of a spool and its server as of one file: the same answers, wherever each entry is."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmrouter.errors import UsageError
from llmrouter.ledger.postgres.delivery import Delivery
from llmrouter.ledger.postgres.queries import shared_entries, shared_model_usage, shared_totals
from llmrouter.ledger.postgres.spool import Spool
from llmrouter.ledger.queries import Grouping, model_usage, recent_entries, totals
from llmrouter.types import Usage
from tests.ledger.books import NOON, attempt, entry
from tests.ledger.postgres.server import fill, new_file

BOOKED = [
    entry("r0", attempts=(attempt(0, outcome="timeout", committed=False), attempt(1, model_id="large"))),
    entry("r1", ts=NOON + timedelta(days=1), tenant_id="other", model_id=None, status=503, attempts=()),
    entry("r2", ts=NOON + timedelta(hours=1), rule_id=None, reference_cost_usd=None, usage=Usage(2**40, 1, 2, 3, 4)),
    entry("r3", ts=NOON + timedelta(hours=2), cost_usd=Decimal("9223372.036854775807"), key_id="k2", user_id="bob"),
    entry("r4", ts=NOON + timedelta(hours=3), cost_usd=Decimal("9223372.036854775807"), tags={"a": "ü\n"}),
    entry("r5", ts=NOON + timedelta(hours=4), latency_class="batch", degraded_to="economy", routing_version=8),
]


@pytest.fixture(params=[0, 1, 2, 6], ids=lambda batches: f"{batches} batches shipped")
def both_ways(request, server, path, tmp_path):
    """A spool of which so much is shipped, and a file with the same entries that is not."""
    alone = new_file(tmp_path / "alone.db")
    fill(alone, BOOKED)
    fill(path, BOOKED)
    delivery = Delivery(Spool(path), server, most=2)
    for _ in range(request.param):
        delivery.ship_once()
    delivery.close()
    return alone, path


def test_totals_are_those_of_one_file(both_ways, server):
    alone, path = both_ways
    for by in get_args(Grouping):
        assert shared_totals(path, server, by=by) == totals(alone, by=by)


def test_periods_are_those_of_one_file(both_ways, server):
    alone, path = both_ways
    later, much_later = NOON + timedelta(hours=1), NOON + timedelta(hours=3)
    for since, until in [(later, None), (None, much_later), (later, much_later), (NOON + timedelta(days=9), None)]:
        assert shared_totals(path, server, since, until) == totals(alone, since, until)
        assert shared_model_usage(path, server, since, until) == model_usage(alone, since, until)


def test_models_are_those_of_one_file(both_ways, server):
    alone, path = both_ways
    assert shared_model_usage(path, server) == model_usage(alone)


def test_entries_come_newest_first_wherever_they_are(both_ways, server):
    alone, path = both_ways
    assert shared_entries(path, server, 10) == recent_entries(alone, 10)
    assert shared_entries(path, server, 2) == recent_entries(alone, 2)
    for booked in BOOKED:
        assert shared_entries(path, server, 10, booked.request_id) == [booked]
    assert shared_entries(path, server, 10, "nobody's") == []


def test_an_unknown_grouping_is_refused(server, path):
    with pytest.raises(UsageError, match="cannot group by 'colour'"):
        shared_totals(path, server, by="colour")  # type: ignore[arg-type]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(costs=st.lists(st.integers(0, 2**62), max_size=12), shipped=st.integers(0, 6))
def test_totals_equal_the_sum_of_the_entries(server, tmp_path_factory, costs, shipped):
    path = new_file(tmp_path_factory.mktemp("spool") / "llmrouter.db")
    mark = Spool(path).name()
    day = datetime(2026, 1, 1, tzinfo=UTC)
    made = [Decimal(cost).scaleb(-12) for cost in costs]
    fill(path, [entry(f"{mark}{each}", ts=day, tenant_id=mark, cost_usd=cost) for each, cost in enumerate(made)])
    delivery = Delivery(Spool(path), server, most=2)
    for _ in range(shipped):
        delivery.ship_once()
    delivery.close()
    mine = [group for group in shared_totals(path, server, by="tenant") if group.key == mark]
    assert sum((group.cost_usd for group in mine), Decimal(0)) == sum(made, Decimal(0))
