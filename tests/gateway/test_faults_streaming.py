"""Faults of streams, through a whole gateway: what clients see of good and of bad streams."""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

import openai
import pytest

from llmrouter.testing import (
    Answer,
    BlackHole,
    BrokenJson,
    Cut,
    Dribble,
    ErrorInside,
    FakeBackend,
    Gzip,
    Hang,
    Held,
    HttpError,
    LineEnds,
    NotHttp,
    RawSse,
    Reset,
    Signal,
    SplitData,
    Step,
    ToolCall,
    Truncate,
    WithLines,
    WithoutDone,
    WithoutFinalBlankLine,
    WithoutSpace,
    fold_chunks,
    parse_sse,
    usage,
)
from tests.gateway.rig import MESSAGES, ONCE, PATIENT, Wire, named, one, sdk, two
from tests.support import Running, model, pool, running, tier
from tests.testing.raw import fetch

USAGE = {"stream_options": {"include_usage": True}}
WEATHER = ToolCall("weather", '{"city": "Köln", "days": [1, 2]}')
TIME = ToolCall("time", '{"zone": "CET"}')
DIALECTS = pytest.mark.parametrize("dialect", ["vllm", "llama_cpp", "openai"])


async def streamed(gateway: Running, **fields: Any) -> list[Any]:
    """The events of one stream, read strictly."""
    answer = await gateway.chat(stream=True, **fields)
    assert answer.status_code == 200, answer.text
    return parse_sse(answer.content)


def said(events: list[Any]) -> str:
    content: str = fold_chunks(events)["choices"][0]["message"]["content"]
    return content


@DIALECTS
@pytest.mark.parametrize("usage_in", ["asked", "always", "with_choice", "every"])
async def test_g002_usage_is_always_asked_upstream_and_shown_only_to_clients_that_asked(tmp_path, dialect, usage_in):
    answer = Answer("one two", usage_in=usage_in)
    async with FakeBackend(default=answer, dialect=dialect) as engine, running(one(engine), tmp_path) as gateway:
        plain = await streamed(gateway)
        declined = await streamed(gateway, stream_options={"include_usage": False})
        asked = await streamed(gateway, **USAGE)
        entries = gateway.books()
    assert all(call.request.include_usage for call in engine.calls)
    for *chunks, end in (plain, declined):
        assert end == "[DONE]"
        assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)
    *chunks, last, end = asked
    assert end == "[DONE]"
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 2)
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert [entry.usage.output_tokens for entry in entries] == [2, 2, 2]
    assert not any(entry.usage.estimated for entry in entries)


async def test_g005_usage_on_a_last_chunk_with_an_empty_delta_keeps_its_details(tmp_path):
    answer = Answer("one two", usage=usage(300, 2, cached=256), usage_in="with_choice")
    async with FakeBackend(answer) as engine, running(one(engine), tmp_path) as gateway:
        *_, last, _ = await streamed(gateway, **USAGE)
        (entry,) = gateway.books()
    assert last["usage"] == usage(300, 2, cached=256)
    assert (entry.usage.input_tokens, entry.usage.cached_tokens) == (300, 256)


@pytest.mark.parametrize(
    "primary",
    [
        ErrorInside({"message": "overloaded", "code": 503}, Answer("one"), after=1),
        Reset(Answer("one"), after=1),
        Truncate(Answer("one"), after=1),
        RawSse(b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'),
    ],
    ids=["error inside", "reset", "truncated", "nothing more"],
)
async def test_g008_a_preamble_commits_nothing(tmp_path, primary):
    """Role chunks go out only with content, so that two failures are still a plain JSON error."""
    async with (
        FakeBackend(primary) as small,
        FakeBackend(HttpError(503)) as large,
        running(two(small, large), tmp_path) as gateway,
    ):
        answer = await gateway.chat(stream=True)
        (entry,) = gateway.books()
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/json")
    assert answer.json()["error"]["code"] == "no_capacity"
    assert b"data:" not in answer.content
    assert [attempt.model_id for attempt in entry.attempts] == ["s", "l"]
    assert (entry.status, entry.model_id) == (503, None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (Reset(after="request"), 502, "upstream_error"),
        (Reset(after="headers"), 502, "upstream_error"),
        (Truncate(after="headers"), 502, "upstream_error"),
        (NotHttp(), 502, "upstream_error"),
        (BrokenJson(), 502, "upstream_error"),
        (HttpError(500), 502, "upstream_error"),
        (HttpError(401), 502, "upstream_error"),
        (HttpError(404), 502, "upstream_error"),
        (HttpError(503), 503, "no_capacity"),
        (HttpError(504), 504, "upstream_timeout"),
        (Hang(after="request"), 504, "upstream_timeout"),
        (Hang(after="headers"), 504, "upstream_timeout"),
    ],
    ids=named,
)
async def test_g012_a_failing_engine_is_an_error_status_of_ours(tmp_path, fault, status, code, stream):
    pools = PATIENT + ("timeouts.first_byte_s = 0.1\n" if isinstance(fault, Hang) else "")
    async with FakeBackend(fault) as engine, running(one(engine, pools=pools), tmp_path) as gateway:
        answer = await gateway.chat(stream=stream)
        (entry,) = gateway.books()
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert answer.headers["x-should-retry"] == ("true" if status == 503 else "false")
    assert (entry.status, entry.error_code, len(entry.attempts)) == (status, code, 1)


