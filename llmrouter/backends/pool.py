"""Chooses a replica for each call of one model, and makes calls wait when the pool is full.

Choice: of two replicas picked at random the less busy one (power of two choices), unless the replica that holds the
prompt's prefix is hardly busier than the mean; then that one. Affinity is a bonus with a bound, so one hot prefix
spills over instead of filling one replica while others idle.

Order: whoever waits is served by latency class and tenant (`class_queue`, `tenant_queue`), within the class's share of
the slots (`shares`). A call that cannot be in time, going by how long calls take (`service_times`), is sent away at
once rather than after its wait.

Everything runs on one event loop; a pool belongs to one worker.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from llmrouter.backends.breaker import Breaker, BreakerState
from llmrouter.backends.class_queue import RANKS, ClassQueue
from llmrouter.backends.engine_metrics import EngineLoad
from llmrouter.backends.replica import Health, Lease, Replica
from llmrouter.backends.service_times import ServiceTimes
from llmrouter.backends.shares import Shares
from llmrouter.backends.waiting import Ticket, Waiter
from llmrouter.config import ClassesConfig, PoolConfig
from llmrouter.errors import ConfigError, NoCapacity, UsageError
from llmrouter.protocols import Backend
from llmrouter.types import LatencyClass

__all__ = ["Health", "Lease", "Pool", "PoolStatus", "Replica", "ReplicaStatus", "choose"]

ANYBODY = Ticket()
_CLASSES = ClassesConfig()

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
    in_flight_by_class: Mapping[LatencyClass, int]
    queued_by_class: Mapping[LatencyClass, int]
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
        classes: ClassesConfig = _CLASSES,
    ) -> None:
        self.pool_id = pool_id
        self.config = config
        self.classes = classes
        self.now = now
        """The monotonic clock that deadlines, breakers and probes of this pool are told by."""
        self._replicas = tuple(replicas)
        self._rng = rng
        self._queue = ClassQueue(config.max_queue, classes)
        self._shares = Shares(config.max_concurrency, classes)
        self._times = ServiceTimes()
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
        classes: ClassesConfig = _CLASSES,
    ) -> Self:
        """Make a pool of backends, each with its base address; or, given the previous pool, `reconfigure` that."""
        if previous is None:
            previous = cls(pool_id, config, (), now=now, rng=rng)
        previous.reconfigure(config, backends, classes)
        return previous

    def reconfigure(
        self,
        config: PoolConfig,
        backends: Sequence[tuple[Backend, str | None]],
        classes: ClassesConfig = _CLASSES,
    ) -> None:
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
        self.classes = classes
        self._queue.configure(config.max_queue, classes)
        self._shares.configure(config.max_concurrency, classes)
        self.wake()

    @property
    def replicas(self) -> tuple[Replica, ...]:
        return self._replicas

    def try_acquire(
        self,
        ticket: Ticket = ANYBODY,
        *,
        affinity: int | None = None,
        exclude: Collection[str] = (),
    ) -> Lease | None:
        """Take a slot at once; None when the call would have to wait, or nothing is usable (`acquire` says which).

        `affinity` is a hash of the prompt's prefix. `exclude` names replicas to avoid, as a retry does; they are
        taken all the same when no other is usable, so a pool of one replica can be retried.
        """
        rank = RANKS[ticket.latency_class]
        # Whoever waits beside a free slot is of a less urgent class that may not have it, so nobody is overtaken.
        if rank >= self._shares.open_classes():
            return None
        now = self.now()
        usable = [replica for replica in self._replicas if replica.usable(now)]
        return self._lease(rank, usable, now, affinity, exclude, queued_since=now) if usable else None

    async def acquire(
        self,
        ticket: Ticket = ANYBODY,
        *,
        affinity: int | None = None,
        exclude: Collection[str] = (),
        deadline: float,
    ) -> Lease:
        """Take a slot, waiting in the queue for one if there is none for the ticket's class.

        Args as for `try_acquire`; `deadline` is the moment, on the pool's clock, by which the first output must be
        there. Cancelling the wait leaves the queue and loses no slot.

        Raises:
            NoCapacity: no replica is usable (with the soonest time that one may be), the queue is full, or neither
                the queue's time-out nor the deadline leaves enough time, by the clock or by what is ahead.
        """
        lease = self.try_acquire(ticket, affinity=affinity, exclude=exclude)
        if lease is not None:
            return lease
        now = self.now()
        if not self._any_usable(now):
            raise self._nothing_usable(now)
        patience_s = self._patience_s(ticket, now, deadline)
        waiter = Waiter(ticket, affinity, exclude, since=now, deadline=deadline)
        self._join(waiter)
        timer = asyncio.get_running_loop().call_later(patience_s, self._expire, waiter)
        try:
            self.wake()
            return await waiter.wait()
        finally:
            timer.cancel()
            self._queue.leave(waiter)

    def wake(self) -> None:
        """Hand free slots to waiters, or send them away if no replica is usable.

        Called after every change, so no slot that a waiter may have is ever free and no newcomer can overtake.
        """
        while self._queue:
            now = self.now()
            usable = [replica for replica in self._replicas if replica.usable(now)]
            waiter = self._queue.first(self._shares.open_classes() if usable else len(RANKS))
            if waiter is None:
                return
            refusal = self._too_late(waiter.ticket, now, waiter.deadline) if usable else self._nothing_usable(now)
            if refusal is not None:
                self._queue.leave(waiter)
                waiter.answer(refusal)
                continue
            self._queue.take(waiter)
            rank = RANKS[waiter.ticket.latency_class]
            waiter.answer(self._lease(rank, usable, now, waiter.affinity, waiter.exclude, queued_since=waiter.since))

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
            in_flight=self._shares.in_use,
            max_concurrency=self.config.max_concurrency,
            queued=len(self._queue),
            max_queue=self.config.max_queue,
            in_flight_by_class={name: self._shares.used_by(rank) for name, rank in RANKS.items()},
            queued_by_class={name: self._queue.waiting(rank) for name, rank in RANKS.items()},
            replicas=tuple(_status(replica, now) for replica in self._replicas),
        )

    def _any_usable(self, now: float) -> bool:
        return any(replica.usable(now) for replica in self._replicas)

    def _lease(
        self,
        rank: int,
        usable: list[Replica],
        now: float,
        affinity: int | None,
        exclude: Collection[str],
        *,
        queued_since: float,
    ) -> Lease:
        if exclude:
            usable = [replica for replica in usable if replica.name not in exclude] or usable
        replica = choose(usable, now, affinity=affinity, slack=self.config.affinity_slack, rng=self._rng)
        permit = replica.breaker.allow(now)
        assert permit, "usable means that the breaker allows"
        replica.in_flight += 1
        self._shares.start(rank)
        return Lease(
            replica,
            permit,
            rank=rank,
            started_at=now,
            queue_s=now - queued_since,
            now=self.now,
            on_end=self._on_end,
        )

    def _ended(self, lease: Lease) -> None:
        first = lease.first_output_at
        self._times.note(lease.rank, self.now() - lease.started_at, None if first is None else first - lease.started_at)
        self._shares.end(lease.rank)
        lease.replica.end_call()
        if self._queue:
            self.wake()

    def _patience_s(self, ticket: Ticket, now: float, deadline: float) -> float:
        """How long a newcomer may wait.

        Raises:
            NoCapacity: it would wait for nothing.
        """
        refusal = self._too_late(ticket, now, deadline)
        if refusal is not None:
            raise refusal
        timeout_s = self._timeout_s(ticket)
        first_s = self._times.first_output_s(RANKS[ticket.latency_class]) or 0.0
        longest_s = min(timeout_s, deadline - now - first_s)
        wait_s = self._expected_wait_s(ticket)
        if wait_s is not None and wait_s > longest_s:
            limit = "the queue's time-out" if longest_s == timeout_s else "the request's deadline"
            raise self._busy(ticket, f"the wait of about {wait_s:.1f} s would pass {limit}")
        return min(timeout_s, deadline - now)

    def _too_late(self, ticket: Ticket, now: float, deadline: float) -> NoCapacity | None:
        left_s = deadline - now
        if left_s <= 0:
            return self._busy(ticket, "the request's deadline has passed")
        first_s = self._times.first_output_s(RANKS[ticket.latency_class])
        if first_s is None or first_s <= left_s:
            return None
        return self._busy(
            ticket, f"the request's deadline leaves {left_s:.2g} s and its first output would take {first_s:.2g} s"
        )

    def _expected_wait_s(self, ticket: Ticket) -> float | None:
        """What is ahead of a newcomer times how long it takes, over the slots it is worked on with; None if unknown.

        Rather too short than too long: the turns of those who are yet to come are left out. Where a class may have
        few slots, its own calls ahead must pass through those.
        """
        rank = RANKS[ticket.latency_class]
        slots, own_slots = self._shares.bound(0), self._shares.bound(rank)
        hold_s = self._times.hold_s()
        if hold_s is None or slots is None or own_slots is None:
            return None
        own_ahead, ahead = self._queue.ahead_of(ticket)
        own_hold_s = self._times.hold_s(rank) or 0.0
        return max(ahead * hold_s / slots, own_ahead * own_hold_s / own_slots)

    def _join(self, waiter: Waiter) -> None:
        loser = self._queue.join(waiter)
        if loser is waiter:
            raise self._busy(waiter.ticket, "its queue is full")
        if loser is not None:
            loser.answer(self._busy(loser.ticket, "its queue is full, and the place went to another request"))

    def _expire(self, waiter: Waiter) -> None:
        self._queue.leave(waiter)
        waiter.answer(self._busy(waiter.ticket, "the request waited too long in its queue"))

    def _timeout_s(self, ticket: Ticket) -> float:
        return self.classes.of(ticket.latency_class).queue_timeout_s or self.config.queue_timeout_s

    def _busy(self, ticket: Ticket, why: str) -> NoCapacity:
        """To come back after the wait that is to be expected; without an estimate, after the queue's time-out, by
        whose end all who wait now have been served or sent away."""
        retry_after_s = self._expected_wait_s(ticket) or self._timeout_s(ticket)
        return NoCapacity(f"pool {self.pool_id!r} is busy: {why}", retry_after_s=retry_after_s)

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
