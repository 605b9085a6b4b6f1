"""The way of one request through a whole gateway, in front of scripted engines."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path

from llmrouter.testing import Answer, FakeBackend, HttpError, fold_chunks, parse_sse, usage
from tests.support import model, pool, running, tier


async def test_a_plain_answer_is_delivered_and_booked(tmp_path: Path):
    async with FakeBackend(Answer("Paris", usage=usage(100, 20))) as small:
        text = model("s", usd_in="1", usd_out="2") + pool("s", [small.url]) + tier("auto", small="s")
        async with running(text, tmp_path) as gateway:
            answer = await gateway.chat("Capital of France?")
            assert answer.status_code == 200
            assert answer.json()["choices"][0]["message"]["content"] == "Paris"
            assert answer.json()["model"] == "auto"
            assert answer.headers["x-llmrouter-model"] == "s"
            (entry,) = gateway.books()
    assert (entry.model_id, entry.status, entry.finish) == ("s", 200, "stop")
    assert (entry.usage.input_tokens, entry.usage.output_tokens) == (100, 20)
    assert entry.cost_usd == Decimal("0.000140")


async def test_a_stream_folds_to_the_same_answer_as_the_whole(tmp_path: Path):
    async with (
        FakeBackend(default=Answer("one two three")) as small,
        running(model("s") + pool("s", [small.url]) + tier("auto", small="s"), tmp_path) as gateway,
    ):
        whole = (await gateway.chat()).json()
        streamed = await gateway.chat(stream=True, stream_options={"include_usage": True})
    folded = fold_chunks(parse_sse(streamed.content))
    assert folded["choices"][0]["message"]["content"] == whole["choices"][0]["message"]["content"]
    assert folded["usage"] == whole["usage"]


async def test_a_failing_small_model_is_replaced_by_the_large_one(tmp_path: Path):
    async with FakeBackend(default=HttpError(500)) as small, FakeBackend(Answer("from large")) as large:
        text = model("s") + model("l", usd_in="10", usd_out="20") + pool("s", [small.url]) + pool("l", [large.url])
        async with running(text + tier("auto", small="s", large="l"), tmp_path) as gateway:
            answer = await gateway.chat()
            assert answer.json()["choices"][0]["message"]["content"] == "from large"
            assert answer.headers["x-llmrouter-reason"] == "fallback:server_error"
            (entry,) = gateway.books()
    assert [(attempt.model_id, attempt.outcome) for attempt in entry.attempts] == [
        ("s", "server_error"),
        ("s", "server_error"),
        ("l", "ok"),
    ]


async def test_a_client_that_never_sends_its_body_gives_its_place_back(tmp_path: Path):
    text = "[server]\nmax_concurrent_requests = 1\nbody_timeout_s = 0.05\n"
    async with (
        FakeBackend(Answer("fine")) as small,
        running(text + model("s") + pool("s", [small.url]) + tier("auto", small="s"), tmp_path) as gateway,
    ):
        host, port = gateway.root.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.key}\r\n"
        writer.write(f"{head}content-length: 100\r\n\r\n".encode() + b'{"model":')
        refusal = await reader.readline()
        writer.close()
        answer = await gateway.chat()
    assert b" 408 " in refusal
    assert answer.status_code == 200
