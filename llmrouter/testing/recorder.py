"""The books of a fake backend: its calls and counters, and waiting for them to change."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from llmrouter.testing.records import Call
from llmrouter.testing.watch import Watch

__all__ = ["Recorder"]


class Recorder:
    """What has come in and what is going on; everything may be read from any thread."""

    def __init__(self, keep_calls: int | None) -> None:
        self._calls: deque[Call] = deque(maxlen=keep_calls)
        self._probes: deque[Call] = deque(maxlen=keep_calls)
        self._watch = Watch()
        self.requests = 0
        """All requests ever, probes included."""
        self.in_flight = 0
        """Calls that have arrived and are not done, waiting ones included."""
        self.max_in_flight = 0
        self.running = 0
        """Calls that hold a slot."""
        self.max_running = 0
        self.connections = 0
        """Connections open now."""
        self.connections_made = 0
        """Connections accepted since the start."""
        self.stale_drops = 0
        """Requests dropped because of `stale_after`."""
        self.malformed_requests = 0
        """Times a peer sent what is no HTTP request; each was answered with 400."""

    @property
    def calls(self) -> list[Call]:
        """All requests in order of arrival, but for health, metrics and model probes."""
        return list(self._calls)

    @property
    def probes(self) -> list[Call]:
        """Requests to `/health`, `/metrics`, `/v1/models` and their like."""
        return list(self._probes)

    @property
    def waiting(self) -> int:
        """Calls that wait for a slot."""
        return self.in_flight - self.running

    def forget(self) -> None:
        """Drop the records of all calls and probes; the counters go on."""
        self._calls.clear()
        self._probes.clear()

    async def until(self, predicate: Callable[[], bool], timeout_s: float = 5.0) -> None:
        """Wait until the predicate over these records holds; it is looked at after each change.

        Raises:
            TimeoutError: it did not come true in time.
        """
        await self._watch.until(predicate, what="the awaited state of the fake backend", timeout_s=timeout_s)

    def until_blocking(self, predicate: Callable[[], bool], timeout_s: float = 5.0) -> None:
        """`until` for another thread than the backend's."""
        self._watch.until_blocking(predicate, what="the awaited state of the fake backend", timeout_s=timeout_s)

    async def call(self, number: int, timeout_s: float = 5.0) -> Call:
        """The call of that number, counted from 1, as soon as it has arrived."""
        await self.until(lambda: len(self._calls) >= number, timeout_s)
        return self._calls[number - 1]

    def _record(self, call: Call, *, probe: bool) -> None:
        if probe:
            self._probes.append(call)
        else:
            self._calls.append(call)
            self.in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self.in_flight)
        self._watch.notify()

    def _left(self) -> None:
        self.in_flight -= 1
        self._watch.notify()

    def _started(self) -> None:
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        self._watch.notify()

    def _stopped(self) -> None:
        self.running -= 1
        self._watch.notify()
