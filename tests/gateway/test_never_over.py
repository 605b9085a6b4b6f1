"""Several worker processes and hundreds of clients against small limits: never over, and nothing leaks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmrouter.ledger.queries import totals
from llmrouter.testing import Answer, FakeBackend, Hang, Slow, usage
from tests.gateway.test_crash import reserved, rows
from tests.gateway.test_serve_process import Served, body, children, one_model, served
from tests.testing.raw import RawClient

pytestmark = pytest.mark.process

_CLIENTS = 300
_RATE, _BURST, _SLOTS = 1200, 150, 20
_BUDGET = Decimal("0.02")

_LIMITS = f"""
[tenants.default.limits]
requests_per_minute = {_RATE}
requests_burst = {_BURST}
concurrent_requests = {_SLOTS}
usd_per_day = "{_BUDGET}"
"""


def request(gateway: Served, **fields: Any) -> bytes:
    raw = json.dumps(body(max_tokens=20, **fields)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {gateway.key}\r\n"
    return f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


async def storm(gateway: Served, seconds: float, *, leaving: bool) -> Counter[int]:
    """Hundreds of clients at once, each on a connection of its own; the statuses of all whole answers.

    With `leaving`, half of the clients hang up before their answer, again and again.
    """
    until = time.monotonic() + seconds
    port = int(gateway.base_url.rpartition(":")[2])
    statuses: Counter[int] = Counter()

    async def client(number: int) -> None:
        patience_s = 0.05 if leaving and number % 2 else 4.0
        sent = request(gateway, stream=number % 3 == 0)
        while time.monotonic() < until:
            try:
                async with RawClient(port) as connection:
                    while time.monotonic() < until:
                        connection.writer.write(sent)
                        status, _, _ = await asyncio.wait_for(connection.answer(), patience_s)
                        statuses[status] += 1
                        if status == 429:
                            await asyncio.sleep(0.1)
            except (TimeoutError, OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.01)

    await asyncio.gather(*(client(number) for number in range(_CLIENTS)))
    return statuses


async def test_three_workers_and_hundreds_of_clients_stay_within_every_limit(tmp_path: Path):
    """One worker is killed in the middle; what it held stays taken until its calls are booked."""
    answer = Slow(Answer("one two three", usage=usage(10, 20)), between_chunks_s=0.01)
    async with (
        FakeBackend(default=answer) as engine,
        served(tmp_path, one_model(engine.url) + _LIMITS, workers=3) as gateway,
    ):
        began = time.monotonic()
        loading = asyncio.create_task(storm(gateway, 8.0, leaving=False))
        await engine.until(lambda: len(engine.calls) > 100, timeout_s=20)
        most_before_the_kill = engine.max_in_flight
        os.kill(children(gateway.process.pid)[0], signal.SIGKILL)
        statuses = await loading
        took_s = time.monotonic() - began
        seen = {str(call.header("x-request-id")) for call in engine.calls}
        async with asyncio.timeout(20):
            while reserved(gateway.store):
                await asyncio.sleep(0.1)
        booked = {request_id: code for request_id, code, _ in rows(gateway.store)}
        (total,) = totals(gateway.store)
    assert set(statuses) <= {200, 429}, statuses
    assert statuses[200] > 150
    assert statuses[429] > 500
    assert len(seen) <= _BURST + _RATE * took_s / 60
    # Afterwards the engine may still count a call whose process is dead.
    assert most_before_the_kill <= _SLOTS
    # A call that was reserved and died before the engine saw it is in the books alone.
    assert seen <= set(booked)
    assert {booked[request_id] for request_id in booked.keys() - seen} <= {"unknown"}
    assert total.cost_usd <= _BUDGET


async def test_no_capacity_is_lost_in_a_storm_of_cancels_time_outs_and_a_killed_worker(tmp_path: Path):
    limits = f"[tenants.default.limits]\nconcurrent_requests = {_SLOTS}\ntokens_per_minute = 100000000\n"
    patience = "timeouts.first_byte_s = 0.3\nbreaker.failures = 1000000\n"
    async with FakeBackend(default=Hang()) as engine:
        text = one_model(engine.url).replace("probe_interval_s", f"{patience}probe_interval_s")
        async with served(tmp_path, text + limits, workers=2) as gateway:
            loading = asyncio.create_task(storm(gateway, 4.0, leaving=True))
            await engine.until(lambda: len(engine.calls) > 60, timeout_s=20)
            os.kill(children(gateway.process.pid)[0], signal.SIGKILL)
            await loading
            engine.default = Slow(Answer("fine"), before_headers_s=0.2)
            async with gateway.client() as http, asyncio.timeout(30):
                statuses: Counter[int] = Counter()
                while statuses != {200: _SLOTS}:
                    calls = [http.post("/v1/chat/completions", json=body()) for _ in range(_SLOTS)]
                    try:
                        statuses = Counter(answer.status_code for answer in await asyncio.gather(*calls))
                    except httpx.TransportError:
                        continue
