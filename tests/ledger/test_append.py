"""Entries into rows and back, all or nothing, and a ledger that refuses to be rewritten."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrouter.database import migrate, open_database, reading
from llmrouter.ledger.append import append
from llmrouter.ledger.queries import recent_entries
from llmrouter.pricing.money import MAX_STORED_USD
from llmrouter.types import Usage
from tests.ledger.books import attempt, entries, entry


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "llmrouter.db"
    migrate(path)
    return path


@pytest.fixture
def connection(database):
    with closing(open_database(database)) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One database for all examples of a law; each example uses request ids of its own or empties it first."""
    path = tmp_path_factory.mktemp("books") / "llmrouter.db"
    migrate(path)
    with closing(open_database(path)):  # whoever closes a database last merges its log, which takes long
        yield path


@settings(deadline=None, max_examples=40)
@given(st.lists(entries, max_size=4, unique_by=lambda made: made.request_id))
def test_what_is_appended_reads_back_equal(shared, made):
    with closing(open_database(shared)) as connection:
        connection.execute("DELETE FROM ledger")
        append(connection, made)
    read = {found.request_id: found for found in recent_entries(shared, 10)}
    assert read == {one.request_id: one for one in made}


def test_a_finer_cost_is_rounded_to_a_pico_dollar(database, connection):
    append(connection, [entry("r1", cost_usd=Decimal("0.0000000000005000001"))])
    assert recent_entries(database, 1)[0].cost_usd == Decimal("1e-12")


def test_g047_a_repeat_in_the_same_batch_or_later_changes_nothing(database, connection):
    first = entry("r1", attempts=(attempt(0, outcome="timeout"),))
    second = entry("r1", status=500, cost_usd=Decimal(9), attempts=(attempt(0), attempt(1)))
    append(connection, [first, second, entry("r2")])
    append(connection, [second, entry("r3")])
    assert {found.request_id for found in recent_entries(database, 10)} == {"r1", "r2", "r3"}
    assert recent_entries(database, 1, "r1") == [first]


BROKEN = {
    "too dear": replace(entry(), cost_usd=MAX_STORED_USD + 1),
    "negative cost": replace(entry(), cost_usd=Decimal(-1)),
    "too many tokens": replace(entry(), usage=Usage(2**63)),
    "not a number": replace(entry(), total_s=float("nan")),
    "half a character": replace(entry(), tier="\ud800"),
    "no time zone": replace(entry(), ts=entry().ts.replace(tzinfo=None)),
    "two attempts with one number": replace(entry(), attempts=(attempt(0), attempt(0))),
    "a broken attempt": replace(entry(), attempts=(attempt(0), attempt(1, cost_usd=Decimal(-1)))),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_batch_with_an_entry_that_cannot_be_stored_writes_nothing(database, connection, what):
    with pytest.raises((sqlite3.Error, ValueError, OverflowError)):
        append(connection, [entry("r2"), BROKEN[what]])
    assert recent_entries(database, 10) == []
    append(connection, [entry("r2")])
    assert len(recent_entries(database, 10)) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger SET cost_picousd = 0",
        "UPDATE attempts SET cost_picousd = 0",
        "INSERT INTO attempts SELECT * FROM attempts",
    ],
)
def test_the_books_are_append_only(connection, statement):
    append(connection, [entry()])
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(statement)


def test_retention_may_delete_an_entry_and_takes_its_attempts_along(database, connection):
    append(connection, [entry("r1"), entry("r2")])
    with closing(sqlite3.connect(database)) as plain, plain:
        plain.execute("DELETE FROM ledger WHERE request_id = 'r2'")
    assert connection.execute("SELECT count(*) FROM attempts").fetchone() == (1,)
    append(connection, [entry("r3")])
    assert {found.request_id for found in recent_entries(database, 10)} == {"r1", "r3"}


def test_the_usage_view_shows_every_attempt_with_its_tokens_failed_ones_too(database, connection):
    failed = attempt(0, outcome="timeout", usage=Usage(100, output_tokens=7), committed=False)
    append(connection, [entry("r1", attempts=(failed, attempt(1, model_id="large")))])
    with reading(database) as reader:
        found = reader.execute(
            "SELECT tenant_id, model_id, tokens_in, tokens_out, ts FROM usage ORDER BY seq"
        ).fetchall()
    noon = "2026-12-01T12:00:00.000000Z"
    assert found == [("acme", "small", 100, 7, noon), ("acme", "large", 1500, 400, noon)]


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("SELECT * FROM ledger WHERE ts >= '2026'", "ledger_ts"),
        ("SELECT * FROM ledger WHERE tenant_id = 'acme' AND ts >= '2026'", "ledger_tenant_ts"),
        ("SELECT * FROM ledger WHERE key_id = 'k1' AND ts >= '2026'", "ledger_key_ts"),
        ("SELECT * FROM ledger WHERE tenant_id = 'acme' AND user_id = 'bob' AND ts >= '2026'", "ledger_user_ts"),
        ("SELECT * FROM ledger ORDER BY ts DESC, id DESC LIMIT 5", "ledger_ts"),
    ],
)
def test_periods_and_tenants_are_found_by_index(connection, query, index):
    plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}"))
    assert index in plan
    assert "TEMP B-TREE" not in plan
