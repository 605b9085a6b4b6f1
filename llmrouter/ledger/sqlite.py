"""The books in the embedded SQLite file: one writer thread, many entries a commit.

`record` puts an entry into a queue and waits. The thread takes all that has gathered, writes it in one transaction and
tells the event loop once. While one batch commits, the next gathers; so batches grow with load, and an idle gateway
pays for one small transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmrouter.database import open_database, store_error
from llmrouter.errors import RouterError, StoreUnavailable
from llmrouter.ledger.append import append
from llmrouter.types import Admission, LedgerEntry, Reservation

__all__ = ["SqliteLedger"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """An entry on its way and whom to tell."""

    entry: LedgerEntry
    done: asyncio.Future[None]


class SqliteLedger:
    """`Ledger` over a migrated database. The writer thread starts at once and ends with `aclose`.

    Entries of a transaction that fails are refused, all others are untouched; the thread opens the database anew for
    the next ones, so it recovers by itself. Checkpoints run in the thread too, after the waiting requests were told:
    when nothing has come for `idle_s`, or `checkpoint_entries` after the last one.
    """

    def __init__(
        self,
        path: Path,
        *,
        connect: Callable[[Path], sqlite3.Connection] = open_database,
        max_queue: int = 10_000,
        max_batch: int = 128,
        idle_s: float = 0.5,
        checkpoint_entries: int = 5_000,
    ) -> None:
        self._max_queue = max_queue
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._closed = False
        self._writer = _Writer(path, self._queue, connect, max_batch, idle_s, checkpoint_entries)
        self._thread = threading.Thread(target=self._writer.run, name="llmrouter-ledger", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Entries that no transaction has taken yet."""
        return self._queue.qsize()

    async def open(self, reservation: Reservation) -> Admission:
        """Admit a call; see `Ledger.open`."""
        raise NotImplementedError

    async def record(self, entry: LedgerEntry) -> None:
        """Append one entry with its attempts; see `Ledger.record`.

        The entry is on its way with the first step of this coroutine: cancelling it afterwards loses nothing.

        Raises:
            StoreUnavailable: the entry is not in the books: the store failed, it cannot hold this entry, the queue is
                full, or the ledger is closed.
        """
        if self._closed:
            raise StoreUnavailable("the ledger is closed")
        if self._queue.qsize() >= self._max_queue:
            raise StoreUnavailable(f"the ledger is {self._max_queue} entries behind")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(_Waiting(entry, done))
        await done

    async def aclose(self) -> None:
        """Write what is queued, then end the thread; harmless when repeated."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join)


class _Writer:
    """What the thread does; nothing else touches its connection."""

    def __init__(
        self,
        path: Path,
        incoming: queue.SimpleQueue[_Waiting | None],
        connect: Callable[[Path], sqlite3.Connection],
        max_batch: int,
        idle_s: float,
        checkpoint_entries: int,
    ) -> None:
        self._path = path
        self._incoming = incoming
        self._connect = connect
        self._max_batch = max_batch
        self._idle_s = idle_s
        self._checkpoint_entries = checkpoint_entries
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._unmerged = 0

    def run(self) -> None:
        closing = False
        while not closing:
            batch, closing = self._next_batch()
            if batch:
                self._write(batch)
            if self._unmerged and (not batch or self._unmerged >= self._checkpoint_entries):
                self._checkpoint()
        self._disconnect()

    def _next_batch(self) -> tuple[list[_Waiting], bool]:
        """All that is queued, up to the batch limit; empty when nothing came in time. True at the end."""
        batch: list[_Waiting] = []
        try:
            waiting = self._incoming.get(timeout=self._idle_s if self._unmerged else None)
            while waiting is not None:
                batch.append(waiting)
                if len(batch) == self._max_batch:
                    return batch, False
                waiting = self._incoming.get_nowait()
        except queue.Empty:
            return batch, False
        return batch, True

    def _write(self, batch: Sequence[_Waiting]) -> None:
        """Write a batch in one transaction; if an entry cannot be stored, each in its own, so that it fails alone."""
        refusal = self._append([waiting.entry for waiting in batch])
        if refusal is not None and refusal.of_entry and len(batch) > 1:
            outcomes = [(waiting.done, self._append([waiting.entry])) for waiting in batch]
        else:
            outcomes = [(waiting.done, refusal) for waiting in batch]
        _tell(outcomes)

    def _append(self, entries: Sequence[LedgerEntry]) -> _Refusal | None:
        """None when the entries are in the books."""
        try:
            append(self._open(), entries)
        except Exception as error:  # noqa: BLE001 - the thread's outer edge: it must outlive whatever fails
            self._disconnect()
            _log.exception("%d ledger entries not written, the first is %s", len(entries), entries[0].request_id)
            return _refusal(self._path, error)
        self._unmerged += len(entries)
        return None

    def _open(self) -> sqlite3.Connection:
        """The connection, made anew after a failure or when another file has taken the database's place."""
        if self._connection is not None and self._file != _identity(self._path):
            self._disconnect()
        if self._connection is None:
            self._connection = self._connect(self._path)
            self._connection.execute("PRAGMA wal_autocheckpoint = 0")
            self._file = _identity(self._path)
        return self._connection

    def _checkpoint(self) -> None:
        """Move what the write-ahead log holds into the database; never waits for readers or other writers."""
        self._unmerged = 0
        try:
            self._open().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except (sqlite3.Error, RouterError):
            _log.warning("ledger checkpoint failed; the next one will catch up", exc_info=True)
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why entries are not in the books, and whether one of them is to blame instead of the store."""

    message: str
    of_entry: bool


def _refusal(path: Path, error: Exception) -> _Refusal:
    known = store_error(path, error) if isinstance(error, sqlite3.Error) else error
    if isinstance(known, StoreUnavailable):
        return _Refusal(known.message, of_entry=False)
    return _Refusal(f"the ledger cannot store this entry ({type(error).__name__})", of_entry=True)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _tell(outcomes: Sequence[tuple[asyncio.Future[None], _Refusal | None]]) -> None:
    """Resolve futures on their event loop, with one wake-up for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[None], _Refusal | None]]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome[0].get_loop(), []).append(outcome)
    for loop, told in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, told)


def _resolve(told: Sequence[tuple[asyncio.Future[None], _Refusal | None]]) -> None:
    for done, refusal in told:
        if done.done():  # the waiting task was cancelled; its entry is written all the same
            continue
        if refusal is None:
            done.set_result(None)
        else:
            done.set_exception(StoreUnavailable(refusal.message))
