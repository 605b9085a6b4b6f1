"""A store of an earlier release is brought up to date and back again, and loses nothing that the earlier one knew."""

from __future__ import annotations

import gzip
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from llmrouter.database import downgrade, migrate
from llmrouter.ledger.prices import kept_price
from llmrouter.ledger.queries import recent_entries
from llmrouter.ledger.usage import NUMBERS, Question, ask
from llmrouter.ledger.usage_books import usage_sources
from llmrouter.routing.versions import RoutingStore
from llmrouter.schema import migration_names
from llmrouter.tenancy.keys import KeyStore

FIRST = "0001_keys_rules_books"
OLD = Path(__file__).parent / "fixtures" / "store_0001.db.gz"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "llmrouter.db"
    path.write_bytes(gzip.decompress(OLD.read_bytes()))
    return path


def tables(path: Path) -> dict[str, list[Any]]:
    """The rows of every table that is ours, sorted."""
    with closing(sqlite3.connect(path)) as connection:
        names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '\\_%' ESCAPE '\\'"
        found = [name for (name,) in connection.execute(names)]
        return {
            name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr)
            for name in found
            if not name.startswith("sqlite_")
        }


def schema(path: Path) -> set[str]:
    """What the file says that it is made of, however it is written."""
    with closing(sqlite3.connect(path)) as connection:
        made = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'")
        return {re.sub(r"\s+", " ", sql).replace("( ", "(").replace(" )", ")") for (sql,) in made}


def test_an_old_store_is_what_it_says(path):
    assert {name: len(rows) for name, rows in tables(path).items()} == {
        "change_counters": 2,
        "api_keys": 2,
        "routing_versions": 2,
        "routing_rules": 3,
        "ledger": 24,
        "attempts": 29,
        "prices": 1,
    }


def test_an_old_store_is_read_by_this_release(path):
    before = tables(path)
    assert migrate(path) == migration_names()[1:]
    entries = recent_entries(path, 100)
    assert [entry.request_id for entry in reversed(entries)] == sorted(f"req-{number:04}" for number in range(24))
    assert {(entry.latency_class, entry.user_id, entry.degraded_to) for entry in entries} == {("standard", None, None)}
    assert {(entry.route, entry.score, entry.checks) for entry in entries} == {("", None, "")}
    keys = KeyStore(path, b"pepper of the old store").list()
    assert sorted((key.tenant_id, key.admin, key.revoked_at is None) for key in keys) == [
        ("acme", False, True),
        ("default", True, False),
    ]
    current = RoutingStore(path).current()
    assert (current.version, {rule.rule_id for rule in current.rules}) == (2, {"code", "rest"})
    assert kept_price(path, "config:small#12345678") is not None
    with usage_sources(path) as sources:
        calls = dict(zip(NUMBERS["calls"], ask(sources, Question()).total(), strict=True))
        attempts = dict(zip(NUMBERS["attempts"], ask(sources, Question("attempts")).total(), strict=True))
    assert calls["requests"] == 24
    assert calls["failed"] == 3
    assert attempts["attempts"] == 29
    assert calls["cost_usd"] == attempts["cost_usd"] == sum(row[15] for row in before["attempts"])


@pytest.mark.parametrize("target", migration_names()[:-1])
def test_up_and_back_down_keeps_all_that_the_earlier_release_knew(path, target):
    rows, made = tables(path), schema(path)
    migrate(path)
    later = migration_names()[migration_names().index(target) + 1 :]
    assert downgrade(path, target) == list(reversed(later))
    assert downgrade(path, FIRST) == list(reversed(migration_names()[1 : migration_names().index(target) + 1]))
    assert tables(path) == rows
    assert schema(path) == made
    assert migrate(path) == migration_names()[1:]
    assert len(recent_entries(path, 100)) == 24


def test_what_was_booked_since_stays_without_what_only_the_newer_schema_holds(path):
    migrate(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(ledger)")]
        copied = ", ".join({"id": "99", "request_id": "'new'", "latency_class": "'batch'"}.get(c, c) for c in columns)
        connection.execute(f"INSERT INTO ledger SELECT {copied} FROM ledger WHERE request_id = 'req-0001'")
    downgrade(path, FIRST)
    assert "new" in {row[1] for row in tables(path)["ledger"]}
    migrate(path)
    (entry,) = recent_entries(path, 1, "new")
    assert entry.latency_class == "standard"
