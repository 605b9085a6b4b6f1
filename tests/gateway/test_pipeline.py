"""The way of one request through a whole gateway, in front of scripted engines."""

from __future__ import annotations

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
