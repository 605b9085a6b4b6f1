"""Clients that leave: whatever the gateway is doing for them ends within a second, and is booked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from llmrouter.testing import Answer, Call, FakeBackend, Hang, Held, HttpError, Signal, Step
from tests.gateway.rig import PATIENT, Wire, one, request, two, until
from tests.support import Running, running

LONG = Answer(" ".join(f"w{position}" for position in range(100)))
ALONE = PATIENT + "max_concurrency = 1\n"
"""A pool with one slot: a lost one would be noticed by the next request."""


@dataclass(frozen=True)
class Phase:
    """Where a request is when its client leaves."""

    small: tuple[Step, ...]
    large: tuple[Step, ...] = ()
    stream: bool = True
    retries: int = 0
    reads: bytes = b""
    """What the client has seen by then."""
    aborted: int | None = 0
    """Which call, of all in order, is under way then; None for none."""
    outcomes: tuple[str, ...] = ("client_cancelled",)
    reached: Callable[[Running], bool] = field(default=lambda _: True)


PHASES = {
    "waiting for the headers of a stream": Phase((Hang(after="request"),)),
    "waiting for the headers": Phase((Hang(after="request"),), stream=False),
    "waiting for the first chunk": Phase((Hang(after="headers"),)),
    "behind the role chunk": Phase((Hang(after=1),)),
    "streaming": Phase((Hang(LONG, after=6),), reads=b"w4"),
    "in the middle of a plain body": Phase((Hang(LONG, after="half"),), stream=False),
    "in a retry": Phase(
        (HttpError(500), Hang(after="request")),
        retries=1,
        aborted=1,
        outcomes=("server_error", "client_cancelled"),
    ),
    "in a fallback": Phase(
        (HttpError(500),), (Hang(after="request"),), aborted=1, outcomes=("server_error", "client_cancelled")
    ),
    "streaming a fallback": Phase(
        (HttpError(500),), (Hang(LONG, after=6),), reads=b"w4", aborted=1, outcomes=("server_error", "client_cancelled")
    ),
    "waiting for a Retry-After": Phase(
        (HttpError(429, retry_after_s=30),),
        (HttpError(429, retry_after_s=20),),
        retries=1,
        aborted=None,
        outcomes=("rate_limited", "rate_limited", "client_cancelled"),
        reached=lambda gateway: not any(pool.status().in_flight for pool in gateway.assembly.pools.values()),
    ),
}


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES)
async def test_g035_g037_g039_leaving_ends_the_call_upstream_and_frees_its_slot(tmp_path, phase, how):
    tier = f"retries = {phase.retries}\nmax_wait_s = 60\n"
    async with (
        FakeBackend(*phase.small) as small,
        FakeBackend(*phase.large) as large,
        running(two(small, large, on=tier, pools=ALONE), tmp_path) as gateway,
    ):
        async with Wire(gateway) as client:
            await client.ask(stream=phase.stream)
            await until(lambda: len(calls(small, large)) == len(phase.outcomes) - (phase.aborted is None))
            await until(lambda: phase.reached(gateway))
            if phase.reads:
                await client.until(phase.reads)
            client.leave(how)
            if phase.aborted is not None:
                await calls(small, large)[phase.aborted].disconnected.wait(1.0)
            (entry,) = await gateway.settled(1)
        await until(lambda: idle(gateway))
        if phase.aborted is not None:
            assert (await gateway.chat()).status_code == 200
    assert (entry.status, entry.error_code, entry.aborted) == (499, "client_cancelled", True)
    assert tuple(attempt.outcome for attempt in entry.attempts) == phase.outcomes


def calls(*engines: FakeBackend) -> list[Call]:
    return [call for engine in engines for call in engine.calls]


def idle(gateway: Running) -> bool:
    """No request and no slot is left over."""
    status = [pool.status() for pool in gateway.assembly.pools.values()]
    return gateway.gateway.active == 0 and not any(one.in_flight or one.queued for one in status)


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_g039_leaving_the_queue_of_a_pool_calls_nobody(tmp_path, how):
    gate = Signal()
    async with (
        FakeBackend(Held(gate, Answer("first"), after=2)) as engine,
        running(one(engine, pools=ALONE), tmp_path) as gateway,
        Wire(gateway) as holder,
        Wire(gateway) as queued,
    ):
        await holder.ask(stream=True)
        await holder.until(b"first")
        await queued.ask()
        await until(lambda: gateway.assembly.pools["s"].status().queued == 1)
        queued.leave(how)
        (entry,) = await gateway.settled(1)
        assert gateway.assembly.pools["s"].status().queued == 0
        gate.set()
        await holder.until(b"[DONE]")
        assert (await gateway.chat("next")).json()["choices"][0]["message"]["content"] == "next"
        assert len(engine.calls) == 2
    assert (entry.status, entry.aborted, entry.usage.input_tokens, float(entry.cost_usd)) == (499, True, 0, 0)
    assert [attempt.outcome for attempt in entry.attempts] == ["client_cancelled"]


async def test_g038_what_was_seen_before_the_client_left_is_booked(tmp_path):
    async with FakeBackend(Hang(LONG, after=11)) as engine, running(one(engine, pools=ALONE), tmp_path) as gateway:
        async with Wire(gateway) as client:
            await client.ask(stream=True)
            await client.until(b"w9")
            client.leave()
            await engine.calls[0].disconnected.wait(1.0)
            (entry,) = await gateway.settled(1)
        await until(lambda: idle(gateway))
    assert (entry.status, entry.error_code, entry.finish) == (499, "client_cancelled", None)
    assert (entry.usage.output_tokens, entry.usage.estimated) == (10, True)
    assert entry.usage.input_tokens > 0
    assert entry.cost_usd > 0
    assert entry.attempts[0].committed


async def test_g035_a_client_that_stops_reading_and_leaves_ends_the_call(tmp_path):
    """The gateway is stuck in a write to it then, and reads no more from the engine either."""
    flood = Answer(pieces=("x" * 65536,) * 400)
    async with FakeBackend(flood) as engine, running(one(engine, pools=ALONE), tmp_path) as gateway:
        async with Wire(gateway) as client:
            await client.ask(stream=True)
            await until(lambda: bool(engine.calls) and engine.calls[0].chunks_sent > 20)
            client.leave("reset")
            await engine.calls[0].disconnected.wait(1.0)
            (entry,) = await gateway.settled(1)
        assert engine.calls[0].chunks_sent < 400
        await until(lambda: idle(gateway))
    assert entry.status == 499


async def test_g037_leaving_in_the_middle_of_the_upload_costs_nothing(tmp_path):
    async with FakeBackend() as engine, running(one(engine, pools=ALONE), tmp_path) as gateway:
        async with Wire(gateway) as client:
            whole = request(gateway, text="x" * 1000)
            client.writer.write(whole[:-10])
            await client.writer.drain()
            await until(lambda: gateway.gateway.active == 1)
            client.leave()
            await until(lambda: idle(gateway))
        assert (gateway.books(), engine.calls) == ([], [])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
async def test_g039_the_other_endpoints_notice_it_too(tmp_path, path):
    fields: dict[str, Any] = {"model": "auto", "prompt": "Hi"} if path == "/v1/completions" else {"input": "Hi"}
    models = 'capabilities = ["completions", "embeddings"]'
    async with (
        FakeBackend(Hang(after="request")) as engine,
        running(one(engine, pools=ALONE, models=models), tmp_path) as gateway,
    ):
        async with Wire(gateway) as client:
            await client.ask(path=path, **fields)
            await engine.call(1)
            client.leave()
            await engine.calls[0].disconnected.wait(1.0)
            (entry,) = await gateway.settled(1)
        await until(lambda: idle(gateway))
    assert (entry.status, entry.endpoint) == (499, path.removeprefix("/v1/"))


async def test_g039_pipelined_requests_are_answered_in_order_and_leaving_ends_the_last(tmp_path):
    async with FakeBackend(Answer("first"), Hang(after=2)) as engine, running(one(engine), tmp_path) as gateway:
        async with Wire(gateway) as client:
            client.writer.write(request(gateway) + request(gateway, stream=True))
            _, _, body = await client.answer()
            assert b'"first"' in body
            await client.until(b"Hi")
            client.leave()
            await engine.calls[1].disconnected.wait(1.0)
            entries = await gateway.settled(2)
        await until(lambda: idle(gateway))
        assert [entry.status for entry in entries] == [499, 200]
        assert len(engine.calls) == 2
