"""Spool and server seen together: no entry counts twice and none is missing, whatever shipping is in the middle of."""

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmrouter.errors import StoreUnavailable
from llmrouter.ledger.postgres.both import both
from llmrouter.ledger.postgres.delivery import Delivery
from llmrouter.ledger.postgres.spending import shared_spent_nano
from llmrouter.ledger.postgres.spool import Spool
from llmrouter.postgres import Postgres
from llmrouter.tenancy.limits import key_scope, tenant_scope, tier_scope, user_scope
from tests.ledger.books import NOON, entry
from tests.ledger.postgres.server import asked, fill, new_file

NOON_MS = int(NOON.timestamp() * 1000)
NANO = 10**9


class Keeping(Spool):
    """A spool whose process dies before it deletes."""

    def forget(self, entry_ids):
        raise StoreUnavailable("killed")


def ship(path: Path, server: Postgres, *, batches: int = 100, spool: Spool | None = None, most: int = 2) -> None:
    delivery = Delivery(spool or Spool(path), server, most=most)
    try:
        for _ in range(batches):
            if not delivery.ship_once():
                break
    except StoreUnavailable:
        pass
    finally:
        delivery.close()


def everywhere(path: Path, server: Postgres) -> list[str]:
    """Request ids of all entries as both places tell, sorted."""
    with both(path, server) as books:
        here = books.spool.execute(f"SELECT request_id FROM ledger WHERE {books.waiting}").fetchall()
        there = books.server.execute("SELECT request_id FROM ledger").fetchall()
        twice = {request_id for (request_id,) in books.spool.execute("SELECT request_id FROM ledger")} & {
            request_id for (request_id,) in there
        }
        assert set(books.counted_twice()) == twice
    return sorted(request_id for (request_id,) in here + there)


def test_before_anything_was_shipped_all_is_here(server, path):
    fill(path, [entry("r1"), entry("r2")])
    assert everywhere(path, server) == ["r1", "r2"]


def test_what_is_half_shipped_counts_once(server, path):
    fill(path, [entry(f"r{number}") for number in range(7)])
    ship(path, server, batches=2)
    assert everywhere(path, server) == [f"r{number}" for number in range(7)]


def test_what_is_in_both_places_counts_once(server, path):
    fill(path, [entry(f"r{number}") for number in range(7)])
    ship(path, server, spool=Keeping(path), most=4)
    assert everywhere(path, server) == [f"r{number}" for number in range(7)]


def test_what_the_server_refuses_counts_here(server, path):
    with server.transaction("BEGIN") as connection:
        connection.execute("ALTER TABLE ledger ADD CONSTRAINT ours CHECK (tenant_id <> 'poison')")
    fill(path, [entry(f"r{number}", tenant_id="poison" if number in (1, 4) else "acme") for number in range(5)])
    ship(path, server)
    assert everywhere(path, server) == ["r0", "r1", "r2", "r3", "r4"]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("book"), st.integers(1, 5)),
            st.tuples(st.just("ship"), st.integers(1, 3)),
            st.tuples(st.just("die"), st.integers(1, 3)),
        ),
        max_size=8,
    )
)
def test_at_every_moment_each_entry_counts_once(server, tmp_path_factory, steps):
    path = new_file(tmp_path_factory.mktemp("spool") / "llmrouter.db")
    mark = Spool(path).name()
    booked: list[str] = []
    for what, number in steps:
        if what == "book":
            new = [f"{mark}-{len(booked) + each:03}" for each in range(number)]
            fill(path, [entry(request_id) for request_id in new])
            booked += new
        else:
            ship(path, server, batches=number, spool=Keeping(path) if what == "die" else None)
        assert [found for found in everywhere(path, server) if found.startswith(mark)] == booked


@pytest.mark.parametrize(
    ("scope", "cents"),
    [
        (tenant_scope("acme"), 1 + 2 + 4),
        (tenant_scope("acme", "auto"), 1 + 2),
        (tenant_scope("acme", "economy"), 4),
        (tenant_scope("a/b"), 8),
        (key_scope("k1"), 1 + 8),
        (tier_scope("economy"), 4 + 16),
        (user_scope("acme", "bob"), 2),
        (user_scope("acme", "nobody"), 0),
        (user_scope("a/b", "x" * 200), 8),
        ("group:all", 1 + 2 + 4 + 8),
        ("group:none", 0),
    ],
)
@pytest.mark.parametrize("batches", [0, 1, 100])
def test_a_budget_begins_with_what_was_spent_wherever_it_is_booked(server, path, scope, cents, batches):
    booked: list[dict[str, Any]] = [
        {"tenant_id": "acme"},
        {"tenant_id": "acme", "key_id": "k2", "user_id": "bob"},
        {"tenant_id": "acme", "key_id": "k3", "degraded_to": "economy"},
        {"tenant_id": "a/b", "user_id": "x" * 200},
        {"tenant_id": "other", "key_id": "k4", "tier": "economy"},
        {"tenant_id": "acme", "ts": NOON - timedelta(milliseconds=1)},
    ]
    costs = [Decimal(2**number) / 100 for number in range(len(booked))]
    fill(
        path,
        [
            entry(f"r{number}", cost_usd=cost, attempts=(), **{"ts": NOON, **fields})
            for number, (cost, fields) in enumerate(zip(costs, booked, strict=True))
        ],
    )
    ship(path, server, batches=batches)

    def members(group):
        return ["acme", "a/b"] if group == "all" else []

    assert shared_spent_nano(path, server, scope, NOON_MS, members) == cents * NANO // 100


def test_each_call_is_rounded_up_by_itself_as_counters_do(server, path):
    fill(path, [entry(f"r{number}", cost_usd=Decimal("0.0000000001"), attempts=()) for number in range(3)])
    assert shared_spent_nano(path, server, tenant_scope("acme"), NOON_MS) == 3
    ship(path, server)
    assert shared_spent_nano(path, server, tenant_scope("acme"), NOON_MS) == 3
    assert asked(server, "SELECT count(*) FROM ledger") == [(3,)]
