"""What the official SDK makes of the gateway's errors: its classes, its retries, its time-outs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from llmrouter.testing import (
    Answer,
    ErrorInside,
    FakeBackend,
    Hang,
    Held,
    HttpError,
    Reset,
    Signal,
    Slow,
    Step,
    Truncate,
)
from tests.gateway.rig import MESSAGES, one
from tests.servers import free_port
from tests.support import Running, running


@asynccontextmanager
async def counting(
    folder: Path, step: Step, *, more: str = "", **options: Any
) -> AsyncIterator[tuple[Any, Running, list[float], FakeBackend]]:
    """A client, and when it sent each of its requests."""
    sent: list[float] = []

    async def note(_: Any) -> None:
        sent.append(time.monotonic())

    plain = openai.DefaultAsyncHttpxClient(verify=False, event_hooks={"request": [note]})
    async with (
        FakeBackend(default=step) as engine,
        running(one(engine, more=more), folder) as gateway,
        AsyncOpenAI(base_url=gateway.base_url, api_key=gateway.key, http_client=plain, **options) as client,
    ):
        yield client, gateway, sent, engine


async def create(client: Any, **fields: Any) -> Any:
    return await client.chat.completions.create(**{"model": "auto", "messages": MESSAGES, **fields})


CASES: dict[str, tuple[Step, dict[str, Any], type[openai.APIStatusError], int, int]] = {
    "400": (Answer(), {"n": 1000}, openai.BadRequestError, 400, 1),
    "engine's 400": (HttpError(400), {}, openai.BadRequestError, 400, 1),
    "engine's 422": (HttpError(422), {}, openai.BadRequestError, 400, 1),
    "404": (Answer(), {"model": "nobody"}, openai.NotFoundError, 404, 1),
    "413": (Answer(), {"user": "x" * 3000}, openai.APIStatusError, 413, 1),
    "429": (HttpError(429, retry_after_ms=5), {}, openai.RateLimitError, 429, 3),
    "429 for long": (HttpError(429, retry_after_s=600), {}, openai.RateLimitError, 429, 1),
    "502": (HttpError(500), {}, openai.InternalServerError, 502, 1),
    "502 of a reset": (Reset(), {}, openai.InternalServerError, 502, 1),
    "503": (HttpError(503, retry_after_ms=5), {}, openai.InternalServerError, 503, 3),
    "504": (HttpError(504), {}, openai.InternalServerError, 504, 1),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", CASES)
async def test_g077_each_status_is_its_class_and_is_retried_as_often_as_it_should(tmp_path, case, stream):
    """By the SDK's default of two retries; what the gateway has tried in vain itself is not asked for again."""
    step, fields, kind, status, attempts = CASES[case]
    more = "[limits]\nmax_body_bytes = 2048\n"
    async with counting(tmp_path, step, more=more) as (client, _, sent, _):
        with pytest.raises(kind) as caught:
            await create(client, stream=stream, **fields)
    assert caught.value.status_code == status
    assert caught.value.type in ("invalid_request_error", "rate_limit_error", "server_error")
    assert caught.value.code
    assert str(caught.value.request_id).startswith("req_")
    assert len(sent) == attempts


async def test_g077_the_sdk_waits_as_long_as_it_is_told(tmp_path):
    async with counting(tmp_path, HttpError(429, retry_after_ms=120)) as (client, _, sent, _):
        with pytest.raises(openai.RateLimitError):
            await create(client.with_options(max_retries=1))
    assert len(sent) == 2
    assert sent[1] - sent[0] >= 0.12


async def test_g077_a_retry_succeeds_once_the_engine_does(tmp_path):
    async with counting(tmp_path, Answer("at last")) as (client, gateway, sent, engine):
        engine.script(HttpError(429, retry_after_ms=20))
        answer = await create(client)
        entries = gateway.books()
    assert (answer.choices[0].message.content, len(sent)) == ("at last", 2)
    assert [entry.status for entry in entries] == [200, 429]


async def test_keys_and_scopes(tmp_path):
    async with counting(tmp_path, Answer()) as (client, gateway, sent, _):
        with pytest.raises(openai.AuthenticationError) as unknown:
            await create(client.with_options(api_key="sk-nobody"))
        limited = await gateway.new_key(tiers=["other"])
        with pytest.raises(openai.PermissionDeniedError) as forbidden:
            await create(client.with_options(api_key=limited))
    assert (unknown.value.code, forbidden.value.code) == ("invalid_api_key", "model_not_allowed")
    assert len(sent) == 2


async def test_a_gateway_that_is_not_there_is_a_connection_error(tmp_path):
    async with counting(tmp_path, Answer(), max_retries=0) as (client, _, _, _):
        gone = client.with_options(base_url=f"http://127.0.0.1:{free_port()}/v1", timeout=2)
        with pytest.raises(openai.APIConnectionError):
            await create(gone)


@pytest.mark.parametrize("step", [Hang(after="request"), Hang(after="headers")], ids=["headers", "first chunk"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_clients_time_out_ends_the_call_upstream(tmp_path, stream, step):
    """The gateway knows the client's patience; whose time-out is first does not matter."""
    async with counting(tmp_path, step, max_retries=0) as (client, gateway, _, engine):
        with pytest.raises((openai.APITimeoutError, openai.InternalServerError)):
            await create(client.with_options(timeout=0.3), stream=stream)
        await engine.calls[0].disconnected.wait(1.0)
        (entry,) = await gateway.settled(1)
        assert entry.status in (499, 504)
        assert gateway.assembly.pools["s"].status().in_flight == 0


async def test_a_long_stream_outlives_the_read_time_out(tmp_path):
    slow = Slow(Answer("one two three four five"), between_chunks_s=0.2)
    async with counting(tmp_path, slow, max_retries=0) as (client, _, _, _):
        stream = await create(client.with_options(timeout=0.8), stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == "one two three four five"


@pytest.mark.parametrize(
    "step",
    [
        Truncate(Answer("one two"), after=2),
        Reset(Answer("one two"), after=2),
        ErrorInside({"message": "broke", "code": 500}, Answer("one two"), after=2),
        ErrorInside("broke", Answer("one two"), after=2),
    ],
    ids=["truncated", "reset", "error object", "error text"],
)
async def test_g014_a_stream_that_breaks_off_is_an_api_error_and_is_not_repeated(tmp_path, step):
    gate = Signal()
    async with counting(tmp_path, Held(gate, step, after=2)) as (client, _, sent, _):
        stream = await create(client, stream=True)
        seen = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
        gate.set()
        with pytest.raises(openai.APIError, match="the answer broke off") as caught:
            await anext(stream)
    assert seen == ["", "one"]
    assert (caught.value.type, caught.value.code) == ("server_error", "upstream_error")
    assert len(sent) == 1


async def test_g014_the_stream_helper_raises_too(tmp_path):
    async with counting(tmp_path, Truncate(Answer("one two"), after=2)) as (client, _, _, _):
        with pytest.raises(openai.APIError):
            async with client.chat.completions.stream(model="auto", messages=MESSAGES) as stream:
                await stream.get_final_completion()


async def test_a_cancelled_task_ends_the_call_upstream(tmp_path):
    async with counting(tmp_path, Hang(after="request")) as (client, gateway, _, engine):
        asked = asyncio.create_task(create(client))
        await engine.call(1)
        asked.cancel()
        await engine.calls[0].disconnected.wait(1.0)
        (entry,) = await gateway.settled(1)
    assert entry.error_code == "client_cancelled"
