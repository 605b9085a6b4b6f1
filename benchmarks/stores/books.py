"""Calls into one SQLite file: by `SqliteLedger`, and by a bare loop of the same statements.

A call is an opening (its reservation and what it takes of each limit) and a recording (its entry with one attempt, the
end of its reservation, and what it gives back). Both ways begin with a fresh file and end with it closed, so that each
pays for its checkpoint.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.stores.calls import FIVE_LIMITS, calls
from benchmarks.stores.turns import Turn
from llmrouter.buckets import amount_of, unused_of
from llmrouter.database import migrate
from llmrouter.ledger.entries import ATTEMPT_COLUMNS, ENTRY_COLUMNS, attempt_rows, entry_row
from llmrouter.ledger.reservations import body_of
from llmrouter.ledger.sqlite import Durability, SqliteLedger
from llmrouter.types import LedgerEntry, Reservation

__all__ = ["WAYS", "Load", "WrongBooks", "by_ledger", "by_loop", "check", "fresh", "pause_of_sync"]

_COMMITS = "commits a call"
_LOOP = "of it the event loop"
_WRITER = "of it the writer"


@dataclass(frozen=True, slots=True)
class Load:
    """What one process books in one turn."""

    calls: int
    at_once: int
    """The ledger: calls under way at any moment. The bare loop: operations in one transaction."""
    limited: bool = False
    """Each call counts against five limits."""
    durability: Durability = "process"


def fresh(path: Path) -> Path:
    """A migrated database in place of what was there, ready for either way."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    migrate(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("INSERT INTO owners (name, started_at) VALUES ('bare', '2026-01-01T00:00:00Z')")
    return path


def by_ledger(path: Path, load: Load, start: Callable[[], None] = lambda: None) -> Turn:
    """`SqliteLedger`, as many calls at once as the load says; `start` is called when all is prepared."""
    return uvloop.run(_by_ledger(path, load, start))


async def _by_ledger(path: Path, load: Load, start: Callable[[], None]) -> Turn:
    waiting = iter(_prepared(load))
    opened: list[_Counting] = []

    def connect(file: Path) -> sqlite3.Connection:
        opened.append(_connection(file))
        return opened[-1]

    async def work(ledger: SqliteLedger) -> None:
        for reservation, entry in waiting:
            admission = await ledger.open(reservation)
            assert admission.exceeded is None
            await ledger.record(entry)

    start()
    began, cpu_s, loop_s = time.perf_counter(), time.process_time(), time.thread_time()
    ledger = SqliteLedger(path, durability=load.durability, connect=connect)
    await asyncio.gather(*(work(ledger) for _ in range(load.at_once)))
    await ledger.aclose()
    seconds, cpu_s, loop_s = time.perf_counter() - began, time.process_time() - cpu_s, time.thread_time() - loop_s
    figures = {
        _LOOP: loop_s / load.calls * 1e6,
        _WRITER: (cpu_s - loop_s) / load.calls * 1e6,
        _COMMITS: sum(each.commits for each in opened) / load.calls,
    }
    return Turn(load.calls, seconds, cpu_s, figures)


def by_loop(path: Path, load: Load, start: Callable[[], None] = lambda: None) -> Turn:
    """Plain statements in one thread, so many operations a commit; all values are made before."""
    rows = [_rows(reservation, entry) for reservation, entry in _prepared(load)]
    start()
    began, cpu_s = time.perf_counter(), time.process_time()
    with closing(_connection(path)) as connection:
        connection.execute(f"PRAGMA synchronous = {'FULL' if load.durability == 'power' else 'NORMAL'}")
        for some in _batches(rows, load.at_once):
            connection.execute("BEGIN IMMEDIATE")
            for row in some:
                connection.execute(_RESERVE, row.reservation)
                connection.executemany(_COUNT, row.taken)
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")
            for row in some:
                number = connection.execute(_ENTER, row.entry).lastrowid
                connection.execute(_TRY, (number, *row.attempt))
                connection.execute(_END, row.reservation[:1])
                connection.executemany(_COUNT, row.given_back)
            connection.execute("COMMIT")
        commits = connection.commits
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    return Turn(load.calls, seconds, cpu_s, {_COMMITS: commits / load.calls})


WAYS: dict[str, Callable[[Path, Load, Callable[[], None]], Turn]] = {"ledger": by_ledger, "loop": by_loop}


def check(path: Path, count: int) -> None:
    """Whether the file holds every call once, nothing is left open, and every limit has what it lent.

    Raises:
        WrongBooks: it does not.
    """
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(_LEFT).fetchone()
    if found != (count, count, 0, 0):
        raise WrongBooks("entries, attempts, reservations and slots are {}, {}, {}, {}".format(*found))


class WrongBooks(Exception):
    """What is fast and wrong is not fast."""


def pause_of_sync(path: Path, rounds: int = 50) -> float:
    """Median seconds that this disk takes to sync an appended page."""
    times = []
    with path.open("wb", buffering=0) as file:
        for _ in range(rounds):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return sorted(times)[rounds // 2]


class _Counting(sqlite3.Connection):
    """Counts its commits; with durability `power` each is a sync of the disk."""

    commits = 0

    def execute(self, sql: str, values: Any = (), /) -> sqlite3.Cursor:
        if sql == "COMMIT":
            self.commits += 1
        return super().execute(sql, values)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A call as the bare loop writes it."""

    reservation: tuple[object, ...]
    taken: Sequence[tuple[object, ...]]
    entry: tuple[object, ...]
    attempt: tuple[object, ...]
    given_back: Sequence[tuple[object, ...]]


def _rows(reservation: Reservation, entry: LedgerEntry) -> _Rows:
    (attempt,) = attempt_rows(0, entry.attempts)
    limits, spent = reservation.limits, entry.spent()
    return _Rows(
        (reservation.request_id, 1, int(reservation.ts.timestamp() * 1000), body_of(reservation)),
        [(limit.scope, limit.kind, amount_of(limit, reservation)) for limit in limits],
        entry_row(0, entry)[1:],
        attempt[1:],
        [(limit.scope, limit.kind, -unused_of(limit, reservation, spent)) for limit in limits],
    )


def _prepared(load: Load) -> Sequence[tuple[Reservation, LedgerEntry]]:
    return calls(load.calls, FIVE_LIMITS if load.limited else (), datetime.now(UTC))


def _batches(rows: Sequence[_Rows], size: int) -> Iterator[Sequence[_Rows]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _connection(path: Path) -> _Counting:
    connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False, factory=_Counting)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _insert(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


_LEFT = """
    SELECT (SELECT count(*) FROM ledger), (SELECT count(*) FROM attempts), (SELECT count(*) FROM reservations),
        (SELECT coalesce(sum(value), 0) FROM limit_counters WHERE kind = 'concurrent_requests')
"""
_RESERVE = "INSERT INTO reservations VALUES (?, ?, ?, ?)"
_END = "DELETE FROM reservations WHERE request_id = ?"
_ENTER = _insert("ledger", ENTRY_COLUMNS[1:])
_TRY = _insert("attempts", ATTEMPT_COLUMNS)
_COUNT = "INSERT INTO limit_counters VALUES (?, ?, ?, 0) ON CONFLICT DO UPDATE SET value = value + excluded.value"
