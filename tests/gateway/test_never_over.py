"""Several worker processes and hundreds of clients against small limits: never over, and nothing leaks."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path

import httpx
import pytest

from llmrouter.ledger.queries import totals
from llmrouter.testing import Answer, FakeBackend, Hang, Slow, usage
from tests.gateway.test_serve_process import Served, body, children, one_model, served

pytestmark = pytest.mark.process

_CLIENTS = 300
_RATE, _BURST, _SLOTS = 1200, 100, 20
_BUDGET = Decimal("0.02")

_LIMITS = f"""
[tenants.default.limits]
requests_per_minute = {_RATE}
requests_burst = {_BURST}
concurrent_requests = {_SLOTS}
usd_per_day = "{_BUDGET}"
"""


async def storm(gateway: Served, answers: list[httpx.Response], stop_s: float, *, leaving: bool) -> None:
    """Hundreds of clients at once; with `leaving` half of them are gone before their answer."""
    until = time.monotonic() + stop_s

    async def client(http: httpx.AsyncClient, number: int) -> None:
        while time.monotonic() < until:
            patience = 0.03 if leaving and number % 2 else 10.0
            try:
                answers.append(
                    await http.post(
                        "/v1/chat/completions", json=body(max_tokens=20, stream=number % 3 == 0), timeout=patience
                    )
                )
            except httpx.TransportError:
                continue
            if answers[-1].status_code == 429:
                await asyncio.sleep(0.05)

    limits = httpx.Limits(max_connections=_CLIENTS)
    async with httpx.AsyncClient(
        base_url=gateway.base_url, headers={"authorization": f"Bearer {gateway.key}"}, limits=limits, verify=False
    ) as http:
        await asyncio.gather(*(client(http, number) for number in range(_CLIENTS)))


async def test_three_workers_and_hundreds_of_clients_stay_within_every_limit(tmp_path: Path):
    answer = Slow(Answer("one two three", usage=usage(10, 20)), between_chunks_s=0.01)
    async with FakeBackend(default=answer) as engine:
        async with served(tmp_path, one_model(engine.url) + _LIMITS, workers=3) as gateway:
            answers: list[httpx.Response] = []
            began = time.monotonic()
            loading = asyncio.create_task(storm(gateway, answers, 8.0, leaving=False))
            await engine.until(lambda: len(engine.calls) > 60)
            os.kill(children(gateway.process.pid)[0], signal.SIGKILL)
            await loading
            took_s = time.monotonic() - began
            statuses = Counter(answer.status_code for answer in answers)
            admitted = len({call.header("x-request-id") for call in engine.calls})
            most_at_once = engine.max_in_flight
            (total,) = totals(gateway.store)
        assert set(statuses) <= {200, 429, 503}, statuses
        assert statuses[200] > 50
        assert statuses[429] > 50
        assert admitted <= _BURST + _RATE * took_s / 60
        assert most_at_once <= _SLOTS
        assert total.cost_usd <= _BUDGET


async def test_no_capacity_is_lost_in_a_storm_of_cancels_time_outs_and_a_killed_worker(tmp_path: Path):
    limits = f"[tenants.default.limits]\nconcurrent_requests = {_SLOTS}\ntokens_per_minute = 100000000\n"
    text = one_model("{url}").replace("probe_interval_s", "timeouts.first_byte_s = 0.3\nprobe_interval_s")
    async with FakeBackend(default=Hang()) as engine:
        text = text.replace("{url}", engine.url) + "[pools.s.breaker]\nfailures = 100000\n"
        async with served(tmp_path, text + limits, workers=2) as gateway:
            loading = asyncio.create_task(storm(gateway, [], 4.0, leaving=True))
            await engine.until(lambda: len(engine.calls) > 40)
            os.kill(children(gateway.process.pid)[0], signal.SIGKILL)
            await loading
            engine.default = Slow(Answer("fine"), before_headers_s=0.5)
            async with gateway.client() as http, asyncio.timeout(20):
                while True:
                    calls = [http.post("/v1/chat/completions", json=body(), timeout=10) for _ in range(_SLOTS)]
                    statuses = Counter(answer.status_code for answer in await asyncio.gather(*calls))
                    if statuses == {200: _SLOTS}:
                        break
                    await asyncio.sleep(0.5)
