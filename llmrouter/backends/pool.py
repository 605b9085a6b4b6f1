"""Chooses a replica for each call of one model, and makes calls wait when the pool is full.

Choice: of two replicas picked at random the less busy one (power of two choices), unless the replica that holds the
prompt's prefix is hardly busier than the mean; then that one. Affinity is a bonus with a bound, so one hot prefix
spills over instead of filling one replica while others idle.

Everything runs on one event loop; a pool belongs to one worker.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Self

from llmrouter.backends.breaker import Breaker, BreakerState
from llmrouter.backends.engine_metrics import EngineLoad
from llmrouter.backends.replica import Health, Lease, Replica
from llmrouter.backends.waiting import Ticket, Waiter, WaitQueue
from llmrouter.config import PoolConfig
from llmrouter.errors import ConfigError, NoCapacity, UsageError
from llmrouter.protocols import Backend

__all__ = ["Health", "Lease", "Pool", "PoolStatus", "Replica", "ReplicaStatus", "choose"]

ANYBODY = Ticket()

_TRIAL_RETRY_S = 1.0
"""Retry hint while a trial call is under way, whose end nobody knows."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    name: str
    base_url: str | None
    health: Health
    breaker: BreakerState
    breaker_opens: int
    retry_in_s: float | None
    """Seconds until the breaker lets a call through; None when it does now."""
    in_flight: int
    draining: bool
    engine: EngineLoad | None
    """The engine's own figures; None when unknown or stale."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A pool at one moment, for /metrics and `doctor`."""

    pool_id: str
    in_flight: int
    max_concurrency: int | None
    queued: int
    max_queue: int
    replicas: tuple[ReplicaStatus, ...]


