"""Breakers of two workers on one real Redis."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import redis

from llmrouter.backends.breaker import BreakerState
from llmrouter.backends.breaker_hints import BreakerHints, Hint, RedisHints
from llmrouter.backends.echo import EchoBackend
from llmrouter.backends.pool import Pool
from llmrouter.config import PoolConfig
from llmrouter.errors import StoreUnavailable
from llmrouter.types import Failure


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Shared:
    """Hints in memory, by the one clock of the test."""

    clock: Clock
    noted: dict[tuple[str, str], float] = field(default_factory=dict)
    told: list[Hint] = field(default_factory=list)
    away: bool = False

    async def exchange(self, opened: Sequence[Hint]) -> Sequence[Hint]:
        if self.away:
            raise StoreUnavailable("away")
        self.told += opened
        for hint in opened:
            key = hint.pool_id, hint.replica
            self.noted[key] = max(self.noted.get(key, 0.0), self.clock() + hint.left_s)
        return [Hint(*key, until - self.clock()) for key, until in self.noted.items() if until > self.clock()]

    async def aclose(self) -> None: ...


@dataclass
class Worker:
    pool: Pool
    hints: BreakerHints

    def fail(self, retry_after_s: float | None = None) -> None:
        lease = self.pool.try_acquire()
        assert lease is not None
        lease.fail(Failure.SERVER, retry_after_s)

    def state(self) -> BreakerState:
        return self.pool.replicas[0].breaker.state(self.pool.now())


def worker(clock: Clock, store: Shared | RedisHints) -> Worker:
    config = PoolConfig.model_validate({"model": "small", "api": "echo", "breaker": {"failures": 2, "open_s": 10.0}})
    backends = [(EchoBackend(name="replica-1", model="small"), None)]
    pool = Pool.with_replicas("own", config, backends, now=clock, rng=random.Random(1))
    return Worker(pool, BreakerHints(store, lambda: {"own": pool}))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def shared(clock):
    return Shared(clock)


@pytest.fixture
def pair(clock, shared):
    return worker(clock, shared), worker(clock, shared)


async def test_what_opened_for_one_worker_is_left_alone_by_the_other(pair, clock):
    first, second = pair
    first.fail()
    first.fail()
    await first.hints.exchange()
    assert second.state() is BreakerState.CLOSED
    await second.hints.exchange()
    assert second.state() is BreakerState.OPEN
    assert second.pool.try_acquire() is None
    clock.now += 9.9
    assert second.state() is BreakerState.OPEN
    clock.now += 0.2
    assert second.state() is BreakerState.HALF_OPEN


async def test_a_trial_that_succeeds_closes_a_breaker_that_was_held(pair, clock):
    first, second = pair
    first.fail(retry_after_s=3.0)
    await first.hints.exchange()
    await second.hints.exchange()
    clock.now += 3.1
    lease = second.pool.try_acquire()
    lease.succeed()
    await second.hints.exchange()
    assert second.state() is BreakerState.CLOSED


async def test_a_pause_that_a_hint_began_is_not_told_again(pair, shared, clock):
    first, second = pair
    first.fail()
    first.fail()
    for _ in range(30):
        await first.hints.exchange()
        await second.hints.exchange()
        clock.now += 0.5
    assert len(shared.told) == 1
    assert second.state() is BreakerState.HALF_OPEN
    assert second.pool.replicas[0].breaker.opens == 0


async def test_what_opened_while_the_store_was_away_is_told_when_it_is_back(pair, shared):
    first, second = pair
    first.fail()
    first.fail()
    shared.away = True
    with pytest.raises(StoreUnavailable):
        await first.hints.exchange()
    shared.away = False
    await first.hints.exchange()
    await second.hints.exchange()
    assert second.state() is BreakerState.OPEN


async def test_hints_about_pools_and_replicas_that_are_not_here_are_ignored(pair, shared):
    first, _ = pair
    await shared.exchange([Hint("elsewhere", "replica-1", 5.0), Hint("own", "replica-9", 5.0)])
    await first.hints.exchange()
    assert first.state() is BreakerState.CLOSED


async def test_in_redis_the_longer_of_two_hints_holds_and_goes_when_it_is_over(redis_url):
    store, other = RedisHints(redis_url), RedisHints(redis_url)
    await store.exchange([Hint("own", "replica-1", 30.0), Hint("own", 'http://[::1]:1/"x"', 0.05)])
    hints = await other.exchange([Hint("own", "replica-1", 10.0)])
    found = {hint.replica: hint.left_s for hint in hints}
    assert 29 < found["replica-1"] <= 30
    async with asyncio.timeout(2):
        while len(hints) > 1:
            hints = await other.exchange([])
    assert [hint.replica for hint in hints] == ["replica-1"]
    with redis.Redis.from_url(redis_url) as client:
        assert 0 < client.pttl("llmrouter:{hints}:breakers") <= 30_000
    await store.aclose()
    await other.aclose()


async def test_workers_on_one_redis_warn_each_other_in_the_background(redis_url, clock):
    first, second = worker(clock, RedisHints(redis_url)), worker(clock, RedisHints(redis_url))
    first.fail()
    first.fail()
    for each in (first, second):
        each.hints._every_s = 0.02
        each.hints.start()
    async with asyncio.timeout(3):
        while second.state() is not BreakerState.OPEN:
            await asyncio.sleep(0.01)
    for each in (first, second):
        await each.hints.aclose()


async def test_a_redis_that_is_away_harms_no_breaker(redis_server, clock):
    alone = worker(clock, RedisHints(redis_server.url, timeout_s=0.2, pause_s=0.05))
    redis_server.stop()
    with pytest.raises(StoreUnavailable, match="breaker hints in 127"):
        await alone.hints.exchange()
    assert alone.state() is BreakerState.CLOSED
    redis_server.start()
    async with asyncio.timeout(3):
        while True:
            try:
                await alone.hints.exchange()
            except StoreUnavailable:
                await asyncio.sleep(0.01)
            else:
                break
    await alone.hints.aclose()


def at(url: str, machine: str, shared: Shared, clock: Clock) -> Worker:
    config = PoolConfig.model_validate({"model": "m", "urls": [url], "breaker": {"failures": 1}})
    backend = EchoBackend(name="own/0", model="m")
    pool = Pool.with_replicas("own", config, [(backend, url)], now=clock, rng=random.Random(1))
    return Worker(pool, BreakerHints(shared, lambda: {"own": pool}, machine=machine))


@pytest.mark.parametrize(
    ("url", "heeded"),
    [("http://gpu-1:8000/v1", True), ("http://127.0.0.1:8000/v1", False), ("http://localhost:8000/v1", False)],
)
async def test_a_replica_is_known_by_its_address_and_one_on_loopback_only_to_its_own_machine(url, heeded):
    clock = Clock()
    shared = Shared(clock)
    first, second = at(url, "alpha", shared, clock), at(url, "beta", shared, clock)
    first.fail()
    await first.hints.exchange()
    await second.hints.exchange()
    assert (second.pool.try_acquire() is None) == heeded
