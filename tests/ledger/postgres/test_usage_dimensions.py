"""Usage asked of a spool and its server: the answers of one file, however much of it is shipped."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import get_args

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmrouter.database import reading
from llmrouter.ledger.postgres.delivery import Delivery
from llmrouter.ledger.postgres.spool import Spool
from llmrouter.ledger.usage import DIMENSIONS, NUMBERS, Measure, Question, ask
from llmrouter.ledger.usage_books import usage_sources
from llmrouter.ledger.usage_sql import SQLITE, SqlSource
from tests.ledger.books import NOON, entry
from tests.ledger.postgres.server import fill, new_file

QUESTIONS = [
    *(Question(measure, by=(name,)) for measure in get_args(Measure) for name in (*DIMENSIONS[measure], "tag:team")),
    *(Question(measure, by=("tenant", "day", "tag:team")) for measure in get_args(Measure)),
    *(Question(measure) for measure in get_args(Measure)),
    Question(since=NOON.date() + timedelta(days=1)),
    Question("attempts", until=NOON.date() + timedelta(days=1), tenants=("acme", "other")),
    Question(since=NOON.date() + timedelta(days=9)),
    Question(tenants=("it's nobody ? %",)),
]


def test_usage_is_that_of_one_file(both_ways, server):
    alone, path = both_ways
    with reading(alone) as connection, usage_sources(path, server) as sources:
        for question in QUESTIONS:
            assert ask(sources, question) == ask([SqlSource(connection, SQLITE)], question), question


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
    with usage_sources(path, server) as sources:
        report = ask(sources, Question(by=("tenant",), tenants=(mark,)))
    assert report.total()[NUMBERS["calls"].index("cost_usd")] == sum(costs)
