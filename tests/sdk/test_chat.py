"""The official asynchronous SDK against a whole gateway in front of scripted engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from llmrouter.testing import Answer, DialectName, FakeBackend, Hang, Held, HttpError, Signal, Step, ToolCall, usage
from tests.gateway.rig import MESSAGES, one, sdk, two
from tests.support import Running, running

ABLE = """capabilities = ["tools", "vision", "json_object", "json_schema", "logprobs", "n", "reasoning", "completions",
    "embeddings", "engine_fields"]"""
DIALECTS = pytest.mark.parametrize("dialect", ["vllm", "llama_cpp", "openai"])
WEATHER = ToolCall("weather", '{"city": "Köln", "days": 2}', id="call_w")
TIME = ToolCall("time", '{"zone": "CET"}', id="call_t")


class Weather(BaseModel):
    city: str
    days: int


class Verdict(BaseModel):
    label: Literal["good", "bad"]
    score: float


@asynccontextmanager
async def client_of(
    folder: Path, *steps: Step, dialect: DialectName = "vllm", **options: Any
) -> AsyncIterator[tuple[Any, Running, FakeBackend]]:
    async with (
        FakeBackend(*steps, dialect=dialect) as engine,
        running(one(engine, models=ABLE), folder) as gateway,
        sdk(gateway, **options) as client,
    ):
        yield client, gateway, engine


@DIALECTS
async def test_create(tmp_path, dialect):
    async with client_of(tmp_path, Answer("Paris", usage=usage(9, 1, cached=4)), dialect=dialect) as (
        client,
        gateway,
        _,
    ):
        answer = await client.chat.completions.create(model="auto", messages=MESSAGES, temperature=0.2, seed=1)
        (entry,) = gateway.books()
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Paris", "stop")
    assert (answer.object, answer.model, answer.choices[0].message.role) == ("chat.completion", "auto", "assistant")
    assert (answer.usage.total_tokens, answer.usage.prompt_tokens_details.cached_tokens) == (10, 4)
    assert answer._request_id == entry.request_id
    assert answer.choices[0].message.tool_calls is None


@DIALECTS
async def test_create_with_a_stream(tmp_path, dialect):
    async with client_of(tmp_path, Answer("one two three"), dialect=dialect) as (client, _, _):
        stream = await client.chat.completions.create(
            model="auto", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "one two three"
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == [3]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {chunk.model for chunk in chunks} == {"auto"}


@DIALECTS
async def test_the_stream_helper_tells_every_event(tmp_path, dialect):
    async with client_of(tmp_path, Answer("one two"), dialect=dialect) as (client, _, _):
        options = {"include_usage": True}
        async with client.chat.completions.stream(model="auto", messages=MESSAGES, stream_options=options) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_completion()
    assert [event.delta for event in events if event.type == "content.delta" and event.delta] == ["one", " two"]
    assert [event.content for event in events if event.type == "content.done"] == ["one two"]
    assert (final.choices[0].message.content, final.usage.completion_tokens) == ("one two", 2)


@DIALECTS
async def test_parallel_tools_and_the_turn_after_them(tmp_path, dialect):
    tools = [openai.pydantic_function_tool(Weather, name="weather")]
    tools.append({"type": "function", "function": {"name": "time", "parameters": {}}})
    steps = (Answer(tool_calls=(WEATHER, TIME)), Answer("It rains"))
    async with client_of(tmp_path, *steps, dialect=dialect) as (client, _, engine):
        asked = await client.chat.completions.create(model="auto", messages=MESSAGES, tools=tools)
        message = asked.choices[0].message
        results = [{"role": "tool", "tool_call_id": call.id, "content": "42"} for call in message.tool_calls]
        turns = [*MESSAGES, message, *results]
        answer = await client.chat.completions.create(model="auto", messages=turns, tools=tools)
    assert asked.choices[0].finish_reason == "tool_calls"
    assert [(call.id, call.function.name) for call in message.tool_calls] == [("call_w", "weather"), ("call_t", "time")]
    assert answer.choices[0].message.content == "It rains"
    sent = engine.calls[1].body["messages"]
    assert [turn["role"] for turn in sent] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in sent[1]["tool_calls"]] == ["call_w", "call_t"]
    assert json.loads(sent[1]["tool_calls"][0]["function"]["arguments"]) == {"city": "Köln", "days": 2}


@DIALECTS
async def test_tools_in_the_stream_helper_are_parsed(tmp_path, dialect):
    tools = [
        openai.pydantic_function_tool(Weather, name="weather"),
        openai.pydantic_function_tool(Verdict, name="rate"),
    ]
    calls = (WEATHER, ToolCall("rate", '{"label": "good", "score": 0.5}', id="call_r"))
    async with (
        client_of(tmp_path, Answer(tool_calls=calls), dialect=dialect) as (client, _, _),
        client.chat.completions.stream(model="auto", messages=MESSAGES, tools=tools) as stream,
    ):
        done = [event async for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = (await stream.get_final_completion()).choices[0].message
    assert [event.name for event in done] == ["weather", "rate"]
    assert [call.function.parsed_arguments for call in final.tool_calls] == [
        Weather(city="Köln", days=2),
        Verdict(label="good", score=0.5),
    ]


@pytest.mark.parametrize("choice", ["required", "none", {"type": "function", "function": {"name": "weather"}}])
async def test_tool_choice_reaches_the_engine(tmp_path, choice):
    tools = [{"type": "function", "function": {"name": "weather"}}]
    async with client_of(tmp_path) as (client, _, engine):
        await client.chat.completions.create(
            model="auto", messages=MESSAGES, tools=tools, tool_choice=choice, parallel_tool_calls=False
        )
    assert (engine.calls[0].body["tool_choice"], engine.calls[0].body["parallel_tool_calls"]) == (choice, False)


@DIALECTS
async def test_structured_output_is_parsed_whole_and_streamed(tmp_path, dialect):
    step = Answer('{"label": "good", "score": 0.9}')
    async with client_of(tmp_path, step, step, dialect=dialect) as (client, _, engine):
        parsed = await client.chat.completions.parse(model="auto", messages=MESSAGES, response_format=Verdict)
        async with client.chat.completions.stream(model="auto", messages=MESSAGES, response_format=Verdict) as stream:
            final = await stream.get_final_completion()
    assert parsed.choices[0].message.parsed == Verdict(label="good", score=0.9)
    assert final.choices[0].message.parsed == Verdict(label="good", score=0.9)
    assert {call.body["response_format"]["type"] for call in engine.calls} == {"json_schema"}
    assert engine.calls[0].body["response_format"]["json_schema"]["name"] == "Verdict"


async def test_a_cut_structured_answer_is_a_length_error_and_a_filtered_one_a_filter_error(tmp_path):
    cut = Answer('{"label": "good", "score": 0.9}')
    steps = (cut, cut, Answer("I", finish_reason="content_filter"))
    async with client_of(tmp_path, *steps) as (client, _, _):
        create = {"model": "auto", "messages": MESSAGES, "response_format": Verdict}
        with pytest.raises(openai.LengthFinishReasonError):
            await client.chat.completions.parse(**create, max_tokens=2)
        with pytest.raises(openai.LengthFinishReasonError):
            async with client.chat.completions.stream(**create, max_tokens=2) as stream:
                await stream.get_final_completion()
        with pytest.raises(openai.ContentFilterFinishReasonError):
            await client.chat.completions.parse(**create)


@DIALECTS
async def test_logprobs_whole_and_streamed(tmp_path, dialect):
    asked: dict[str, Any] = {"model": "auto", "messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    step = Answer("one two", logprobs=(-0.1, -2.0))
    async with client_of(tmp_path, step, step, dialect=dialect) as (client, _, _):
        whole = (await client.chat.completions.create(**asked)).choices[0].logprobs.content
        async with client.chat.completions.stream(**asked) as stream:
            final = (await stream.get_final_completion()).choices[0].logprobs.content
    for entries in (whole, final):
        assert [(entry.token, entry.logprob) for entry in entries] == [("one", -0.1), (" two", -2.0)]
        assert [len(entry.top_logprobs) for entry in entries] == [2, 2]


@DIALECTS
async def test_two_choices_whole_and_streamed(tmp_path, dialect):
    step = Answer(("a b", "c d e"))
    async with client_of(tmp_path, step, step, dialect=dialect) as (client, _, _):
        whole = await client.chat.completions.create(model="auto", messages=MESSAGES, n=2)
        async with client.chat.completions.stream(model="auto", messages=MESSAGES, n=2) as stream:
            final = await stream.get_final_completion()
    for answer in (whole, final):
        assert [choice.message.content for choice in answer.choices] == ["a b", "c d e"]
        assert [choice.index for choice in answer.choices] == [0, 1]


async def test_the_raw_response_has_the_headers(tmp_path):
    async with client_of(tmp_path) as (client, gateway, engine):
        raw = await client.chat.completions.with_raw_response.create(model="auto", messages=MESSAGES)
        answer = raw.parse()
        (entry,) = gateway.books()
    assert raw.request_id == raw.headers["x-request-id"] == entry.request_id
    assert engine.calls[0].header("x-request-id") == entry.request_id
    assert (raw.headers["x-llmrouter-model"], raw.headers["x-llmrouter-tier"]) == ("s", "auto")
    assert float(raw.headers["x-llmrouter-cost-usd"]) == float(entry.cost_usd) > 0
    assert answer.choices[0].message.content == "Hi"


async def test_the_streaming_response_gives_raw_lines(tmp_path):
    async with client_of(tmp_path, Answer("one")) as (client, _, _):
        create = client.chat.completions.with_streaming_response.create
        async with create(model="auto", messages=MESSAGES, stream=True) as response:
            lines = [line async for line in response.iter_lines() if line]
    assert (lines[-1], len(lines)) == ("data: [DONE]", 4)
    assert response.headers["cache-control"] == "no-cache, no-transform"


async def test_multimodal_turns_and_extra_fields_reach_the_engine(tmp_path):
    turns = [
        {"role": "developer", "content": "be brief"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk=", "detail": "low"}},
            ],
        },
    ]
    async with client_of(tmp_path) as (client, _, engine):
        await client.chat.completions.create(
            model="auto",
            messages=turns,
            reasoning_effort="low",
            metadata={"team": "dev"},
            extra_body={"top_k": 5, "something_new": [1]},
            extra_headers={"x-llmrouter-intent": "vision"},
        )
    sent = engine.calls[0].body
    assert sent["messages"] == turns
    assert (sent["reasoning_effort"], sent["top_k"], sent["something_new"]) == ("low", 5, [1])


@pytest.mark.parametrize(("dialect", "name"), [("vllm", "reasoning"), ("llama_cpp", "reasoning_content")])
async def test_reasoning_is_kept_under_the_engines_own_name(tmp_path, dialect, name):
    step = Answer("four", reasoning="two and two")
    async with client_of(tmp_path, step, step, dialect=dialect) as (client, _, _):
        whole = await client.chat.completions.create(model="auto", messages=MESSAGES)
        stream = await client.chat.completions.create(model="auto", messages=MESSAGES, stream=True)
        deltas = [chunk.choices[0].delta async for chunk in stream]
    assert whole.choices[0].message.model_extra[name] == "two and two"
    assert "".join((delta.model_extra or {}).get(name) or "" for delta in deltas) == "two and two"


async def test_completions_whole_and_streamed(tmp_path):
    async with client_of(tmp_path, Answer("a b"), Answer("a b")) as (client, _, _):
        whole = await client.completions.create(model="auto", prompt="x", max_tokens=5)
        stream = await client.completions.create(model="auto", prompt="x", stream=True)
        texts = [chunk.choices[0].text async for chunk in stream]
    assert (whole.choices[0].text, whole.object, whole.usage.completion_tokens) == ("a b", "text_completion", 2)
    assert "".join(texts) == "a b"


@pytest.mark.parametrize("encoding", [None, "float", "base64"])
async def test_embeddings_in_every_encoding(tmp_path, encoding):
    wishes = {} if encoding is None else {"encoding_format": encoding}
    async with client_of(tmp_path) as (client, _, engine):
        answer = await client.embeddings.create(model="auto", input=["one", "two"], dimensions=4, **wishes)
    # The SDK asks for base64 by itself and unpacks it.
    assert engine.calls[0].body["encoding_format"] == (encoding or "base64")
    assert [entry.index for entry in answer.data] == [0, 1]
    assert answer.usage.prompt_tokens == 2
    if encoding != "base64":
        assert [len(entry.embedding) for entry in answer.data] == [4, 4]


async def test_closing_a_stream_early_ends_the_call_upstream(tmp_path):
    step = Hang(Answer("one two three"), after=2)
    async with client_of(tmp_path, step) as (client, gateway, engine):
        stream = await client.chat.completions.create(model="auto", messages=MESSAGES, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content == "one":
                break
        await stream.close()
        await engine.calls[0].disconnected.wait(1.0)
        (entry,) = await gateway.settled(1)
    assert (entry.status, entry.aborted) == (499, True)


async def test_leaving_the_stream_helper_ends_the_call_upstream(tmp_path):
    step = Hang(Answer("one two three"), after=2)
    async with client_of(tmp_path, step) as (client, gateway, engine):
        async with client.chat.completions.stream(model="auto", messages=MESSAGES) as stream:
            async for event in stream:
                if event.type == "content.delta" and event.delta == "one":
                    break
        await engine.calls[0].disconnected.wait(1.0)
        (entry,) = await gateway.settled(1)
    assert entry.aborted


async def test_many_requests_share_the_clients_connections(tmp_path):
    gate = Signal()
    steps = [Held(gate, Answer(f"answer {number}"), after="headers") for number in range(20)]
    async with client_of(tmp_path, *steps) as (client, _, engine):
        asked = [asyncio.create_task(client.chat.completions.create(model="auto", messages=MESSAGES)) for _ in steps]
        await engine.until(lambda: engine.in_flight == 20)
        gate.set()
        answers = await asyncio.gather(*asked)
        assert len({answer.choices[0].message.content for answer in answers}) == 20
        for _ in range(5):
            await client.chat.completions.create(model="auto", messages=MESSAGES)
        assert engine.connections_made == 20


async def test_a_fallback_is_invisible_but_for_its_headers(tmp_path):
    async with (
        FakeBackend(default=HttpError(500)) as small,
        FakeBackend(default=Answer("from large")) as large,
        running(two(small, large), tmp_path) as gateway,
        sdk(gateway) as client,
    ):
        raw = await client.chat.completions.with_raw_response.create(model="auto", messages=MESSAGES)
        async with client.chat.completions.stream(model="auto", messages=MESSAGES) as stream:
            final = await stream.get_final_completion()
    assert raw.headers["x-llmrouter-model"] == "l"
    assert raw.parse().choices[0].message.content == final.choices[0].message.content == "from large"
    assert (raw.parse().model, final.model) == ("auto", "auto")
