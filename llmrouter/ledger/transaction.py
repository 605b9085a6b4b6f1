"""One write transaction on a connection that stays open."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["patience_of", "transaction"]

_LONGEST_NAP_S = 0.001


@contextmanager
def transaction(connection: sqlite3.Connection, patience_s: float | None = None) -> Iterator[None]:
    """Take the write lock for one block: committed when the block ends, undone when it raises.

    Args:
        patience_s: how long to wait for the lock; None waits as the connection's own busy handler does, which naps for
            up to a tenth of a second and so loses against processes that ask again and again.
    """
    if patience_s is None:
        connection.execute("BEGIN IMMEDIATE")
    else:
        _begin(connection, patience_s)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def patience_of(connection: sqlite3.Connection) -> float:
    """How long a connection's own busy handler waits, in seconds."""
    (patience_ms,) = connection.execute("PRAGMA busy_timeout").fetchone()
    return float(patience_ms) / 1000


def _begin(connection: sqlite3.Connection, patience_s: float) -> None:
    give_up = time.monotonic() + patience_s
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up:
                    raise
                time.sleep(random.uniform(0.1, 1.0) * _LONGEST_NAP_S)  # noqa: S311 - two must not wake together
            else:
                return
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(patience_s * 1000)}")
