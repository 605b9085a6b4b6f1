"""The books in the embedded SQLite file: one writer thread, many calls a commit.

`open` and `record` put an operation into a queue and wait. The thread takes all that has gathered, carries it out in
one transaction and tells the event loop once. While one batch commits, the next gathers; so batches grow with load, and
an idle gateway pays for small transactions.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from llmrouter.database import open_database
from llmrouter.errors import StoreUnavailable
from llmrouter.ledger.batch import Opening, Recording, Releasing
from llmrouter.ledger.inbox import Inbox
from llmrouter.ledger.recovery import Recovered
from llmrouter.ledger.reservations import UnknownPolicy
from llmrouter.ledger.spending import GroupMembers
from llmrouter.ledger.telling import Recovering, Waiting
from llmrouter.ledger.writer import Terms, Writer
from llmrouter.types import Admission, LedgerEntry, Reservation

__all__ = ["Durability", "SqliteLedger"]

Durability = Literal["process", "power"]
"""What a commit survives: the death of the process, or a power cut too."""


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000


class SqliteLedger:
    """`Ledger` over a migrated database that holds the limits too.

    The writer thread starts at once and ends with `aclose`.

    Operations of a transaction that fails are refused, all others are untouched; the thread opens the database anew for
    the next ones, so it recovers by itself. Checkpoints run in the thread too, after the waiting requests were told:
    when nothing has come for `idle_s`, or `checkpoint_entries` after the last one.

    Nothing leaks. A reservation ends with its entry. One whose caller was cancelled while it waited is taken back, as
    if it had never come. Those of a process that died become entries with error code `unknown`, billed by policy, when
    the next process starts or another one looks, every `recover_s`. So do those that have expired without an entry.
    An entry that a locked or full store refused is written as soon as the store takes it, at what the call really used,
    as a call that was answered 503.
    """

    def __init__(
        self,
        path: Path,
        *,
        durability: Durability = "process",
        unknown: UnknownPolicy = "reserved",
        limits: bool = True,
        owner_name: str | None = None,
        group_members: GroupMembers = lambda _: (),
        on_recovered: Callable[[str, Recovered], None] = lambda _name, _left: None,
        now_ms: Callable[[], int] = _unix_ms,
        connect: Callable[[Path], sqlite3.Connection] = open_database,
        max_queue: int = 10_000,
        max_batch: int = 128,
        idle_s: float = 0.5,
        checkpoint_entries: int = 5_000,
        recover_s: float = 5.0,
    ) -> None:
        """Start the writer.

        Args:
            durability: `power` syncs each commit to the disk.
            unknown: what a call is billed at whose end nobody saw.
            limits: take and settle the limits in this database; without, only reservations and entries are written.
            owner_name: the name under which this process holds reservations; None makes a new one.
            group_members: the tenants of a group, for what a new dollar limit of the group begins with.
            on_recovered: told in the writer thread, after the commit, that an owner has died and what its calls are
                billed, so that a shared limit store can bury it. What it raises is logged.
            now_ms: Unix time in milliseconds.
        """
        self.owner_name = owner_name or f"{socket.gethostname()}-{secrets.token_hex(8)}".replace("/", "_")
        """Under which this process holds reservations; no other process ever has the same."""
        self._max_queue = max_queue
        self._inbox: Inbox[Waiting | Recovering | None] = Inbox()
        self._closed = False
        terms = Terms(
            path=path,
            synchronous="FULL" if durability == "power" else "NORMAL",
            unknown=unknown,
            limits=limits,
            owner_name=self.owner_name,
            group_members=group_members,
            on_recovered=on_recovered,
            now_ms=now_ms,
            connect=connect,
            max_batch=max_batch,
            idle_s=idle_s,
            checkpoint_entries=checkpoint_entries,
            recover_s=recover_s,
        )
        self._writer = Writer(terms, self._inbox)
        if not limits:
            self._writer.announce()
        self._thread = threading.Thread(target=self._writer.run, name="llmrouter-ledger", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Operations that no transaction has taken yet."""
        return len(self._inbox)

    async def open(self, reservation: Reservation) -> Admission:
        """Admit a call; see `Ledger.open`.

        When this returns, its caller has to record an entry. When this is cancelled, the reservation is taken back
        whole, whether or not it was in the books already, and there is nothing to record.

        Raises:
            StoreUnavailable: nothing was taken or written: the store failed, it cannot hold this reservation, the queue
                is full, or the ledger is closed.
        """
        self._refuse_if_late()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Admission | None] = loop.create_future()
        opening = Opening(reservation)
        self._inbox.put(Waiting(opening, done), loop)
        try:
            admission = await done
        except asyncio.CancelledError:
            # It is behind the opening in the queue, so the opening has been carried out or refused by then.
            self._inbox.put(Waiting(Releasing(opening), None))
            raise
        assert admission is not None
        return admission

    async def record(self, entry: LedgerEntry) -> None:
        """Append one entry with its attempts; see `Ledger.record`.

        The entry is on its way with the first step of this coroutine: cancelling it afterwards loses nothing.

        Raises:
            StoreUnavailable: the entry is not in the books: the store failed, it cannot hold this entry, the queue is
                full, or the ledger is closed.
        """
        self._refuse_if_late()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Admission | None] = loop.create_future()
        self._inbox.put(Waiting(Recording(entry), done), loop)
        await done

    async def recover(self) -> int:
        """Turn what dead processes left, and what has expired, into entries now; returns how many.

        Raises:
            StoreUnavailable: some of it is still to be done; the writer tries again by itself.
        """
        self._refuse_if_late()
        recovering = Recovering(asyncio.get_running_loop().create_future())
        self._inbox.put(recovering)
        return await recovering.done

    async def aclose(self) -> None:
        """Write what is queued, then end the thread and give up the name; harmless when repeated.

        Reservations that are still open stay in the books, for others to recover.
        """
        if not self._closed:
            self._closed = True
            self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._writer.finish)

    def _refuse_if_late(self) -> None:
        if self._closed:
            raise StoreUnavailable("the ledger is closed")
        if len(self._inbox) >= self._max_queue:
            raise StoreUnavailable(f"the ledger is {self._max_queue} entries behind")
