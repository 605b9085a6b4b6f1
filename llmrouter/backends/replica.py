"""One replica as the pool sees it, and the lease on one of its slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from hashlib import blake2b

from llmrouter.backends.breaker import Breaker, Permit
from llmrouter.backends.engine_metrics import EngineLoad
from llmrouter.protocols import Backend
from llmrouter.types import Failure

__all__ = ["Health", "Lease", "Replica"]

_MASK = (1 << 64) - 1
_MISSES_TO_DOWN = 2


class Health(StrEnum):
    UNKNOWN = "unknown"
    UP = "up"
    DOWN = "down"


class Replica:
    """A backend with what is known of it: breaker, calls in flight, health, the engine's own load.

    Health and load come with an expiry, after which they are unknown; a prober that stopped cannot shut a replica out
    or make it look busy for ever.
    """

    __slots__ = (
        "_health",
        "_health_until",
        "_idle",
        "_load",
        "_load_until",
        "_misses",
        "_seed",
        "backend",
        "base_url",
        "breaker",
        "draining",
        "in_flight",
        "name",
    )

    def __init__(self, *, name: str, base_url: str | None, backend: Backend, breaker: Breaker) -> None:
        self.name = name
        self.base_url = base_url
        """Address up to and including `/v1`; None where there is nothing to probe."""
        self.backend = backend
        self.breaker = breaker
        self.in_flight = 0
        self.draining = False
        self._health = Health.UNKNOWN
        self._health_until = 0.0
        self._load: EngineLoad | None = None
        self._load_until = 0.0
        self._misses = 0
        self._idle: asyncio.Event | None = None
        self._seed = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")

    def health(self, now: float) -> Health:
        return self._health if now < self._health_until else Health.UNKNOWN

    def engine_load(self, now: float) -> EngineLoad | None:
        """The engine's own figures while they are fresh."""
        return self._load if now < self._load_until else None

    def load(self, now: float) -> float:
        """How busy the replica is: our calls in flight and, while known, what waits in the engine's own queue."""
        if self._load is not None and self._load.waiting is not None and now < self._load_until:
            return self.in_flight + self._load.waiting
        return self.in_flight

    def usable(self, now: float) -> bool:
        """Whether a call may be sent now; takes no trial permission."""
        if self.draining or not self.breaker.ready(now):
            return False
        return self._health is not Health.DOWN or now >= self._health_until

    def weight(self, affinity: int) -> int:
        """Rank for a prefix (rendezvous hashing): the replica with the highest weight holds it in its cache.

        The same in every worker and after a restart, and a replica that comes or goes moves only its own prefixes.
        """
        mixed = ((affinity ^ self._seed) * 0x9E3779B97F4A7C15) & _MASK
        mixed ^= mixed >> 32
        return (mixed * 0xD6E8FEB86659FD93) & _MASK

    def probe_passed(self, until: float) -> None:
        self._misses = 0
        self._health, self._health_until = Health.UP, until

    def probe_unclear(self) -> None:
        """Something answers at the address, but not about health: leave the verdict to the breaker."""
        self._misses = 0
        self._health = Health.UNKNOWN

    def probe_missed(self, until: float, *, said_so: bool) -> None:
        """Down after two misses in a row with no answered call between them, or at once if the server says so."""
        self._misses += 1
        if said_so or self._misses >= _MISSES_TO_DOWN:
            self._health, self._health_until = Health.DOWN, until

    def note_load(self, load: EngineLoad, until: float) -> None:
        self._load, self._load_until = load, until

    def note_answer(self) -> None:
        """A real call was answered: a busy server whose health page is slow must not be taken for dead."""
        self._misses = 0

    def end_call(self) -> None:
        self.in_flight -= 1
        if self.in_flight == 0 and self._idle is not None:
            self._idle.set()

    async def idle(self, timeout_s: float) -> bool:
        """Wait until no call is in flight; False if there still is one after the time. For draining replicas only."""
        if self.in_flight == 0:
            return True
        self._idle = self._idle or asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


class Lease:
    """A slot of one replica, held for one call.

    Ends through the first of `succeed`, `fail`, `release`; any later one does nothing, so a `finally: lease.release()`
    is safe. Ending frees the slot, tells the breaker and wakes the next waiter; none of it blocks.
    """

    __slots__ = (
        "_ended",
        "_now",
        "_on_end",
        "_permit",
        "first_output_at",
        "queue_s",
        "rank",
        "replica",
        "started_at",
    )

    def __init__(
        self,
        replica: Replica,
        permit: Permit,
        *,
        rank: int,
        started_at: float,
        queue_s: float,
        now: Callable[[], float],
        on_end: Callable[[Lease], None],
    ) -> None:
        self.replica = replica
        self.rank = rank
        """Place of its latency class, from 0 for the most urgent."""
        self.started_at = started_at
        self.first_output_at: float | None = None
        """When the call was confirmed before its end, as a streamed one is."""
        self.queue_s = queue_s
        """Seconds spent in the pool's queue."""
        self._permit = permit
        self._now = now
        self._on_end = on_end
        self._ended = False

    def confirm(self) -> None:
        """The answer has begun: the replica works, though the call goes on.

        Call it at the first content of a stream, or a trial call would keep a recovered replica to itself until the
        last token. A later `fail` still counts.
        """
        if not self._ended:
            now = self._now()
            if self.first_output_at is None:
                self.first_output_at = now
            self._answered(now)

    def succeed(self) -> None:
        """The call was answered in full."""
        if not self._ended:
            self._answered(self._now())
            self._end()

    def fail(self, failure: Failure, retry_after_s: float | None = None) -> None:
        """The call failed; the breaker decides whether that says anything about the replica."""
        if not self._ended:
            self.replica.breaker.record_failure(self._permit, self._now(), failure, retry_after_s)
            self._end()

    def release(self) -> None:
        """The call ended without a verdict on the replica: cancelled, or never sent."""
        if not self._ended:
            self.replica.breaker.release(self._permit)
            self._end()

    def _answered(self, now: float) -> None:
        self._permit = self.replica.breaker.record_success(self._permit, now)
        self.replica.note_answer()

    def _end(self) -> None:
        self._ended = True
        self._on_end(self)
