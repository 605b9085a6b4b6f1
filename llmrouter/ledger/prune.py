"""Deletes old entries from the SQLite books, a little at a time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path

from llmrouter.database import open_database, store_errors, to_instant
from llmrouter.ledger.transaction import patience_of, transaction

__all__ = ["prune"]


def prune(
    path: Path,
    before: datetime,
    *,
    batch: int = 1000,
    pause: Callable[[float], None] = time.sleep,
    connect: Callable[[Path], sqlite3.Connection] = open_database,
) -> int:
    """Delete the entries of calls before a moment with their attempts, the oldest first; returns how many went.

    Each batch is one transaction, so memory is bounded by the batch, and what was deleted stays deleted if this is
    stopped. After each it pauses for as long as that took, so that those who book calls get at least half of the
    time. The file does not shrink; its free pages take the next entries.

    Raises:
        StoreUnavailable: the store failed; what was deleted before stays deleted.
    """
    gone = 0
    with store_errors(path), closing(connect(path)) as connection:
        patience_s = patience_of(connection)
        while True:
            began = time.monotonic()
            with transaction(connection, patience_s):
                deleted = connection.execute(_DELETE, (to_instant(before), batch)).rowcount
            gone += deleted
            if deleted < batch:
                return gone
            pause(time.monotonic() - began)


_DELETE = "DELETE FROM ledger WHERE id IN (SELECT id FROM ledger WHERE ts < ? ORDER BY ts LIMIT ?)"
