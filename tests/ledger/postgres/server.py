"""A migrated database on a real server, and what its books hold."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from llmrouter.database import migrate, open_database
from llmrouter.ledger.append import append
from llmrouter.postgres import Postgres
from llmrouter.types import LedgerEntry, Usage
from tests.ledger.books import NOON, attempt, entry

__all__ = ["BOOKED", "asked", "fill", "new_file", "shipped", "waiting_in"]


BOOKED = [
    entry("r0", attempts=(attempt(0, outcome="timeout", committed=False), attempt(1, model_id="large"))),
    entry("r1", ts=NOON + timedelta(days=1), tenant_id="other", model_id=None, status=503, attempts=()),
    entry("r2", ts=NOON + timedelta(hours=1), rule_id=None, reference_cost_usd=None, usage=Usage(2**40, 1, 2, 3, 4)),
    entry("r3", ts=NOON + timedelta(hours=2), cost_usd=Decimal("9223372.036854775807"), key_id="k2", user_id="bob"),
    entry("r4", ts=NOON + timedelta(hours=3), cost_usd=Decimal("9223372.036854775807"), tags={"a": "ü\n"}),
    entry("r5", ts=NOON + timedelta(hours=4), latency_class="batch", degraded_to="economy", routing_version=8),
]
"""Calls of many kinds."""


def new_file(path: Path) -> Path:
    migrate(path)
    return path


def fill(path: Path, entries: Sequence[LedgerEntry]) -> None:
    """Book entries into a SQLite file."""
    with closing(open_database(path)) as connection:
        append(connection, entries)


def asked(database: Postgres, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    with database.reading() as connection:
        return connection.execute(query).fetchall()


def shipped(database: Postgres) -> list[str]:
    """The request ids of the books, sorted."""
    return [request_id for (request_id,) in asked(database, "SELECT request_id FROM ledger ORDER BY request_id")]


def waiting_in(path: Path) -> list[str]:
    """The request ids that a file holds, oldest first."""
    with closing(open_database(path, read_only=True)) as connection:
        connection.row_factory = sqlite3.Row
        return [row["request_id"] for row in connection.execute("SELECT request_id FROM ledger ORDER BY id")]
