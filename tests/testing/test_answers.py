"""What the rig says when it answers well, byte for byte and folded."""

import gzip
import json
import struct
from base64 import b64decode
from typing import Any

import pytest

from llmrouter.testing import (
    Answer,
    Bytes,
    Decide,
    FakeBackend,
    HttpError,
    Json,
    RawSse,
    Text,
    ToolCall,
    event,
    fold_chunks,
    parse_sse,
    usage,
)
from tests.testing.raw import fetch

WEATHER = ToolCall("weather", '{"city": "Köln"}')
TIME = ToolCall("time", '{"zone": "CET"}')


async def stream(backend: FakeBackend, **fields: Any) -> list[Any]:
    status, headers, body = await fetch(backend, stream=True, **fields)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    return parse_sse(body)


async def test_the_default_answer_echoes_the_last_user_message():
    async with FakeBackend() as backend:
        status, headers, body = await fetch(backend)
    assert (status, headers["content-type"]) == (200, "application/json")
    message = json.loads(body)["choices"][0]["message"]
    assert (message["role"], message["content"]) == ("assistant", "one two three")


async def test_vllm_bytes_of_a_stream():
    async with FakeBackend(Answer("hi you")) as backend:
        _, _, body = await fetch(backend, stream=True, stream_options={"include_usage": True})
    opening = '{"id":"chatcmpl-fake-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":'
    nothing, _finish = '"logprobs":null,"finish_reason":null', '"logprobs":null,"finish_reason":"stop"'
    assert body.decode().split("\n\n") == [
        f'data: {opening}[{{"index":0,"delta":{{"role":"assistant","content":""}},{nothing}}}]}}',
        f'data: {opening}[{{"index":0,"delta":{{"content":"hi"}},{nothing},"token_ids":null}}]}}',
        f'data: {opening}[{{"index":0,"delta":{{"content":" you"}},{nothing},"token_ids":null}}]}}',
        (
            f'data: {opening}[{{"index":0,"delta":{{"content":""}},"logprobs":null,"finish_reason":"stop",'
            '"stop_reason":null,"token_ids":null}]}'
        ),
        f'data: {opening}[],"usage":{{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2}}}}',
        "data: [DONE]",
        "",
    ]


async def test_llama_cpp_bytes_of_a_stream():
    """As recorded from the engine: choices first, a null first content, an empty last delta."""
    async with FakeBackend(Answer("hi"), dialect="llama_cpp") as backend:
        _, _, body = await fetch(backend, stream=True, stream_options={"include_usage": True})
    closing = (
        '"created":1700000000,"id":"chatcmpl-fake-1","model":"m","system_fingerprint":"b0-fake",'
        '"object":"chat.completion.chunk"'
    )
    nothing = '{"finish_reason":null,"index":0,"delta":'
    assert body.decode().split("\n\n") == [
        f'data: {{"choices":[{nothing}{{"role":"assistant","content":null}}}}],{closing}}}',
        f'data: {{"choices":[{nothing}{{"content":"hi"}}}}],{closing}}}',
        f'data: {{"choices":[{{"finish_reason":"stop","index":0,"delta":{{}}}}],{closing}}}',
        (
            f'data: {{"choices":[],{closing},"usage":{{"completion_tokens":1,"prompt_tokens":3,"total_tokens":4,'
            '"prompt_tokens_details":{"cached_tokens":0}}}'
        ),
        "data: [DONE]",
        "",
    ]


async def test_openai_bytes_of_a_stream():
    async with FakeBackend(Answer("hi"), dialect="openai") as backend:
        _, _, body = await fetch(
            backend, stream=True, stream_options={"include_usage": True, "include_obfuscation": False}
        )
    opening = (
        '{"id":"chatcmpl-fake-1","object":"chat.completion.chunk","created":1700000000,"model":"m",'
        '"service_tier":"default","system_fingerprint":"fp_fake","choices":'
    )
    nothing = '"logprobs":null,"finish_reason":null}],"usage":null'
    assert body.decode().split("\n\n")[:3] == [
        f'data: {opening}[{{"index":0,"delta":{{"role":"assistant","content":"","refusal":null}},{nothing}}}',
        f'data: {opening}[{{"index":0,"delta":{{"content":"hi"}},{nothing}}}',
        f'data: {opening}[{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"stop"}}],"usage":null}}',
    ]
    assert parse_sse(body)[3]["usage"]["total_tokens"] == 4


