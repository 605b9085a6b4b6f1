"""Writing entries into the books: plain statements inside one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from llmrouter.ledger.entries import ATTEMPT_COLUMNS, ENTRY_COLUMNS, attempt_rows, entry_row
from llmrouter.ledger.transaction import transaction
from llmrouter.types import LedgerEntry

__all__ = ["append", "booked", "insert"]


def append(connection: sqlite3.Connection, entries: Sequence[LedgerEntry]) -> None:
    """Append entries with their attempts in one transaction: all of them, or none and an exception.

    An entry whose `request_id` is in the books already, or came earlier in `entries`, changes nothing. Reservations
    are left as they are.
    """
    with transaction(connection):
        first = {entry.request_id: entry for entry in reversed(entries)}
        for request_id in booked(connection, first):
            del first[request_id]
        insert(connection, list(reversed(first.values())))


def booked(connection: sqlite3.Connection, request_ids: Iterable[str]) -> set[str]:
    """Which of these are in the books."""
    ids = orjson.dumps(list(request_ids)).decode()
    known = "SELECT request_id FROM ledger WHERE request_id IN (SELECT value FROM json_each(?))"
    return {request_id for (request_id,) in connection.execute(known, (ids,))}


def insert(connection: sqlite3.Connection, entries: Sequence[LedgerEntry]) -> None:
    """Insert entries that are not in the books yet; the caller has begun a transaction and ends it."""
    # Not INSERT OR IGNORE of any entry: that would also swallow one that breaks a NOT NULL or CHECK, and a repeat with
    # other attempts would add those.
    rows: list[tuple[Any, ...]] = []
    attempts: list[tuple[Any, ...]] = []
    for number, entry in enumerate(entries, start=_last_number(connection) + 1):
        rows.append(entry_row(number, entry))
        attempts += attempt_rows(number, entry.attempts)
    connection.executemany(_INSERT_ENTRY, rows)
    connection.executemany(_INSERT_ATTEMPT, attempts)


def _insert(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - ours


_INSERT_ENTRY = _insert("ledger", ENTRY_COLUMNS)
_INSERT_ATTEMPT = _insert("attempts", ATTEMPT_COLUMNS)


def _last_number(connection: sqlite3.Connection) -> int:
    # Counted by hand because the attempts need the number; nobody else can insert while our transaction is open.
    (number,) = connection.execute("SELECT coalesce(max(id), 0) FROM ledger").fetchone()
    return int(number)
