"""Single calls, looked up in a spool and its server together; `ledger.usage` adds up."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrouter.database import to_instant
from llmrouter.ledger.entries import Row, entry_of
from llmrouter.ledger.postgres.both import Both, both
from llmrouter.postgres import Postgres
from llmrouter.types import LedgerEntry

if TYPE_CHECKING:
    import psycopg

__all__ = ["shared_entries"]


def shared_entries(path: Path, database: Postgres, limit: int, request_id: str | None = None) -> list[LedgerEntry]:
    """The newest entries with their attempts, newest first; with a `request_id` only that one."""
    with both(path, database) as books:
        found = _entries_here(books, limit, request_id) + _entries_there(books.server, limit, request_id)
    return sorted(found, key=lambda entry: entry.ts, reverse=True)[:limit]


def _entries_here(books: Both, limit: int, request_id: str | None) -> list[LedgerEntry]:
    condition, given = ("TRUE", ()) if request_id is None else ("request_id = ?", (request_id,))
    newest = f"SELECT * FROM ledger WHERE ({books.waiting}) AND {condition} ORDER BY ts DESC, id DESC LIMIT ?"  # noqa: S608 - own text
    with closing(books.spool.cursor()) as cursor:
        cursor.row_factory = sqlite3.Row
        rows = cursor.execute(newest, (*given, limit)).fetchall()
        wanted = "SELECT * FROM attempts WHERE entry_id = ? ORDER BY seq"
        return [entry_of(row, cursor.execute(wanted, (row["id"],)).fetchall()) for row in rows]


def _entries_there(server: psycopg.Connection[Any], limit: int, request_id: str | None) -> list[LedgerEntry]:
    from psycopg.rows import dict_row

    condition, given = ("TRUE", ()) if request_id is None else ("request_id = %s", (request_id,))
    newest = f"SELECT *, tags::text AS tags FROM ledger WHERE {condition} ORDER BY ts DESC, request_id LIMIT %s"  # noqa: S608 - own text
    wanted = "SELECT * FROM attempts WHERE request_id = ANY(%s) AND ts BETWEEN %s AND %s ORDER BY seq"
    with server.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(newest.encode(), (*given, limit)).fetchall()
        attempts: dict[str, list[Row]] = defaultdict(list)
        if rows:
            ids = [row["request_id"] for row in rows]
            for attempt in cursor.execute(wanted, (ids, rows[-1]["ts"], rows[0]["ts"])):
                attempts[attempt["request_id"]].append(attempt)
    return [entry_of({**row, "ts": to_instant(row["ts"])}, attempts[row["request_id"]]) for row in rows]