class Pool:
    """The replicas of one model, with the queue in front of them."""

    def __init__(
        self,
        pool_id: str,
        config: PoolConfig,
        replicas: Sequence[Replica],
        *,
        now: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self.pool_id = pool_id
        self.config = config
        self.now = now
        """The monotonic clock that deadlines, breakers and probes of this pool are told by."""
        self._replicas = tuple(replicas)
        self._rng = rng
        self._queue = WaitQueue(config.max_queue)
        self._in_flight = 0
        self._on_end = self._ended
        _check_names(pool_id, [replica.name for replica in replicas])

    @classmethod
    def with_replicas(
        cls,
        pool_id: str,
        config: PoolConfig,
        backends: Sequence[tuple[Backend, str | None]],
        previous: Self | None = None,
        *,
        now: Callable[[], float],
        rng: random.Random,
    ) -> Self:
        """Make a pool of backends, each with its base address; or, given the previous pool, `reconfigure` that."""
        if previous is None:
            previous = cls(pool_id, config, (), now=now, rng=rng)
        previous.reconfigure(config, backends)
        return previous

    def reconfigure(self, config: PoolConfig, backends: Sequence[tuple[Backend, str | None]]) -> None:
        """Take a new configuration without dropping a call.

        A replica with the same name and address keeps its breaker, calls in flight, health and draining mark; others
        are new. One that is no longer listed gets no new call, and its calls in flight go on. Waiting requests keep
        their place. All or nothing, and nothing to undo it: call it once the whole new configuration is known good.

        Raises:
            ConfigError: two backends have the same name; nothing has changed.
        """
        _check_names(self.pool_id, [backend.name for backend, _ in backends])
        known = {(replica.name, replica.base_url): replica for replica in self._replicas}
        self._replicas = tuple(self._keep(known.get((b.name, url)), config, b, url) for b, url in backends)
        self.config = config
        self._queue.limit = config.max_queue
        self.wake()

    @property
    def replicas(self) -> tuple[Replica, ...]:
        return self._replicas

    def try_acquire(
        self,
        ticket: Ticket = ANYBODY,  # noqa: ARG002 - who asks matters to the order of service, which is the queue's
        *,
        affinity: int | None = None,
        exclude: Collection[str] = (),
    ) -> Lease | None:
        """Take a slot at once; None when the call would have to wait, or nothing is usable (`acquire` says which).

        `affinity` is a hash of the prompt's prefix. `exclude` names replicas to avoid, as a retry does; they are
        taken all the same when no other is usable, so a pool of one replica can be retried.
        """
        if self._full():
            return None
        now = self.now()
        usable = [replica for replica in self._replicas if replica.usable(now)]
        return self._lease(usable, now, affinity, exclude, queued_since=now) if usable else None

    async def acquire(
        self,
        ticket: Ticket = ANYBODY,
        *,
        affinity: int | None = None,
        exclude: Collection[str] = (),
        deadline: float,
    ) -> Lease:
        """Take a slot, waiting in the queue for one if the pool is full.

        Args as for `try_acquire`; `deadline` is the request's own, on the pool's clock. Cancelling the wait leaves
        the queue and loses no slot.

        Raises:
            NoCapacity: no replica is usable (with the soonest time that one may be), the queue is full, or neither
                the queue's time-out nor the deadline left enough time.
        """
        lease = self.try_acquire(ticket, affinity=affinity, exclude=exclude)
        if lease is not None:
            return lease
        now = self.now()
        waiter = Waiter(affinity, exclude, since=now)
        wait_s = min(self.config.queue_timeout_s, deadline - now)
        if not self._any_usable(now):
            raise self._nothing_usable(now)
        if wait_s <= 0:
            raise self._busy("the request's deadline has passed")
        if not self._queue.join(waiter):
            raise self._busy("its queue is full")
        timer = asyncio.get_running_loop().call_later(wait_s, self._expire, waiter)
        try:
            self.wake()
            return await waiter.wait()
        finally:
            timer.cancel()
            self._queue.leave(waiter)

    def wake(self) -> None:
        """Hand free slots to waiters, or send them away if no replica is usable.

        Called after every change, so a slot is never free while somebody waits and no newcomer can overtake.
        """
        while self._queue:
            now = self.now()
            usable = [replica for replica in self._replicas if replica.usable(now)]
            if usable and self._full():
                return
            waiter = self._queue.pop()
            if waiter is None:
                return
            waiter.answer(
                self._lease(usable, now, waiter.affinity, waiter.exclude, queued_since=waiter.since)
                if usable
                else self._nothing_usable(now)
            )

    async def drain(self, name: str, *, grace_s: float) -> bool:
        """Take a replica out in two steps: no new call from now on; gone when its last call or the grace time ends.

        Returns whether all calls ended in time. A repeat waits for the same end.

        Raises:
            UsageError: there is no such replica.
        """
        replica = next((replica for replica in self._replicas if replica.name == name), None)
        if replica is None:
            known = ", ".join(replica.name for replica in self._replicas) or "none"
            raise UsageError(f"pool {self.pool_id!r} has no replica {name!r}; known: {known}")
        replica.draining = True
        self.wake()
        ended = await replica.idle(grace_s)
        self._replicas = tuple(other for other in self._replicas if other is not replica)
        return ended

    def status(self) -> PoolStatus:
        now = self.now()
        return PoolStatus(
            pool_id=self.pool_id,
            in_flight=self._in_flight,
            max_concurrency=self.config.max_concurrency,
            queued=len(self._queue),
            max_queue=self.config.max_queue,
            replicas=tuple(_status(replica, now) for replica in self._replicas),
        )

    def _full(self) -> bool:
        limit = self.config.max_concurrency
        return limit is not None and self._in_flight >= limit

    def _any_usable(self, now: float) -> bool:
        return any(replica.usable(now) for replica in self._replicas)

    def _lease(
        self, usable: list[Replica], now: float, affinity: int | None, exclude: Collection[str], *, queued_since: float
    ) -> Lease:
        if exclude:
            usable = [replica for replica in usable if replica.name not in exclude] or usable
        replica = choose(usable, now, affinity=affinity, slack=self.config.affinity_slack, rng=self._rng)
        permit = replica.breaker.allow(now)
        assert permit, "usable means that the breaker allows"
        replica.in_flight += 1
        self._in_flight += 1
        return Lease(replica, permit, now - queued_since, self.now, self._on_end)

    def _ended(self, replica: Replica) -> None:
        self._in_flight -= 1
        replica.end_call()
        if self._queue:
            self.wake()

    def _expire(self, waiter: Waiter) -> None:
        waiter.answer(self._busy("the request waited too long in its queue"))

    def _busy(self, why: str) -> NoCapacity:
        """By the end of the queue's time-out all who wait now have been served or sent away."""
        return NoCapacity(f"pool {self.pool_id!r} is busy: {why}", retry_after_s=self.config.queue_timeout_s)

    def _nothing_usable(self, now: float) -> NoCapacity:
        waits = [self._usable_in_s(replica, now) for replica in self._replicas if not replica.draining]
        retry_after_s = min(waits, default=self.config.probe_interval_s)
        return NoCapacity(f"pool {self.pool_id!r} has no usable replica", retry_after_s=retry_after_s)

    def _usable_in_s(self, replica: Replica, now: float) -> float:
        at = replica.breaker.retry_at(now)
        wait_s = 0.0 if at is None else at - now or _TRIAL_RETRY_S
        return max(wait_s, self.config.probe_interval_s) if replica.health(now) is Health.DOWN else wait_s

    @staticmethod
    def _keep(old: Replica | None, config: PoolConfig, backend: Backend, base_url: str | None) -> Replica:
        rules = config.breaker
        if old is None:
            breaker = Breaker(
                failures=rules.failures,
                window_s=rules.window_s,
                open_s=rules.open_s,
                max_open_s=rules.max_open_s,
                share=rules.share,
            )
            return Replica(name=backend.name, base_url=base_url, backend=backend, breaker=breaker)
        old.backend = backend
        old.breaker.configure(
            failures=rules.failures,
            window_s=rules.window_s,
            open_s=rules.open_s,
            max_open_s=rules.max_open_s,
            share=rules.share,
        )
        return old


def choose(usable: Sequence[Replica], now: float, *, affinity: int | None, slack: float, rng: random.Random) -> Replica:
    """Pick one of at least one replica.

    With an affinity, the replica of the highest rendezvous weight wins while its load is at most
    `slack * (mean load + 1)`. Otherwise the less busy of two at random: nearly as even as asking all, and no herd
    runs to the one replica whose queue figure is the oldest.
    """
    count = len(usable)
    if count == 1:
        return usable[0]
    if affinity is not None:
        preferred, top, total = usable[0], -1, 0.0
        for replica in usable:
            total += replica.load(now)
            weight = replica.weight(affinity)
            if weight > top:
                preferred, top = replica, weight
        if preferred.load(now) <= slack * (total / count + 1):
            return preferred
    first = int(rng.random() * count)
    second = int(rng.random() * (count - 1))
    one, other = usable[first], usable[second + (second >= first)]
    return one if one.load(now) <= other.load(now) else other


def _check_names(pool_id: str, names: Sequence[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"pools.{pool_id}: two replicas are named {twice!r}")


def _status(replica: Replica, now: float) -> ReplicaStatus:
    at = replica.breaker.retry_at(now)
    return ReplicaStatus(
        name=replica.name,
        base_url=replica.base_url,
        health=replica.health(now),
        breaker=replica.breaker.state(now),
        breaker_opens=replica.breaker.opens,
        retry_in_s=None if at is None else at - now,
        in_flight=replica.in_flight,
        draining=replica.draining,
        engine=replica.engine_load(now),
    )