async def test_g012_an_engine_that_cannot_be_connected_to_is_a_502_that_cost_nothing(tmp_path):
    async with FakeBackend() as engine:
        gone = engine.url
    with BlackHole() as hole:
        pools = PATIENT + "timeouts.connect_s = 0.1\n"
        text = model("s") + pool("s", [gone], extra=pools) + tier("auto", small="s", extra=ONCE)
        text += model("l") + pool("l", [hole.url], extra=pools) + tier("slow", small="l", extra=ONCE)
        async with running(text, tmp_path) as gateway:
            refused, silent = await gateway.chat(), await gateway.chat(tier="slow")
            entries = gateway.books()
    assert (refused.status_code, silent.status_code) == (502, 502)
    assert [entry.attempts[0].outcome for entry in entries] == ["connect", "connect"]
    assert [entry.usage.input_tokens for entry in entries] == [0, 0]


@pytest.mark.parametrize(
    "fault", [Reset(after="headers"), Truncate(after=0), Truncate(after=1), BrokenJson()], ids=named
)
async def test_g013_a_stream_that_breaks_before_its_first_output_is_replaced(tmp_path, fault):
    async with (
        FakeBackend(fault) as small,
        FakeBackend(Answer("from large")) as large,
        running(two(small, large), tmp_path) as gateway,
    ):
        answer = await gateway.chat(stream=True)
    assert said(parse_sse(answer.content)) == "from large"
    assert (answer.headers["x-llmrouter-model"], answer.headers["x-llmrouter-attempts"]) == ("l", "2")


async def read(client: Any, **fields: Any) -> str:
    """The text of a stream as the SDK gives it."""
    stream = await client.chat.completions.create(model="auto", messages=MESSAGES, stream=True, **fields)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def events_of(answer: Step) -> tuple[bytes, ...]:
    """The events that an engine writes for an answer, usage and `[DONE]` included."""
    async with FakeBackend(answer) as engine:
        _, _, raw = await fetch(engine, stream=True, **USAGE)
    return tuple(event + b"\n\n" for event in raw.split(b"\n\n")[:-1])


@pytest.mark.parametrize("cut", ["truncated", "reset", "ended in order", "error inside"])
async def test_g014_every_cut_of_a_stream_is_an_error_to_the_sdk(tmp_path, cut):
    """Also one before the first output, and, where the connection breaks, one between the finish and `[DONE]`."""
    answer = Answer("one two three")
    events = await events_of(answer)
    before_finish = range(len(events) - 3)
    steps: dict[str, list[Step]] = {
        "truncated": [Truncate(answer, after=count) for count in range(len(events))],
        "reset": [Reset(answer, after=count) for count in range(len(events))],
        "ended in order": [RawSse(events[: count + 1]) for count in before_finish],
        "error inside": [ErrorInside({"message": "broke"}, answer, after=count + 1) for count in before_finish],
    }
    async with FakeBackend(*steps[cut]) as engine, running(one(engine), tmp_path) as gateway:
        async with sdk(gateway) as client:
            for _ in steps[cut]:
                with pytest.raises(openai.APIError):
                    await read(client)
        entries = gateway.books()
    assert [entry.status for entry in entries] == [502] * len(steps[cut])
    # An error that arrives together with the first output still commits nothing.
    assert cut == "error inside" or entries[0].model_id == "s"


async def test_g014_an_end_without_done_is_an_end_once_every_choice_has_finished(tmp_path):
    async with FakeBackend(WithoutDone(Answer("one two"))) as engine, running(one(engine), tmp_path) as gateway:
        events = await streamed(gateway, **USAGE)
    assert (said(events), events[-1]) == ("one two", "[DONE]")