async def test_openai_pads_chunks_unless_told_not_to_and_indents_plain_bodies():
    async with FakeBackend(dialect="openai") as backend:
        chunks = await stream(backend)
        _, _, body = await fetch(backend)
    assert all(chunk["obfuscation"] and "usage" not in chunk for chunk in chunks[:-1])
    assert body.startswith(b'{\n  "id": "chatcmpl-fake-2",\n')


@pytest.mark.parametrize("dialect", ["vllm", "llama_cpp", "openai"])
async def test_a_stream_folds_to_the_plain_answer(dialect):
    answer = Answer("eins zwei", reasoning="think hard", extra={"metadata": {"k": "v"}})
    wishes = {"logprobs": True, "top_logprobs": 2}
    async with FakeBackend(answer, answer, dialect=dialect) as backend:
        folded = fold_chunks(await stream(backend, stream_options={"include_usage": True}, **wishes))
        plain = json.loads((await fetch(backend, **wishes))[2])
    assert folded["usage"] == plain["usage"]
    assert folded["metadata"] == {"k": "v"}
    assert folded["choices"][0]["logprobs"] == {k: v or [] for k, v in plain["choices"][0]["logprobs"].items()}
    told = {name: value for name, value in plain["choices"][0]["message"].items() if value}
    assert {name: value for name, value in folded["choices"][0]["message"].items() if value} == told


@pytest.mark.parametrize("dialect", ["vllm", "llama_cpp", "openai"])
async def test_tool_calls_stream_in_fragments_that_fold_to_the_plain_calls(dialect):
    answer = Answer(tool_calls=(WEATHER, TIME))
    async with FakeBackend(answer, answer, dialect=dialect) as backend:
        chunks = await stream(backend)
        plain = json.loads((await fetch(backend))[2])["choices"][0]
    folded = fold_chunks(chunks)["choices"][0]
    assert len(chunks) > 8
    assert folded["message"]["tool_calls"] == plain["message"]["tool_calls"]
    assert [call["function"]["arguments"] for call in folded["message"]["tool_calls"]] == [
        WEATHER.arguments,
        TIME.arguments,
    ]
    assert folded["finish_reason"] == plain["finish_reason"] == "tool_calls"
    assert plain["message"]["content"] is None


async def test_usage_comes_only_when_asked():
    async with FakeBackend() as backend:
        unasked = await stream(backend)
        asked = await stream(backend, stream_options={"include_usage": True})
    assert not any("usage" in chunk for chunk in unasked[:-1])
    assert [chunk["choices"] for chunk in asked[:-1] if "usage" in chunk] == [[]]


@pytest.mark.parametrize(
    ("usage_in", "include", "places"),
    [
        ("always", False, [[]]),
        ("with_choice", True, [[{"index": 0, "delta": {}}]]),
        ("with_choice", False, []),
    ],
)
async def test_usage_in_other_places(usage_in, include, places):
    answer = Answer("a b", usage=usage(9, 2, cached=8), usage_in=usage_in)
    async with FakeBackend(answer) as backend:
        chunks = await stream(backend, stream_options={"include_usage": include})
    told = [chunk for chunk in chunks[:-1] if "usage" in chunk]
    assert [chunk["choices"] for chunk in told] == places
    assert all(chunk["usage"]["prompt_tokens_details"] == {"cached_tokens": 8} for chunk in told)


async def test_running_usage_on_every_chunk_ends_in_the_whole():
    async with FakeBackend(Answer("a b c", usage_in="every")) as backend:
        chunks = (await stream(backend))[:-1]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 3
    assert chunks[-1]["choices"] == []


