"""The thread behind `SqliteLedger`: takes what has gathered, writes it in one transaction, tells who waits."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from llmrouter.database import store_error
from llmrouter.errors import RouterError, StoreUnavailable
from llmrouter.ledger import checkpoint, owners, recovery
from llmrouter.ledger.batch import Batch, Opening, Operation, Recording, Releasing
from llmrouter.ledger.inbox import Inbox
from llmrouter.ledger.limits import drop_idle, idle
from llmrouter.ledger.recovery import Recovered
from llmrouter.ledger.reservations import UnknownPolicy
from llmrouter.ledger.spending import GroupMembers, Spending
from llmrouter.ledger.telling import Answer, Recovering, Refusal, Waiting, tell, tell_recovered
from llmrouter.ledger.transaction import patience_of, transaction
from llmrouter.types import Admission, LedgerEntry, Limit, Reservation

__all__ = ["Terms", "Writer"]

_log = logging.getLogger(__name__)

_TIDY_S = 3600.0
_TIDY_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Terms:
    """How a ledger writes; `SqliteLedger` says what each means."""

    path: Path
    synchronous: str
    unknown: UnknownPolicy
    limits: bool
    owner_name: str
    group_members: GroupMembers
    on_recovered: Callable[[str, Recovered], None]
    now_ms: Callable[[], int]
    connect: Callable[[Path], sqlite3.Connection]
    max_batch: int
    idle_s: float
    checkpoint_entries: int
    recover_s: float


class Writer:
    """What the thread does; nothing else touches its connection, except `finish` after the thread has ended."""

    def __init__(self, terms: Terms, incoming: Inbox[Waiting | Recovering | None]) -> None:
        self._terms = terms
        self._incoming = incoming
        self._lock = owners.OwnerLock(owners.lock_folder(terms.path), terms.owner_name)
        self._spending = Spending(terms.group_members) if terms.limits else None
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._patience_s = 0.0
        self._owner: int | None = None
        self._under_way: dict[str, Reservation] = {}
        self._unbooked: dict[str, LedgerEntry] = {}
        """Of calls under way: entries that the store could not take when they came."""
        self._unmerged = 0
        self._next_recovery = 0.0
        self._next_tidying = 0.0
        self._finishing = threading.Lock()

    def announce(self) -> None:
        """Say that this process lives before it has booked anything, so that others notice its death even then.

        For who holds limits in a store elsewhere, which are taken before the books are written.
        """
        with contextlib.suppress(OSError):  # the first reservation will say why
            self._lock.acquire()

    def run(self) -> None:
        """Work until the queue holds None."""
        # The file of another owner is all that a start has to look at; the table waits for the first regular look.
        has_others = _has_files(owners.lock_folder(self._terms.path))
        self._next_recovery = time.monotonic() + (0.0 if has_others else self._terms.recover_s)
        self._next_tidying = time.monotonic() + _TIDY_S
        closing = False
        while not closing:
            if time.monotonic() >= self._next_recovery:
                self._recover_by_itself()
            batch, closing = self._next_batch()
            self._work_off(batch)
            if self._unmerged and (not batch or self._unmerged >= self._terms.checkpoint_entries):
                self._checkpoint()

    def finish(self) -> None:
        """After the end of `run`: do what came behind the None, give up the owner's name, disconnect; repeatable."""
        with self._finishing:
            self._catch_up()
            while left := self._incoming.take(self._terms.max_batch, _never):
                self._work_off([each for each in left if each is not None])
            self._leave()
            self._disconnect()

    def _next_batch(self) -> tuple[list[Waiting | Recovering], bool]:
        """All that is queued, up to the batch limit; empty when nothing came in time. True at the end."""
        patience_s = max(self._next_recovery - time.monotonic(), 0.0)
        if not self._incoming.wait(min(self._terms.idle_s, patience_s) if self._unmerged else patience_s):
            return [], False
        taken = self._incoming.take(self._terms.max_batch, _is_end)
        return [each for each in taken if each is not None], taken[-1] is None

    def _work_off(self, batch: Sequence[Waiting | Recovering]) -> None:
        recovering = [each for each in batch if isinstance(each, Recovering)]
        work = [each for each in batch if isinstance(each, Waiting)]
        if work:
            self._write(work)
        if recovering:
            self._recover_for(recovering)

    def _write(self, batch: Sequence[Waiting]) -> None:
        """Write a batch in one transaction; if one of it cannot be stored, each in its own, so that it fails alone."""
        told = self._commit(batch)
        if len(batch) > 1 and isinstance(told[0], Refusal) and told[0].of_operation:
            told = [answer for each in batch for answer in self._commit([each])]
        outcomes = list(zip(batch, told, strict=True))
        for waiting, answer in outcomes:
            self._keep_unbooked(waiting.operation, answer)
        for waiting, answer in tell(outcomes):
            self._take_back(waiting.operation, answer)

    def _commit(self, batch: Sequence[Waiting]) -> list[Answer]:
        """What to tell each: all of it is in the books, or nothing is."""
        operations = [each.operation for each in batch]
        try:
            connection = self._open()
            if self._spending is not None:
                self._spending.prepare(connection, _limits_of(operations), self._terms.now_ms())
            with transaction(connection, self._patience_s):
                applied = self._batch(connection)
                answers = applied.apply(operations)
        except Exception as error:  # noqa: BLE001 - the thread's outer edge: it must outlive whatever fails
            self._disconnect()
            refusal = _refusal(self._terms.path, error, operations[0])
            # A store that is down says so for every batch; only what nobody foresaw needs to be traced.
            _log.error(
                "%d operations of the ledger refused: %s", len(batch), refusal.message, exc_info=refusal.of_operation
            )
            return [refusal] * len(batch)
        self._committed(applied)
        self._unmerged += len(batch)
        return list(answers)

    def _batch(self, connection: sqlite3.Connection) -> Batch:
        """For a transaction that has begun: its time is that of the lock, so that counters see times in order."""
        return Batch(connection, self._owner_number, self._spending, self._terms.now_ms(), self._under_way)

    def _committed(self, batch: Batch) -> None:
        for opening in batch.taken:
            opening.took = True
            self._under_way[opening.reservation.request_id] = opening.reservation
        for reservation in batch.ended:
            self._under_way.pop(reservation.request_id, None)
            self._unbooked.pop(reservation.request_id, None)

    def _owner_number(self) -> int:
        """Our number among the owners; the first reservation registers us, in its own transaction."""
        self._lock.acquire()
        connection = self._connection
        assert connection is not None
        if self._owner is None:
            now = datetime.fromtimestamp(self._terms.now_ms() / 1000, UTC)
            self._owner = owners.register(connection, self._terms.owner_name, now)
        return self._owner

    def _take_back(self, operation: Operation, answer: Answer) -> None:
        """The loop that waited is gone, and nobody will record what was opened for it."""
        if isinstance(operation, Opening) and isinstance(answer, Admission):
            self._incoming.put(Waiting(Releasing(operation), None))

    def _keep_unbooked(self, operation: Operation, answer: Answer) -> None:
        """Without its entry a call would hold its limits until it expires, and be billed at the worst case."""
        if not isinstance(operation, Recording) or not isinstance(answer, Refusal):
            return
        entry = operation.entry
        if answer.of_operation:
            self._unbooked.pop(entry.request_id, None)
        elif entry.request_id in self._under_way:
            self._unbooked[entry.request_id] = _as_refused(entry)

    def _catch_up(self) -> None:
        """Try again to book what the store could not take."""
        for entry in self._unbooked.values():
            self._incoming.put(Waiting(Recording(entry), None))

    def _recover_by_itself(self) -> None:
        self._next_recovery = time.monotonic() + self._terms.recover_s
        try:
            self._catch_up()
            self._recover()
            if time.monotonic() >= self._next_tidying:
                self._next_tidying = time.monotonic() + _TIDY_S
                self._tidy()
        except Exception:  # noqa: BLE001 - the thread's outer edge
            self._disconnect()
            _log.warning("the ledger could not be looked through for calls of dead processes", exc_info=True)

    def _recover_for(self, waiting: Sequence[Recovering]) -> None:
        outcome: int | RouterError
        try:
            outcome = self._recover()
        except Exception as error:  # noqa: BLE001 - the thread's outer edge
            self._disconnect()
            outcome = StoreUnavailable(_refusal(self._terms.path, error, None).message)
        tell_recovered(waiting, outcome)

    def _recover(self) -> int:
        terms = self._terms
        if self._lock.held:
            self._lock.acquire()
        connection = self._open()
        book = recovery.Terms(
            owners.lock_folder(terms.path), terms.owner_name, terms.unknown, self._batch, self._patience_s
        )
        now = datetime.fromtimestamp(terms.now_ms() / 1000, UTC)
        under_way = [each for request_id, each in self._under_way.items() if request_id not in self._unbooked]
        expired = recovery.end_expired(connection, under_way, book, now)
        for reservation, _ in expired:
            del self._under_way[reservation.request_id]
        if expired:
            _log.error(
                "%d calls were never booked and have expired, the first is %s", len(expired), expired[0][0].request_id
            )
        buried = recovery.bury_dead(connection, book)
        for name, recovered in buried.items():
            self._report(name, recovered)
        booked = len(expired) + sum(map(len, buried.values()))
        self._unmerged += booked
        return booked

    def _report(self, name: str, recovered: Recovered) -> None:
        if recovered:
            _log.warning("%d calls of process %s, which has died, are booked as unknown", len(recovered), name)
        try:
            self._terms.on_recovered(name, recovered)
        except Exception:  # noqa: BLE001 - somebody else's code
            _log.exception("what process %s held elsewhere was not taken back", name)

    def _tidy(self) -> None:
        """Drop idle counters: found in one walk through the table without the lock, deleted a few at a time."""
        now_ms = self._terms.now_ms()
        last = None
        while found := idle(self._open(), now_ms, _TIDY_ROWS, last):
            last = found[-1]
            with transaction(self._open(), self._patience_s):
                drop_idle(self._open(), now_ms, found)

    def _leave(self) -> None:
        """Give up the owner's name; while it holds reservations, it stays for others to recover."""
        if not self._lock.held:
            return
        try:
            connection = self._open()
            with transaction(connection, self._patience_s):
                gone = owners.unregister(connection, self._terms.owner_name)
        except Exception:  # noqa: BLE001 - the thread's outer edge
            _log.warning("the ledger was left without a word; others will see it", exc_info=True)
            gone = False
        if gone:
            self._lock.release()
        else:
            self._lock.abandon()
        self._owner = None

    def _open(self) -> sqlite3.Connection:
        """The connection, made anew after a failure or when another file has taken the database's place."""
        path = self._terms.path
        if self._connection is not None and self._file != _identity(path):
            self._disconnect()
        if self._connection is None:
            self._connection = self._terms.connect(path)
            self._connection.execute("PRAGMA wal_autocheckpoint = 0")
            self._connection.execute(f"PRAGMA journal_size_limit = {checkpoint.LONG_LOG_BYTES}")
            self._connection.execute(f"PRAGMA synchronous = {self._terms.synchronous}")
            self._patience_s = patience_of(self._connection)
            self._file = _identity(path)
        return self._connection

    def _checkpoint(self) -> None:
        """Move what the write-ahead log holds into the database."""
        terms = self._terms
        self._unmerged = 0
        try:
            checkpoint.merge(self._open(), lambda: terms.connect(terms.path), self._patience_s)
        except (sqlite3.Error, RouterError):
            _log.warning("ledger checkpoint failed; the next one will catch up", exc_info=True)
            self._disconnect()

    def _disconnect(self) -> None:
        # The next file, or the same one after a failed transaction, may not know our number.
        self._owner = None
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


