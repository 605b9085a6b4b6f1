"""Reservations in Redis: by `RedisLimits`, and by bare loops over the same driver."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import uvloop

from benchmarks.stores.calls import calls
from benchmarks.stores.turns import Turn
from llmrouter.buckets import RATE_UNITS, amount_of, unused_of
from llmrouter.tenancy.redis_limits import RedisLimits
from llmrouter.types import LedgerEntry, Limit, Reservation

__all__ = ["Reserving", "by_incr", "by_leases", "by_script"]

_P50, _P99 = "reserve p50 µs", "reserve p99 µs"
_LEASED = "from the lease"
_TRIPS = "round trips a call"

_Call = tuple[Reservation, LedgerEntry]


@dataclass(frozen=True, slots=True)
class Reserving:
    """What is reserved and settled in one turn."""

    calls: int
    at_once: int
    limits: tuple[Limit, ...]
    lease_s: float = 0.1


def by_leases(url: str, load: Reserving) -> Turn:
    """`RedisLimits`, from its first connection until it is closed.

    Without the grace that it gives other processes after a store has lost its data: here there are none.
    """

    async def run() -> Turn:
        async def spent(_limit: Limit, _window: int) -> int:
            return 0

        limits = RedisLimits(url, "benchmark", spent, lease_s=load.lease_s, grace_s=0.0)

        async def reserve(call: _Call) -> None:
            admission = await limits.reserve(call[0])
            assert admission.exceeded is None

        async def settle(call: _Call) -> None:
            await limits.settle(call[0], call[1].spent())

        turn = await _timed(load, reserve, settle, limits.aclose)
        more = {_LEASED: limits.local / load.calls, _TRIPS: limits.exchanges / load.calls}
        return Turn(turn.calls, turn.seconds, turn.cpu_s, {**turn.figures, **more})

    return _in_empty_store(url, run)


def by_script(url: str, load: Reserving) -> Turn:
    """The naive way: a script for each reservation and another for each settlement, on a connection for each caller."""

    async def run() -> Turn:
        client = _client(url)
        take, give = client.register_script(_TAKE), client.register_script(_GIVE)

        async def reserve(call: _Call) -> None:
            limits = call[0].limits
            amounts = [amount_of(limit, call[0]) for limit in limits]
            given = [part for limit, amount in zip(limits, amounts, strict=True) for part in _terms(limit, amount)]
            assert await take(keys=[_key(limit) for limit in limits], args=given) == 1

        async def settle(call: _Call) -> None:
            limits, spent = call[0].limits, call[1].spent()
            given = [part for limit in limits for part in _terms(limit, unused_of(limit, call[0], spent))]
            await give(keys=[_key(limit) for limit in limits], args=given)

        return _with_trips(await _timed(load, reserve, settle, client.aclose), 2)

    return _in_empty_store(url, run)


def by_incr(url: str, load: Reserving) -> Turn:
    """What a round trip costs at least: INCR for a reservation, DECR for a settlement, of one counter."""

    async def run() -> Turn:
        client = _client(url)

        async def reserve(_: _Call) -> None:
            await client.incr("counter")

        async def settle(_: _Call) -> None:
            await client.decr("counter")

        return _with_trips(await _timed(load, reserve, settle, client.aclose), 2)

    return _in_empty_store(url, run)


_Do = Callable[[_Call], Awaitable[None]]


async def _timed(load: Reserving, reserve: _Do, settle: _Do, close: Callable[[], Awaitable[None]]) -> Turn:
    waiting = iter(calls(load.calls, load.limits, datetime.now(UTC)))
    took: list[float] = []

    async def work() -> None:
        for call in waiting:
            asked = time.perf_counter()
            await reserve(call)
            took.append(time.perf_counter() - asked)
            await settle(call)
            # One that is served from a lease never waits; the others get their turn all the same.
            await asyncio.sleep(0)

    began, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work() for _ in range(load.at_once)))
    await close()
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    return Turn(load.calls, seconds, cpu_s, {_P50: _quantile(took, 0.5) * 1e6, _P99: _quantile(took, 0.99) * 1e6})


def _with_trips(turn: Turn, trips: int) -> Turn:
    return Turn(turn.calls, turn.seconds, turn.cpu_s, {**turn.figures, _TRIPS: float(trips)})


def _in_empty_store(url: str, run: Callable[[], Any]) -> Turn:
    async def emptied() -> Turn:
        client = _client(url)
        await client.flushdb()
        await client.aclose()
        turn: Turn = await run()
        return turn

    return uvloop.run(emptied())


def _client(url: str) -> Any:
    """It has a connection for each who asks at once."""
    from redis.asyncio import Redis

    return Redis.from_url(url)


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[math.ceil(share * len(values)) - 1]


def _key(limit: Limit) -> str:
    return f"naive:{limit.kind}:{limit.scope}"


def _terms(limit: Limit, amount: int) -> tuple[str, int, int]:
    """Kind, most and amount as the naive scripts take them."""
    if limit.burst:
        return "rate", limit.most, amount * RATE_UNITS
    return "sum", limit.most, amount


_TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local after = {}
for i, key in ipairs(KEYS) do
  local kind, most, amount = ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local found = redis.call('HMGET', key, 'value', 'mark')
  local value, mark = tonumber(found[1] or 0), tonumber(found[2] or now)
  local room = most
  if kind == 'rate' then
    value, room = math.max(value - most * (now - mark), 0), most * 60000
  end
  if value + amount > room then
    return 0
  end
  after[i] = value + amount
end
for i, key in ipairs(KEYS) do
  redis.call('HSET', key, 'value', string.format('%.0f', after[i]), 'mark', now)
  redis.call('PEXPIRE', key, 3600000)
end
return 1
"""

_GIVE = """
for i, key in ipairs(KEYS) do
  redis.call('HINCRBY', key, 'value', string.format('%.0f', 0 - tonumber(ARGV[3 * i])))
end
return 1
"""
