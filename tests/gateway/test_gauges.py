"""What /metrics says of pools."""

from __future__ import annotations

import asyncio
import random

from llmrouter.backends.echo import EchoBackend
from llmrouter.backends.pool import Pool
from llmrouter.backends.waiting import Ticket
from llmrouter.config import PoolConfig
from llmrouter.gateway.gauges import pool_gauges
from llmrouter.gateway.slots import MetricSlots
from llmrouter.telemetry.metrics import Metrics
from llmrouter.testing import HandClock


async def test_calls_and_waiting_requests_are_told_by_pool_and_class_and_summed_over_workers(tmp_path):
    config = PoolConfig.model_validate({"model": "m", "urls": ["http://e/v1"], "max_concurrency": 2})
    backends = [(EchoBackend(name="e", model="m"), None)]
    pool = Pool.with_replicas("small", config, backends, now=HandClock(), rng=random.Random(1))
    held = pool.try_acquire(Ticket("batch"))
    assert held is not None
    waiting = [asyncio.create_task(pool.acquire(Ticket("batch"), deadline=1e9)) for _ in range(3)]
    await asyncio.sleep(0)
    gauges = pool_gauges([pool], active=4)
    MetricSlots(tmp_path, 0, Metrics()).publish(gauges)
    text = MetricSlots(tmp_path, 1, Metrics()).render(gauges).decode()
    for task in waiting:
        task.cancel()
    lines = text.splitlines()
    assert 'llmrouter_pool_in_flight{class="batch",pool="small"} 2.0' in lines
    assert 'llmrouter_pool_queued{class="batch",pool="small"} 6.0' in lines
    assert 'llmrouter_pool_queued{class="interactive",pool="small"} 0.0' in lines
    assert "llmrouter_active_requests 8.0" in lines
