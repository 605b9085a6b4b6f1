"""Traffic on a pool in time that only the simulation turns: calls of fixed service times, event after event."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from llmrouter.backends.echo import EchoBackend
from llmrouter.backends.pool import Lease, Pool
from llmrouter.backends.waiting import Ticket
from llmrouter.config import ClassesConfig, PoolConfig
from llmrouter.errors import NoCapacity
from llmrouter.testing import HandClock

__all__ = ["Load", "Served", "Simulation"]

FAR = 1e9


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of calls: who makes them, and how long they take."""

    ticket: Ticket
    service_s: float
    first_output_s: float
    patience_s: float = FAR


@dataclass(slots=True)
class Served:
    """What came of the calls of one load."""

    ttft_s: list[float] = field(default_factory=list)
    started_at: list[float] = field(default_factory=list)
    refused: list[NoCapacity] = field(default_factory=list)
    busy_s: float = 0.0
    """Slot time of calls that ended."""


class Simulation:
    """One pool with a hand-turned clock; its own time-outs never fire, because no real time passes."""

    def __init__(self, *, classes: ClassesConfig | None = None, seed: int = 1, **pool: object) -> None:
        self.clock = HandClock(1000.0)
        config = PoolConfig.model_validate({"model": "m", "urls": ["http://e/v1"], "queue_timeout_s": 3600, **pool})
        self.pool = Pool.with_replicas(
            "p",
            config,
            [(EchoBackend(name="e", model="m"), "http://e/v1")],
            now=self.clock,
            rng=random.Random(seed),
            classes=classes or ClassesConfig(),
        )
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    def backlog(self, load: Load, depth: int) -> Served:
        """Keep so many calls in the pool or waiting for it: whatever ends is replaced at once."""
        served = Served()

        def again() -> None:
            self._spawn(load, served, then=again)

        for _ in range(depth):
            self._at(self.clock(), again)
        return served

    def arrivals(self, load: Load, times: Iterator[float]) -> Served:
        """A call at each of these seconds from now on."""
        served = Served()
        started = self.clock()

        def plan() -> None:
            after_s = next(times, None)
            if after_s is not None:
                self._at(started + after_s, arrive)

        def arrive() -> None:
            self._spawn(load, served)
            plan()

        plan()
        return served

    async def run(self, seconds: float) -> None:
        """Play what happens in so much time from now."""
        until = self.clock() + seconds
        while self._events and self._events[0][0] <= until:
            at, _, happen = heapq.heappop(self._events)
            self.clock.advance(at - self.clock())
            happen()
            # A lease reaches the task that waits for it in a few turns of the loop.
            for _ in range(4):
                await asyncio.sleep(0)
        self.clock.advance(until - self.clock())

    async def stop(self) -> None:
        """Cancel all that waits or is under way."""
        self._events.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _at(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._order), happen))

    def _spawn(self, load: Load, served: Served, then: Callable[[], None] | None = None) -> None:
        task = asyncio.create_task(self._call(load, served, then))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, load: Load, served: Served, then: Callable[[], None] | None) -> None:
        arrived_at = self.clock()
        try:
            lease = await self.pool.acquire(load.ticket, deadline=arrived_at + load.patience_s)
        except NoCapacity as refusal:
            served.refused.append(refusal)
            return
        served.started_at.append(self.clock())
        served.ttft_s.append(self.clock() - arrived_at + load.first_output_s)
        self._at(self.clock() + load.first_output_s, lease.confirm)
        self._at(self.clock() + load.service_s, lambda: self._end(lease, load, served, then))

    def _end(self, lease: Lease, load: Load, served: Served, then: Callable[[], None] | None) -> None:
        served.busy_s += load.service_s
        lease.succeed()
        if then is not None:
            then()
