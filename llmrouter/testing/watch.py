"""Waiting for what a server in this process does, from any thread and any event loop, without polling."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

__all__ = ["Signal", "Watch"]


class Watch:
    """Wakes everyone who waits for a predicate whenever something may have changed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._wakers: set[Callable[[], None]] = set()

    def notify(self) -> None:
        """Have all waiting predicates looked at again; call it after the change, from any thread."""
        with self._changed:
            self._changed.notify_all()
            wakers = tuple(self._wakers)
        for wake in wakers:
            wake()

    async def until(self, predicate: Callable[[], bool], *, what: str, timeout_s: float | None) -> None:
        """Return once the predicate holds.

        Raises:
            TimeoutError: it did not hold within `timeout_s`; the message names `what`.
        """
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            # The waiter's loop may close while another thread notifies; nobody waits there any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)

        with self._changed:
            self._wakers.add(wake)
        try:
            async with asyncio.timeout(timeout_s):
                while not predicate():
                    await event.wait()
                    event.clear()
        except TimeoutError:
            raise TimeoutError(f"{what}: not within {timeout_s} s") from None
        finally:
            with self._changed:
                self._wakers.discard(wake)

    def until_blocking(self, predicate: Callable[[], bool], *, what: str, timeout_s: float | None) -> None:
        """`until` for code that runs in another thread than the server."""
        with self._changed:
            if not self._changed.wait_for(predicate, timeout_s):
                raise TimeoutError(f"{what}: not within {timeout_s} s")


class Signal:
    """Something that happens once: a test waits for it, or makes it happen to open a gate."""

    def __init__(self, what: str = "the signal") -> None:
        self._what = what
        self._watch = Watch()
        self.at_s: float | None = None
        """When it happened, on the monotonic clock."""

    def set(self) -> None:
        """Let it happen now; a repeat keeps the first moment."""
        if self.at_s is None:
            self.at_s = time.monotonic()
            self._watch.notify()

    def is_set(self) -> bool:
        return self.at_s is not None

    async def wait(self, timeout_s: float | None = 5.0) -> None:
        """Wait for it. Raises TimeoutError so that a test fails instead of hanging."""
        await self._watch.until(self.is_set, what=self._what, timeout_s=timeout_s)

    def wait_blocking(self, timeout_s: float | None = 5.0) -> None:
        """`wait` for code that runs in another thread than the server."""
        self._watch.until_blocking(self.is_set, what=self._what, timeout_s=timeout_s)
