"""The thread that empties the spool into the server, for as long as the gateway lives."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from llmrouter.errors import RouterError
from llmrouter.ledger.postgres.delivery import Delivery
from llmrouter.ledger.postgres.spool import Spool
from llmrouter.postgres import Postgres
from llmrouter.types import value

__all__ = ["Shipper", "Shipping"]

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_GRACE_S = 10.0


@value
class Shipping:
    """How shipping stands, for metrics."""

    active: bool
    """Whether this process ships; of all that share a file, one does."""
    shipped: int
    """Entries that this process has brought to the server."""
    refused: int
    """Entries that the server will not hold and that stay here; known to the process that ships."""
    backlog: int
    """Entries in the file, the last shipped one included."""
    last_error: str | None
    """Why the last try failed; None when it did not."""


class Shipper:
    """Ships the ledger of one SQLite file to a server, in a thread of its own.

    Of the processes that share the file, the one that holds the lock on `<database>.shipper` ships over one connection;
    the others stand by without one. While the server is away the thread tries again with doubling pauses, and the
    log says once that it went and once that it is back.

    Args:
        spool_entries: entries that may wait here before `full` says so.
        interval_s: how often to look for new entries, and to take over from a process that has died.
        longest_pause_s: bound of the pauses while the server is away.
        drain_s: how long `aclose` goes on shipping what waits; what is left is shipped after the next start.
    """

    def __init__(
        self,
        path: Path,
        database: Postgres,
        *,
        spool_entries: int,
        batch: int = 2000,
        interval_s: float = 0.5,
        longest_pause_s: float = 30.0,
        drain_s: float = 5.0,
        now: Callable[[], float] = time.monotonic,
        spool: Spool | None = None,
    ) -> None:
        self._spool = spool or Spool(path)
        self._delivery = Delivery(self._spool, database, most=batch)
        self._name = database.name
        self._lock = _FileLock(path.with_name(f"{path.name}.shipper"))
        self._batch = batch
        self._spool_entries = spool_entries
        self._interval_s = interval_s
        self._longest_pause_s = longest_pause_s
        self._drain_s = drain_s
        self._now = now
        self._pause_s = 0.0
        self._backlog = 0
        self._last_error: str | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def full(self) -> bool:
        """Whether so much waits here that new calls should be refused; as of the last look, costs nothing."""
        return self._backlog >= self._spool_entries

    @property
    def status(self) -> Shipping:
        return Shipping(
            self._lock.held, self._delivery.shipped, self._delivery.refused, self._backlog, self._last_error
        )

    def start(self) -> None:
        """Start the thread; the first look at the backlog has been taken when this returns.

        Raises:
            StoreUnavailable: the file cannot be read.
        """
        self._backlog = self._spool.backlog()
        self._thread = threading.Thread(target=self._run, name="llmrouter-shipper", daemon=True)
        self._thread.start()

    async def aclose(self) -> None:
        """Ship what waits, within `drain_s`, and end the thread; harmless when repeated."""
        self._stop.set()
        if self._thread is not None:
            # A server that hangs in the middle of an answer must not hold up the end of the process.
            await asyncio.to_thread(self._thread.join, self._drain_s + _GRACE_S)

    def ship_once(self) -> int:
        """Ship one batch if no other process does; returns how many entries it dealt with.

        Raises:
            StoreUnavailable: see `Delivery.ship_once`.
        """
        return self._delivery.ship_once() if self._lock.take() else 0

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._try():
                self._stop.wait(max(self._pause_s, self._interval_s))
        self._drain()
        self._delivery.close()
        self._lock.release()

    def _drain(self) -> None:
        """Ship what waits; after a failure once more, since a restart of the server may have cut the connection."""
        until = self._now() + self._drain_s
        failed = False
        while self._now() < until:
            if self._try():
                continue
            if self._last_error is None or failed:
                return
            failed = True

    def _try(self) -> bool:
        """Ship a batch; whether it was a full one, so that more is waiting. Never raises."""
        try:
            done = self.ship_once()
            self._backlog = self._spool.backlog()
        except Exception as error:  # noqa: BLE001 - the thread's outer edge: it must outlive whatever fails
            self._failed(error)
            return False
        if self._last_error is not None:
            _log.warning("%s takes ledger entries again; %d wait here", self._name, self._backlog)
            self._last_error, self._pause_s = None, 0.0
        return done >= self._batch

    def _failed(self, error: Exception) -> None:
        message = error.message if isinstance(error, RouterError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(RouterError):
            self._backlog = self._spool.backlog()
        if self._last_error is None:
            _log.error(
                "ledger entries cannot be shipped, %d wait here: %s",
                self._backlog,
                message,
                exc_info=None if isinstance(error, RouterError) else error,
            )
        self._last_error = message
        self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), self._longest_pause_s)


class _FileLock:
    """A lock that the kernel takes back when its process dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def take(self) -> bool:
        """Whether this process has the lock now; never waits."""
        if self._descriptor is not None:
            return True
        descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