def _refusal(path: Path, error: Exception, operation: Operation | None) -> Refusal:
    known = store_error(path, error) if isinstance(error, sqlite3.Error) else error
    if isinstance(known, StoreUnavailable):
        return Refusal(known.message, of_operation=False)
    if isinstance(known, OSError):
        return Refusal(f"the store {path.name} cannot be used: {known.strerror}", of_operation=False)
    what = "entry" if isinstance(operation, Recording) else "reservation"
    return Refusal(f"the ledger cannot store this {what} ({type(error).__name__})", of_operation=True)


def _limits_of(operations: Iterable[Operation]) -> list[tuple[Limit, str | None]]:
    """What openings count against, with the end user of each."""
    wished = [each.reservation for each in operations if isinstance(each, Opening)]
    return [(limit, each.user_id) for each in wished for limit in each.limits]


def _as_refused(entry: LedgerEntry) -> LedgerEntry:
    """A call as its client saw it: an answer that is not in the books is not given."""
    return entry if entry.aborted else replace(entry, status=503, error_code=StoreUnavailable.default_code)


def _is_end(item: Waiting | Recovering | None) -> bool:
    return item is None


def _never(_: Waiting | Recovering | None) -> bool:
    return False


def _has_files(folder: Path) -> bool:
    try:
        with os.scandir(folder) as found:
            return next(found, None) is not None
    except OSError:
        return False


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
