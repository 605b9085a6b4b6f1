"""When a replica is left alone and when it is tried again, as a pure state machine.

    closed ── `failures` failures within `window_s` that are `share` of its calls, or a Retry-After ──▶ open
    open ── the pause is over ──▶ half-open: one trial call at a time
    half-open ── success ──▶ closed          half-open ── failure ──▶ open, with a doubled pause

The clock is an argument of every call (monotonic seconds). An open breaker always ends by time alone: a trial that
never reports back gives up its place after `max_open_s`, so no lost verdict can shut a replica out for good.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import NewType

from llmrouter.types import Failure

__all__ = ["MAX_RETRY_AFTER_S", "REFUSED", "Breaker", "BreakerState", "Permit"]

MAX_RETRY_AFTER_S = 3600.0
"""Longest pause that a replica can ask for itself; whatever it says beyond an hour is taken as an hour."""

Permit = NewType("Permit", int)
"""What `Breaker.allow` hands out and each verdict names, so that news from before a change of state is known as old."""

REFUSED = Permit(0)
"""The one permit that is false."""

_NO_BREAKAGE = frozenset(
    {Failure.BAD_REQUEST, Failure.CONTEXT, Failure.CANCELLED, Failure.NO_CAPACITY, Failure.DEADLINE}
)
"""The client's fault or our own decision: says nothing about the replica, whatever headers came with it."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """The breaker of one replica. Not thread-safe; no method blocks or raises.

    A rate limit (429) holds calls for its Retry-After, or for the current pause without one, but is no breakage: it
    neither counts as a failure nor doubles the pause. A failure that carries a Retry-After holds and counts. The end
    of a pause only ever moves away from now, never nearer.
    """

    __slots__ = (
        "_failure_times",
        "_failures",
        "_generation",
        "_max_open_s",
        "_max_retry_after_s",
        "_open_s",
        "_open_until",
        "_pause_s",
        "_share",
        "_successes",
        "_trial_until",
        "_window_s",
        "opens",
    )

    def __init__(
        self,
        *,
        failures: int,
        window_s: float,
        open_s: float,
        max_open_s: float,
        share: float = 0.0,
        max_retry_after_s: float = MAX_RETRY_AFTER_S,
    ) -> None:
        self._failure_times: deque[float] = deque()
        self._successes = _RollingCount()
        self._generation = 1
        self._open_until: float | None = None  # None: closed
        self._trial_until: float | None = None  # set while a trial call is under way
        self._pause_s = open_s
        self._max_retry_after_s = max_retry_after_s
        self.opens = 0
        """How often it opened or reopened since it was made, for metrics."""
        self.configure(failures=failures, window_s=window_s, open_s=open_s, max_open_s=max_open_s, share=share)

    def configure(
        self, *, failures: int, window_s: float, open_s: float, max_open_s: float, share: float = 0.0
    ) -> None:
        """Take new settings and keep the state; a pause that has begun runs to its old end."""
        self._failures = failures
        self._share = share
        self._window_s = window_s
        self._open_s = open_s
        self._max_open_s = max(open_s, max_open_s)
        self._pause_s = open_s if self._open_until is None else min(self._pause_s, self._max_open_s)

    def state(self, now: float) -> BreakerState:
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._open_until else BreakerState.HALF_OPEN

    def ready(self, now: float) -> bool:
        """Whether `allow` would grant a permit now; takes none."""
        if self._open_until is None:
            return True
        return now >= self._open_until and (self._trial_until is None or now >= self._trial_until)

    def allow(self, now: float) -> Permit:
        """Ask to make a call: a true permit, or `REFUSED`. Half-open, this takes the one trial permission.

        Each granted permit is given back through exactly one of `record_success`, `record_failure`, `release`.
        """
        if self._open_until is None:
            return Permit(self._generation)
        if not self.ready(now):
            return REFUSED
        self._generation += 1
        self._trial_until = now + self._max_open_s
        return Permit(self._generation)

    def retry_at(self, now: float) -> float | None:
        """When `allow` may grant a permit again; None when it would now.

        While a trial is under way that is `now` itself, as its verdict may come at any moment.
        """
        if self._open_until is None or self.ready(now):
            return None
        return max(now, self._open_until)

    def record_success(self, permit: Permit, now: float) -> Permit:
        """The call was answered. Returns the permit under which it goes on, should it still fail after its start.

        A trial's success closes the breaker, unless the replica has meanwhile asked another call for a pause.
        """
        if self._open_until is None:
            self._successes.add(now, self._window_s)
            return permit
        if permit != self._generation:
            return permit
        self._trial_until = None
        self._pause_s = self._open_s
        self._generation += 1
        if now < self._open_until:
            return REFUSED
        self._open_until = None
        return Permit(self._generation)

    def record_failure(self, permit: Permit, now: float, failure: Failure, retry_after_s: float | None = None) -> None:
        """The call failed. A client-side failure only gives the permit back.

        A verdict from before the last change of state counts for nothing, yet its Retry-After is still honoured.
        """
        if failure in _NO_BREAKAGE:
            self.release(permit)
            return
        breakage = failure is not Failure.RATE_LIMITED
        pause_s = self._asked_pause_s(failure, retry_after_s)
        if self._open_until is None:
            if breakage and permit == self._generation:
                pause_s = max(pause_s, self._count(now))
            if pause_s > 0:
                self._trip(now + pause_s)
            return
        if permit == self._generation:
            pause_s = max(pause_s, self._fail_trial(breakage))
        self._open_until = max(self._open_until, now + pause_s)

    def release(self, permit: Permit) -> None:
        """The call ended without a verdict, e.g. the client left: a trial's place is free again."""
        if permit == self._generation:
            self._trial_until = None

    def hold(self, now: float, until: float) -> None:
        """Let no call through before a moment, because others have seen the replica fail; then a trial as ever.

        Counts neither as a failure nor in `opens`. A moment that is over changes nothing.
        """
        if until <= now:
            return
        if self._open_until is None:
            self._begin_pause(until)
        else:
            self._open_until = max(self._open_until, until)

    def _asked_pause_s(self, failure: Failure, retry_after_s: float | None) -> float:
        """The pause that the replica itself asks for. Zero, negative (an HTTP date gone by) and NaN ask for none."""
        if retry_after_s is not None and retry_after_s > 0:
            return min(retry_after_s, self._max_retry_after_s)
        return self._pause_s if failure is Failure.RATE_LIMITED else 0.0

    def _count(self, now: float) -> float:
        """Note a failure while closed; the pause it leads to, or 0."""
        times = self._failure_times
        times.append(now)
        while times[0] < now - self._window_s:
            times.popleft()
        if len(times) < self._failures:
            return 0.0
        calls = len(times) + self._successes.total(now, self._window_s)
        return self._open_s if len(times) >= self._share * calls else 0.0

    def _trip(self, until: float) -> None:
        self._begin_pause(until)
        self.opens += 1

    def _begin_pause(self, until: float) -> None:
        self._open_until = until
        self._failure_times.clear()
        self._successes = _RollingCount()
        self._generation += 1

    def _fail_trial(self, breakage: bool) -> float:
        """End the trial; the pause that its failure leads to, or 0 for a rate limit."""
        self._trial_until = None
        self._generation += 1
        self.opens += 1
        if not breakage:
            return 0.0
        self._pause_s = min(self._pause_s * 2, self._max_open_s)
        return self._pause_s


class _RollingCount:
    """How much happened in the last window: the current slice whole, the one before by the part still in the window."""

    __slots__ = ("_before", "_begun", "_current")

    def __init__(self) -> None:
        self._begun = 0.0
        self._current = 0
        self._before = 0

    def add(self, now: float, window_s: float) -> None:
        if now - self._begun >= window_s:
            self._turn(now, window_s)
        self._current += 1

    def total(self, now: float, window_s: float) -> float:
        if now - self._begun >= window_s:
            self._turn(now, window_s)
        return self._current + self._before * (1 - (now - self._begun) / window_s)

    def _turn(self, now: float, window_s: float) -> None:
        self._before = self._current if now - self._begun < 2 * window_s else 0
        self._current = 0
        self._begun = now