async def test_an_engine_may_never_report_usage():
    async with FakeBackend(default=Answer("x", usage={})) as backend:
        chunks = await stream(backend, stream_options={"include_usage": True})
        plain = json.loads((await fetch(backend))[2])
    assert not any("usage" in chunk for chunk in [plain, *chunks[:-1]])


async def test_usage_is_sent_as_given_even_when_it_cannot_be_right():
    odd = usage(10, 1, cached=900)
    async with FakeBackend(Answer("x", usage=odd)) as backend:
        assert json.loads((await fetch(backend))[2])["usage"] == odd


async def test_n_choices_take_turns_and_may_have_texts_of_their_own():
    answer = Answer(("a b", "c d"))
    async with FakeBackend(answer, answer) as backend:
        chunks = await stream(backend, n=2)
        plain = json.loads((await fetch(backend, n=2))[2])
    assert [chunk["choices"][0]["index"] for chunk in chunks[:-1]] == [0, 1] * 4
    assert [choice["message"]["content"] for choice in fold_chunks(chunks)["choices"]] == ["a b", "c d"]
    assert [choice["message"]["content"] for choice in plain["choices"]] == ["a b", "c d"]


async def test_g034_a_stream_may_begin_with_choice_1():
    async with FakeBackend(Answer("a", choice_order="last_first")) as backend:
        chunks = await stream(backend, n=2)
    assert [chunk["choices"][0]["index"] for chunk in chunks[:2]] == [1, 0]


async def test_llama_cpp_counts_usage_a_choice_and_begins_with_the_last():
    """As recorded from the engine: with n = 2 each choice ends in a usage chunk of its own, before the others end."""
    async with FakeBackend(Answer(("a b c", "d")), dialect="llama_cpp") as backend:
        chunks = await stream(backend, n=2, stream_options={"include_usage": True})
    shape = [chunk["choices"][0]["index"] if chunk["choices"] else "usage" for chunk in chunks[:-1]]
    assert shape == [1, 0, 1, 0, 1, 0, "usage", 0, 0, "usage"]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks[:-1] if "usage" in chunk] == [1, 3]


async def test_a_given_usage_is_sent_once_even_where_the_engine_counts_each_choice():
    async with FakeBackend(Answer("a", usage=usage(7, 9)), dialect="llama_cpp") as backend:
        chunks = await stream(backend, n=2, stream_options={"include_usage": True})
    assert [chunk["usage"]["total_tokens"] for chunk in chunks[:-1] if "usage" in chunk] == [16]


async def test_g026_the_cap_counts_reasoning_and_visible_tokens_together():
    answer = Answer("x " * 80, reasoning="y " * 40)
    async with FakeBackend(answer) as backend:
        plain = json.loads((await fetch(backend, max_completion_tokens=50, max_tokens=999))[2])
    assert plain["usage"]["completion_tokens"] == 50
    assert plain["usage"]["completion_tokens_details"] == {"reasoning_tokens": 41}
    assert plain["choices"][0]["finish_reason"] == "length"


async def test_g030_logprobs_come_for_each_token_when_asked_or_are_silently_absent():
    wishes = {"logprobs": True, "top_logprobs": 3}
    given = Answer("a b c", logprobs=(-0.5, -2.0))
    async with FakeBackend(given, given, Answer("a b c", logprobs=())) as backend:
        entries = json.loads((await fetch(backend, **wishes))[2])["choices"][0]["logprobs"]["content"]
        unasked = json.loads((await fetch(backend))[2])["choices"][0]["logprobs"]
        ignored = json.loads((await fetch(backend, **wishes))[2])["choices"][0]["logprobs"]
    assert [entry["logprob"] for entry in entries] == [-0.5, -2.0, -0.5]
    assert [len(entry["top_logprobs"]) for entry in entries] == [3, 3, 3]
    assert (unasked, ignored) == (None, None)


