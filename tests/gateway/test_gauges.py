"""What /metrics says of pools."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from llmrouter.backends.echo import EchoBackend
from llmrouter.backends.pool import Pool
from llmrouter.backends.waiting import Ticket
from llmrouter.config import PoolConfig
from llmrouter.gateway.gauges import pool_gauges
from llmrouter.gateway.slots import MetricSlots, clear_slots, render_slots
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


def test_what_an_earlier_gateway_was_doing_is_over(tmp_path):
    """It had more workers than the next one, and was killed in the middle of its calls."""
    busy: dict[str, list[list[Any]]] = {"llmrouter_active_requests": [[7]], "llmrouter_replica_up": [["small", "e", 0]]}
    for slot in range(3):
        earlier = Metrics()
        earlier.refused(429, "rate_limit_exceeded")
        MetricSlots(tmp_path, slot, earlier).publish(busy)
    assert "llmrouter_workers 3.0" in render_slots(tmp_path).decode().splitlines()
    clear_slots(tmp_path)
    idle: dict[str, list[list[Any]]] = {"llmrouter_active_requests": [[0]], "llmrouter_replica_up": [["small", "e", 1]]}
    lines = MetricSlots(tmp_path, 0, Metrics()).render(idle).decode().splitlines()
    assert "llmrouter_workers 1.0" in lines
    assert "llmrouter_active_requests 0.0" in lines
    assert 'llmrouter_replica_up{pool="small",replica="e"} 1.0' in lines
    assert 'llmrouter_refused_total{code="rate_limit_exceeded",status="429"} 3.0' in lines


def test_a_slot_of_an_older_release_is_counted_as_far_as_it_goes(tmp_path):
    MetricSlots(tmp_path, 0, Metrics()).publish({"llmrouter_active_requests": [[1]]})
    path = tmp_path / "worker-0.json"
    found = json.loads(path.read_text())
    del found["metrics"]["counters"]["llmrouter_refused"], found["metrics"]["histograms"]["llmrouter_ttft_seconds"]
    path.write_text(json.dumps(found))
    assert "llmrouter_active_requests 1.0" in render_slots(tmp_path).decode().splitlines()
