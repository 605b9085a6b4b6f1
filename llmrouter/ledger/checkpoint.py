"""Moves what the write-ahead log holds into the database, so that the log does not grow for ever."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing

from llmrouter.ledger.transaction import transaction

__all__ = ["LONG_LOG_BYTES", "merge"]

LONG_LOG_BYTES = 64 * 1024 * 1024
"""A log that is longer is copied to its end, though that takes the write lock for a moment."""


def merge(
    connection: sqlite3.Connection,
    connect: Callable[[], sqlite3.Connection],
    patience_s: float,
    long_bytes: int = LONG_LOG_BYTES,
) -> None:
    """Copy what the log holds into the database. Never waits for readers; for other writers only if the log is long.

    A log is begun anew by the first writer that finds all of it copied. With several processes at work that may not
    happen for hours, because each commits while another copies. So of a long log the rest is copied while nobody can
    commit: by a second connection from `connect`, because one that holds the write lock cannot do it itself.

    Raises:
        sqlite3.Error: the write lock was not free within `patience_s`, or the store fails.
    """
    _, pages, _ = _copy(connection)
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    if pages * page_bytes > long_bytes:
        with closing(connect()) as second, transaction(connection, patience_s):
            _copy(second)


def _copy(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Whether another process is at it, the pages of the log, and how many of them are copied."""
    found: tuple[int, int, int] = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return found