@pytest.mark.parametrize(
    ("shape", "indices", "ids"),
    [
        ("dense", [0, 0, 0, 0, 1, 1, 1, 1], [True, False, False, False] * 2),
        ("whole", [0, 1], [True, True]),
        ("duplicate_index", [0, 0, 0, 0, 1, 1, 1, 1], [True, False, False, False] * 2),
        ("index_once", [0, None, None, None, 1, None, None, None], [True] * 8),
        ("no_index", [None] * 8, [True, False, False, False] * 2),
        ("repeated_id", [0, 0, 0, 0, 1, 1, 1, 1], [True] * 8),
        ("index_from_one", [1, 1, 1, 1, 2, 2, 2, 2], [True, False, False, False] * 2),
        ("one_index", [0] * 8, [True, False, False, False] * 2),
    ],
)
async def test_g022_g024_g025_tool_calls_in_the_shapes_of_the_wild(shape, indices, ids):
    async with FakeBackend(Answer(tool_calls=(WEATHER, TIME), tool_shape=shape)) as backend:
        chunks = await stream(backend)
    lists = [chunk["choices"][0]["delta"].get("tool_calls", []) for chunk in chunks[:-1]]
    entries = [entry for entries in lists for entry in entries]
    assert [entry.get("index") for entry in entries] == indices
    assert ["id" in entry for entry in entries] == ids
    assert max(map(len, lists)) == (2 if shape == "duplicate_index" else 1)


async def test_completions_and_embeddings_answer_in_their_own_form():
    async with FakeBackend() as backend:
        text = json.loads((await fetch(backend, path="/v1/completions", messages=None, prompt="x y"))[2])
        _, _, streamed = await fetch(backend, path="/v1/completions", prompt="x", messages=None, stream=True)
        floats = json.loads((await fetch(backend, path="/v1/embeddings", input=["a", "b"], dimensions=4))[2])
        packed = json.loads(
            (await fetch(backend, path="/v1/embeddings", input="a", dimensions=4, encoding_format="base64"))[2]
        )
    assert (text["object"], text["choices"][0]["text"], text["usage"]["prompt_tokens"]) == ("text_completion", "x y", 2)
    assert [event["choices"][0]["text"] for event in parse_sse(streamed)[:-1]] == ["x", ""]
    assert [len(item["embedding"]) for item in floats["data"]] == [4, 4]
    assert floats["data"][0] != floats["data"][1]
    assert struct.unpack("<4f", b64decode(packed["data"][0]["embedding"])) == pytest.approx(
        floats["data"][0]["embedding"]
    )


async def test_fields_and_headers_of_the_test_are_added():
    answer = Answer(
        "x", model="real", extra={"prompt_text": "p"}, choice_extra={"stop_reason": 7}, headers={"X-A": "b"}
    )
    async with FakeBackend(answer, answer) as backend:
        _, headers, body = await fetch(backend)
        chunks = await stream(backend)
    assert headers["X-A"] == "b"
    assert json.loads(body)["model"] == "real"
    assert all(part["prompt_text"] == "p" for part in [json.loads(body), *chunks[:-1]])
    assert all(part["choices"][0]["stop_reason"] == 7 for part in [json.loads(body), *chunks[:-1]])


async def test_literal_bodies():
    packed = gzip.compress(b"x")
    steps = (
        Json([1], status=418),
        Text("a 1\n"),
        Bytes(packed, content_type="application/gzip"),
        RawSse((event({"a": 1}), b": end\n\n")),
        Decide(lambda request: HttpError(402) if request.header("x-odd") == "Spelling" else Answer()),
    )
    async with FakeBackend(*steps) as backend:
        answers = [await fetch(backend) for _ in steps]
    assert [(status, body) for status, _, body in answers[:4]] == [
        (418, b"[1]"),
        (200, b"a 1\n"),
        (200, packed),
        (200, b'data: {"a":1}\n\n: end\n\n'),
    ]
    assert answers[4][0] == 402
