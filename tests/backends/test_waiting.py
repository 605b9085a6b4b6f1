"""The wait itself: one answer, and none lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from llmrouter.backends.echo import EchoBackend
from llmrouter.backends.pool import Lease, Pool
from llmrouter.backends.waiting import Ticket, Waiter
from llmrouter.config import PoolConfig
from llmrouter.errors import NoCapacity
from llmrouter.testing import HandClock


def waiter() -> Waiter:
    return Waiter(Ticket(), None, (), since=0.0, deadline=1.0)


def lease() -> tuple[Pool, Lease]:
    config = PoolConfig.model_validate({"model": "m", "urls": ["http://e/v1"]})
    backends = [(EchoBackend(name="e", model="m"), None)]
    pool = Pool.with_replicas("p", config, backends, now=HandClock(), rng=random.Random(1))
    granted = pool.try_acquire()
    assert granted is not None
    return pool, granted


async def test_the_first_answer_counts():
    pool, granted = lease()
    waiting = waiter()
    waiting.answer(granted)
    waiting.answer(NoCapacity("too late"))
    assert waiting.settled
    assert await waiting.wait() is granted
    assert pool.status().in_flight == 1


async def test_a_refusal_is_raised_where_it_is_waited_for():
    waiting = waiter()
    waiting.answer(NoCapacity("pool is busy"))
    with pytest.raises(NoCapacity, match="pool is busy"):
        await waiting.wait()


@pytest.mark.parametrize("granted_first", [True, False])
async def test_a_lease_that_crosses_with_a_cancellation_is_given_back(granted_first):
    pool, granted = lease()
    waiting = waiter()
    task = asyncio.create_task(waiting.wait())
    await asyncio.sleep(0)
    if granted_first:
        waiting.answer(granted)
        task.cancel()
    else:
        task.cancel()
        assert waiting.settled, "the pool passes it over"
        granted.release()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pool.status().in_flight == 0