async def test_g014_a_broken_stream_is_told_and_booked_with_what_was_seen(tmp_path):
    gate = Signal()
    step = ErrorInside({"message": "the engine ran out of memory", "code": 500}, Answer("one two three"), after=3)
    async with (
        FakeBackend(Held(gate, step, after=3)) as engine,
        running(one(engine), tmp_path) as gateway,
        Wire(gateway) as client,
    ):
        await client.ask(stream=True)
        await client.headers()
        raw = b""
        async for block in client.chunks():
            raw += block
            if b" two" in block:
                gate.set()
        *chunks, error = parse_sse(raw)
        (entry,) = gateway.books()
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks] == ["", "one", " two"]
    assert error["error"]["type"] == "server_error"
    assert "the engine ran out of memory" in error["error"]["message"]
    assert (entry.status, entry.error_code, entry.finish, entry.aborted) == (502, "upstream_error", None, False)
    assert (entry.usage.output_tokens, entry.usage.estimated) == (2, True)


@pytest.mark.parametrize("step", [Answer("one two"), Gzip(Answer("one two"))], ids=["plain", "gzip upstream"])
async def test_g015_streams_are_never_encoded_and_say_that_nobody_may_buffer_them(tmp_path, step):
    async with FakeBackend(step) as engine, running(one(engine), tmp_path) as gateway:
        answer = await gateway.chat(stream=True, headers={"accept-encoding": "gzip, deflate, br"})
    assert said(parse_sse(answer.content)) == "one two"
    assert "content-encoding" not in answer.headers
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert answer.headers["x-accel-buffering"] == "no"
    assert engine.calls[0].header("accept-encoding") == "identity"


async def test_g016_silence_after_the_commit_point_is_filled_with_comments_and_before_it_with_nothing(tmp_path):
    gate, ended = Signal(), Signal()
    steps = (Held(ended, Answer("late"), after="headers"), *2 * [Held(gate, Answer("one two"), after=2)])
    text = "[server]\nkeepalive_comment_s = 0.02\n"
    async with (
        FakeBackend(*steps) as engine,
        running(text + one(engine), tmp_path) as gateway,
        sdk(gateway) as client,
        Wire(gateway) as uncommitted,
        Wire(gateway) as committed,
    ):
        await uncommitted.ask(stream=True)
        await engine.call(1)
        await committed.ask(stream=True)
        await engine.call(2)
        reading = asyncio.create_task(read(client))
        await engine.call(3)
        await committed.until(b": keep-alive\n\n\r\n")
        await committed.until(b": keep-alive\n\n\r\n")
        gate.set()
        assert b"[DONE]" in await committed.until(b"0\r\n\r\n")
        assert await reading == "one two"
        ended.set()
        await uncommitted.headers()
        first = await anext(uncommitted.chunks())
    assert first.startswith(b'data: {"id"')


@pytest.mark.parametrize("shown", [1, 2, 3])
async def test_g017_a_token_is_sent_on_before_the_next_one_is_there(tmp_path, shown):
    gate = Signal()
    async with (
        FakeBackend(Held(gate, Answer("a b c d"), after=1 + shown)) as engine,
        running(one(engine), tmp_path) as gateway,
        Wire(gateway) as client,
    ):
        await client.ask(stream=True)
        seen = await client.until(b'"content":" b"' if shown == 2 else b'"content":"a"' if shown == 1 else b'" c"')
        assert b'finish_reason":"' not in seen
        gate.set()
        await client.until(b"[DONE]\n\n")


NOISE = WithLines(
    Answer("one two"), in_each=("id: 7", "event: message"), between=(": ping", "retry: 3000", "event: ping", "id: 8")
)


async def test_g018_lines_that_sdks_choke_on_are_filtered(tmp_path):
    async with FakeBackend(default=NOISE) as engine, running(one(engine), tmp_path) as gateway:
        raw = (await gateway.chat(stream=True)).content
        async with sdk(gateway) as client:
            assert await read(client) == "one two"
    assert said(parse_sse(raw)) == "one two"
    assert {line.partition(b":")[0] for line in raw.split(b"\n") if line} == {b"data"}


async def test_g018_a_last_event_without_its_blank_line_is_delivered_with_one(tmp_path):
    steps = (WithoutFinalBlankLine(WithoutDone(Answer("one"))), WithoutFinalBlankLine(Answer("one")))
    async with FakeBackend(*steps) as engine, running(one(engine), tmp_path) as gateway:
        for _ in steps:
            assert said(await streamed(gateway)) == "one"


def anonymous(raw: bytes) -> bytes:
    """A stream without what differs from call to call."""
    return re.sub(rb'"id":"chatcmpl-[0-9a-f]+"|"created":[0-9]+', b'"it":0', raw)


