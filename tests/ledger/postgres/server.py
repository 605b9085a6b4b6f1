"""A migrated database on a real server, and what its books hold."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from llmrouter.database import migrate, open_database
from llmrouter.ledger.append import append
from llmrouter.postgres import Postgres
from llmrouter.types import LedgerEntry

__all__ = ["asked", "fill", "new_file", "shipped", "waiting_in"]


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
