"""What the event loop hands to the ledger's thread: in order, with one wake-up for all of a turn of the loop."""

from __future__ import annotations

import asyncio
import queue
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Inbox"]

T = TypeVar("T")


class Inbox(Generic[T]):
    """A queue of one reader thread, whose wake-up is the dear part of it.

    Waking a thread, and the switch of the interpreter to it, costs more than a small transaction. So `put` only
    appends, and the thread is woken at the end of the loop's turn: what the other requests of that turn put joins the
    same batch. What was put before the end of a wait is never left out.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ringing = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Append; with the running `loop`, the reader is woken at the end of its turn, else at once."""
        self._items.append(item)
        if loop is None:
            self._ring()
        elif not self._ringing:
            self._ringing = True
            loop.call_soon(self._ring)

    def wait(self, timeout_s: float) -> bool:
        """Until something is there, at most so long; whether it is. For the reader alone, like all that follows."""
        until = time.monotonic() + timeout_s
        while not self._items:
            try:
                self._bell.get(timeout=max(until - time.monotonic(), 0.0))
            except queue.Empty:
                # A loop that was closed in mid-turn never rings; the next one shall.
                self._ringing = False
                return bool(self._items)
        return True

    def take(self, most: int, ends: Callable[[T], bool]) -> list[T]:
        """Up to so many items in order, none after one that `ends`."""
        # Items of now need no wake-up that is still to come; one that comes all the same finds nothing and is harmless.
        self._ringing = False
        taken: list[T] = []
        while self._items and len(taken) < most:
            taken.append(self._items.popleft())
            if ends(taken[-1]):
                break
        return taken

    def _ring(self) -> None:
        self._ringing = False
        self._bell.put(None)
