"""All the places where the books of a configuration lie, seen at one moment: each row in exactly one of them.

That is the SQLite file, its archive if there is one, and the PostgreSQL database if entries are shipped to one.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from llmrouter.database import database_path, open_database, store_errors
from llmrouter.errors import StoreUnavailable, UsageError
from llmrouter.ledger.archive import Archive, ArchivedDay, ArchiveSource, archived_rows
from llmrouter.ledger.duck import duck
from llmrouter.ledger.usage import UsageSource
from llmrouter.ledger.usage_sql import POSTGRES, SQLITE, SqlSource

if TYPE_CHECKING:
    import duckdb

    from llmrouter.config import StoreConfig
    from llmrouter.postgres import Postgres

__all__ = ["usage_books", "usage_sources"]

_AGAIN_S = 0.05


@contextmanager
def usage_books(config: StoreConfig, *, timeout_s: float | None = None) -> Iterator[list[UsageSource]]:
    """The books that a configuration names; see `usage_sources`."""
    from llmrouter.postgres import Postgres

    server = None if config.ledger_url is None else Postgres(config.ledger_url.get_secret_value())
    with usage_sources(database_path(config.url), server, timeout_s=timeout_s) as sources:
        yield sources


@contextmanager
def usage_sources(
    path: Path, server: Postgres | None = None, *, timeout_s: float | None = None
) -> Iterator[list[UsageSource]]:
    """The places for one block.

    Meanwhile the database's write-ahead log cannot shrink, so the block should not be long.

    Args:
        timeout_s: how long the block may take.

    Raises:
        StoreUnavailable: a place cannot be read.
        UsageError: there is an archive but no DuckDB, or the time is over.
    """
    with ExitStack() as stack:
        limit = stack.enter_context(_Limit(timeout_s))
        spool, waiting, there = stack.enter_context(_database(path, server, timeout_s))
        limit.watch(spool)
        stack.callback(limit.stop)
        # After the database's moment: what was deleted there before it is in the archive by now.
        days = Archive.of(path).days()
        if not days:
            yield [SqlSource(spool, SQLITE, waiting), *there]
            return
        engine = stack.enter_context(duck(str(Archive.of(path))))
        limit.watch(engine)
        stack.callback(limit.stop)
        both = _also_archived(engine, spool, days)
        yield [SqlSource(spool, SQLITE, f"({waiting}) AND {both}"), ArchiveSource(engine, days), *there]


@contextmanager
def _database(
    path: Path, server: Postgres | None, timeout_s: float | None
) -> Iterator[tuple[sqlite3.Connection, str, list[UsageSource]]]:
    """The file, which of its rows are not on the server, and the server."""
    if server is None:
        with store_errors(path), closing(open_database(path, read_only=True)) as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT 1 FROM ledger LIMIT 1").fetchone()  # the moment is that of the first read
            yield connection, "TRUE", []
        return
    from llmrouter.ledger.postgres.both import both
    from llmrouter.postgres import Neutral

    with both(path, server, timeout_s=timeout_s or 0) as books:
        yield books.spool, books.waiting, [SqlSource(Neutral(books.server), POSTGRES)]


def _also_archived(engine: duckdb.DuckDBPyConnection, spool: sqlite3.Connection, days: list[ArchivedDay]) -> str:
    """A condition that leaves out the rows that the archive counts."""
    spool.execute("CREATE TEMP TABLE also_archived (id INTEGER PRIMARY KEY)")
    for rows in archived_rows(engine, spool, days):
        spool.executemany("INSERT INTO also_archived VALUES (?)", ((number,) for number, _ in rows))
    return "ledger.id NOT IN (SELECT id FROM also_archived)"


class _Interruptible(Protocol):
    def interrupt(self) -> None: ...


class _Limit:
    """Interrupts what it watches when the time is over, and says so instead of the error that came of it."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._watched: list[_Interruptible] = []
        self._over = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._wait, name="llmrouter-usage-limit", daemon=True)

    def __enter__(self) -> Self:
        if self._timeout_s is not None:
            self._thread.start()
        return self

    def watch(self, connection: _Interruptible) -> None:
        self._watched.append(connection)

    def stop(self) -> None:
        """Leave alone what is watched, which may be closed from now on."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.stop()
        if self._over and isinstance(error, StoreUnavailable):
            raise UsageError(
                f"this took longer than {self._timeout_s:g} s; narrow it down by tenant or time, "
                "or ask on the command line, where it may take longer"
            ) from error

    def _wait(self) -> None:
        if self._stop.wait(self._timeout_s):
            return
        self._over = True
        while not self._stop.wait(_AGAIN_S):  # an interrupt between two statements stops neither
            for connection in self._watched:
                connection.interrupt()
