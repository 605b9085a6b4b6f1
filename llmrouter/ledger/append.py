"""Writing entries into the books: plain statements, one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import orjson

from llmrouter.ledger.entries import ATTEMPT_COLUMNS, ENTRY_COLUMNS, attempt_rows, entry_row
from llmrouter.types import LedgerEntry

__all__ = ["append"]


def append(connection: sqlite3.Connection, entries: Sequence[LedgerEntry]) -> None:
    """Append entries with their attempts in one transaction: all of them, or none and an exception.

    An entry whose `request_id` is in the books already, or came earlier in `entries`, changes nothing.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        rows: list[tuple[Any, ...]] = []
        attempts: list[tuple[Any, ...]] = []
        free_number = _last_number(connection) + 1
        for number, entry in enumerate(_new(connection, entries), start=free_number):
            rows.append(entry_row(number, entry))
            attempts += attempt_rows(number, entry.attempts)
        connection.executemany(_INSERT_ENTRY, rows)
        connection.executemany(_INSERT_ATTEMPT, attempts)
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def _insert(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - ours


_INSERT_ENTRY = _insert("ledger", ENTRY_COLUMNS)
_INSERT_ATTEMPT = _insert("attempts", ATTEMPT_COLUMNS)


def _last_number(connection: sqlite3.Connection) -> int:
    # Counted by hand because the attempts need the number; nobody else can insert while our transaction is open.
    (number,) = connection.execute("SELECT coalesce(max(id), 0) FROM ledger").fetchone()
    return int(number)


def _new(connection: sqlite3.Connection, entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    # Not INSERT OR IGNORE: that would also swallow an entry that breaks a NOT NULL or CHECK, and a repeat with other
    # attempts would add those.
    first = {entry.request_id: entry for entry in reversed(entries)}
    ids = orjson.dumps(list(first)).decode()
    known = "SELECT request_id FROM ledger WHERE request_id IN (SELECT value FROM json_each(?))"
    for (request_id,) in connection.execute(known, (ids,)):
        del first[request_id]
    return list(reversed(first.values()))
