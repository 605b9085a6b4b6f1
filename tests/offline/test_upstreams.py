"""Calls of configured models for batches: answers, retries, and what is told of a failure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llmrouter.config import parse
from llmrouter.errors import ConfigError
from llmrouter.offline.upstreams import CallFailed, Completion, Upstreams
from llmrouter.testing import Answer, BrokenJson, FakeBackend, Held, HttpError, Json, Reset, Signal
from llmrouter.types import ChatRequest
from tests.support import model, pool, tier

ASK = ChatRequest(
    "chat",
    "m",
    {"messages": [{"role": "user", "content": "hi there"}], "logprobs": True},
    max_output_tokens=9,
    text_bytes=8,
    last_user_text="hi there",
)


async def called(url: str, more: str = "", paused: list[float] | None = None) -> Completion:
    """One call of a model at that address."""
    config = parse("\n".join([model("m"), pool("m", [url]), more, tier("auto", small="m")]))

    async def sleep(seconds: float) -> None:
        if paused is not None:
            paused.append(seconds)

    upstreams = Upstreams.of(config, ["m"], sleep=sleep)
    try:
        return await upstreams.complete("m", ASK)
    finally:
        await upstreams.aclose()


async def test_an_answer_comes_with_usage_and_log_probabilities():
    async with FakeBackend(Answer("hello you", logprobs=(-0.5,))) as engine:
        done = await called(engine.url)
    assert (done.texts, done.finish) == (("hello you",), ("stop",))
    assert (done.usage.output_tokens, done.usage.estimated) == (2, False)
    assert [entry["logprob"] for entry in done.logprobs] == [-0.5, -0.5]
    assert engine.calls[0].request.fields["max_tokens"] == 9


async def test_tokens_that_the_engine_does_not_tell_are_estimated():
    async with FakeBackend(Answer("hello you", usage={})) as engine:
        done = await called(engine.url)
    assert (done.usage.input_tokens, done.usage.output_tokens, done.usage.estimated) == (2, 3, True)


async def test_a_busy_engine_is_asked_again_after_the_pause_it_wants():
    paused: list[float] = []
    async with FakeBackend(HttpError(429, retry_after_ms=None, headers={"retry-after": "7"}), Answer("ok")) as engine:
        done = await called(engine.url, paused=paused)
    assert (done.texts, paused) == (("ok",), [7.0])


@pytest.mark.parametrize("fault", [HttpError(503), BrokenJson(Answer("x")), Reset(Answer("x")), Json({"choices": []})])
async def test_what_may_pass_is_tried_again_with_growing_pauses(fault: Any):
    paused: list[float] = []
    async with FakeBackend(fault, fault, fault, Answer("ok")) as engine:
        done = await called(engine.url, paused=paused)
    assert (done.texts, paused) == (("ok",), [0.5, 1.0, 2.0])


async def test_it_gives_up_after_a_few_tries_and_says_why():
    async with FakeBackend(*[HttpError(503, message="no room")] * 4) as engine:
        with pytest.raises(CallFailed, match=r"m/0: HTTP 503: no room"):
            await called(engine.url)
    assert len(engine.calls) == 4


async def test_a_refusal_is_not_repeated():
    async with FakeBackend(HttpError(400, message="too long")) as engine:
        with pytest.raises(CallFailed, match="HTTP 400: too long"):
            await called(engine.url)
    assert len(engine.calls) == 1


async def test_an_echo_pool_answers_by_itself():
    config = parse("\n".join([model("m"), '[pools.m]\nmodel = "m"\napi = "echo"', tier("auto", small="m")]))
    done = await Upstreams.of(config, ["m"]).complete("m", ASK)
    assert done.texts == ("hi there",)


async def test_a_pool_gets_no_more_calls_at_once_than_it_takes():
    release = Signal()
    async with FakeBackend(*[Held(release, Answer("ok"))] * 5) as engine:
        text = "\n".join([model("m"), pool("m", [engine.url]) + "\nmax_concurrency = 2", tier("auto", small="m")])
        upstreams = Upstreams.of(parse(text), ["m"])
        calls = [asyncio.create_task(upstreams.complete("m", ASK)) for _ in range(5)]
        await engine.until(lambda: engine.in_flight == 2)
        assert len(engine.calls) == 2
        release.set()
        assert len(await asyncio.gather(*calls)) == 5
        await upstreams.aclose()


def test_a_runner_that_is_not_started_and_a_model_without_pool_are_refused():
    runner = '[pools.m]\nmodel = "m"\nrunner = { kind = "llama_cpp", model = "smollm2-135m" }'
    config = parse("\n".join([model("m"), model("other"), runner, tier("auto", small="m")]))
    with pytest.raises(ConfigError, match=r"pools\.m: its runner has not been started"):
        Upstreams.of(config, ["m"])
    with pytest.raises(ConfigError, match="'other' has no pool"):
        Upstreams.of(config, ["other"])