@pytest.mark.parametrize("row", ["g019 body", "g019 wire", "g020 random"])
async def test_g019_g020_the_place_of_a_cut_changes_no_byte(tmp_path, row):
    answer = Answer(pieces=("北🌍é", " ", "\U0001f9d1\u200d\U0001f680 x"))
    body = b"".join(await events_of(answer))
    rng = random.Random(20)
    cuts: dict[str, list[tuple[int, ...]]] = {
        "g019 body": [(at,) for at in range(body.index("北".encode()) - 2, body.index("é".encode()) + 4)],
        "g019 wire": [(at,) for at in range(300, 420, 7)],
        "g020 random": [tuple(rng.sample(range(1, len(body)), rng.randint(1, 40))) for _ in range(12)],
    }
    steps = [Cut(answer, at, wire=row == "g019 wire") for at in cuts[row]]
    async with FakeBackend(answer, *steps) as engine, running(one(engine), tmp_path) as gateway:
        whole = await gateway.chat(stream=True)
        others = [await gateway.chat(stream=True) for _ in steps]
    assert said(parse_sse(whole.content)) == "北🌍é \U0001f9d1\u200d\U0001f680 x"
    assert {anonymous(other.content) for other in others} == {anonymous(whole.content)}


@pytest.mark.parametrize(
    "wrapped",
    [
        LineEnds(Answer("ä b"), "\r\n"),
        LineEnds(Answer("ä b"), "\r"),
        SplitData(Answer("ä b")),
        WithoutSpace(Answer("ä b")),
        WithLines(Answer("ä b"), in_each=("event: chunk", ": note"), between=(": ping",)),
        WithoutFinalBlankLine(Answer("ä b")),
    ],
    ids=named,
)
async def test_g021_every_legal_spelling_arrives_whole_one_byte_a_read(tmp_path, wrapped):
    async with FakeBackend(Answer("ä b"), Dribble(wrapped)) as engine, running(one(engine), tmp_path) as gateway:
        plain, odd = [anonymous((await gateway.chat(stream=True)).content) for _ in range(2)]
    assert [*parse_sse(odd)] == [*parse_sse(plain)]


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param("duplicate_index", id="g022 duplicate_index"),
        pytest.param("index_once", id="g024 index_once"),
        *(
            pytest.param(shape, id=f"g025 {shape}")
            for shape in ("dense", "whole", "no_index", "repeated_id", "index_from_one", "one_index")
        ),
    ],
)
@DIALECTS
async def test_g022_g024_g025_tool_calls_of_every_shape_fold_to_the_same_two(tmp_path, dialect, shape):
    """As the strict fold sees them and as the SDK's stream helper does."""
    answer = Answer(tool_calls=(WEATHER, TIME), tool_shape=shape)
    tools = [{"type": "function", "function": {"name": name}} for name in ("weather", "time")]
    extra = 'capabilities = ["tools"]'
    async with (
        FakeBackend(default=answer, dialect=dialect) as engine,
        running(one(engine, models=extra), tmp_path) as gateway,
        sdk(gateway) as client,
    ):
        folded = fold_chunks(await streamed(gateway, tools=tools))["choices"][0]
        async with client.chat.completions.stream(model="auto", messages=MESSAGES, tools=tools) as stream:
            final = (await stream.get_final_completion()).choices[0]
    wanted = [("call_0_weather", "weather", WEATHER.arguments), ("call_1_time", "time", TIME.arguments)]
    calls = folded["message"]["tool_calls"]
    assert [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls] == wanted
    assert [(call.id, call.function.name, call.function.arguments) for call in final.message.tool_calls] == wanted
    assert folded["finish_reason"] == final.finish_reason == "tool_calls"
    assert json.loads(calls[0]["function"]["arguments"])["city"] == "Köln"


@DIALECTS
@pytest.mark.parametrize("order", ["first_first", "last_first"])
async def test_g034_choices_begin_in_the_order_of_their_index(tmp_path, dialect, order):
    answer = Answer(("a b", "c d", "e f"), choice_order=order)
    async with (
        FakeBackend(default=answer, dialect=dialect) as engine,
        running(one(engine), tmp_path) as gateway,
        sdk(gateway) as client,
    ):
        folded = fold_chunks(await streamed(gateway, n=3, **USAGE))
        async with client.chat.completions.stream(model="auto", messages=MESSAGES, n=3) as stream:
            final = await stream.get_final_completion()
        entries = gateway.books()
    assert [choice["message"]["content"] for choice in folded["choices"]] == ["a b", "c d", "e f"]
    assert [choice.message.content for choice in final.choices] == ["a b", "c d", "e f"]
    assert [entry.usage.output_tokens for entry in entries] == [6, 6]
    assert folded["usage"]["completion_tokens"] == 6
