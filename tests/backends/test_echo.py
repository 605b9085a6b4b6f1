"""The backend that needs no engine keeps the same contract as one that has one."""

import json
from typing import Any

import pytest

from llmrouter.backends.echo import EchoBackend
from llmrouter.config import LimitsConfig
from llmrouter.gateway.wire import parse
from llmrouter.protocols import Backend, Reply, Timeouts
from llmrouter.testing import fold_chunks, parse_sse

LIMITS = Timeouts(connect_s=1, first_byte_s=1, between_chunks_s=1, total_s=1)


async def opened(text: str = "one  two\nthree", **fields: Any) -> Reply:
    body = {"model": "auto", "messages": [{"role": "user", "content": text}], **fields}
    request = parse("chat", json.dumps(body).encode(), {}, LimitsConfig())
    backend: Backend = EchoBackend(name="echo-1", model="echo")
    return await backend.open(request, request_id="req_1", timeouts=LIMITS, cache_salt=None)


async def answer(**fields: Any) -> dict[str, Any]:
    reply = await opened(**fields)
    assert reply.status == 200
    value: dict[str, Any] = json.loads(await reply.read())
    return value


async def folded(**fields: Any) -> dict[str, Any]:
    reply = await opened(stream=True, **fields)
    raw = b""
    while block := await reply.next_block():
        raw += block
    return fold_chunks(parse_sse(raw))


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one word": {"text": "hi"},
    "nothing": {"text": ""},
    "capped": {"max_tokens": 1},
    "capped by the other name": {"max_completion_tokens": 2},
    "several": {"n": 3},
    "with logprobs": {"logprobs": True},
    "json": {"response_format": {"type": "json_object"}},
}


@pytest.mark.parametrize("case", CASES)
async def test_the_folded_stream_is_the_whole_answer(case):
    whole = await answer(**CASES[case])
    stream = await folded(**CASES[case])
    for choice in [*whole["choices"], *stream["choices"]]:
        # An empty text streams as nothing at all.
        choice["message"]["content"] = choice["message"]["content"] or ""
    assert stream == whole


async def test_it_says_what_the_user_said():
    assert (await answer())["choices"][0]["message"] == {"role": "assistant", "content": "one  two\nthree"}


async def test_g026_the_cap_counts_words():
    choice = (await answer(max_tokens=1))["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one", "length")
    assert (await answer(max_tokens=3))["choices"][0]["finish_reason"] == "stop"


async def test_usage_counts_all_choices():
    usage = (await answer(n=2, text="a b c"))["usage"]
    assert usage == {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8}


async def test_g030_every_word_has_its_logprob_when_asked():
    told = (await answer(logprobs=True, text="é b"))["choices"][0]["logprobs"]["content"]
    assert [(entry["token"], entry["logprob"], bytes(entry["bytes"]).decode()) for entry in told] == [
        ("é", 0.0, "é"),
        (" b", 0.0, " b"),
    ]


async def test_g030_json_is_json_when_asked():
    answered = await answer(text='say "hi"', response_format={"type": "json_object"})
    assert json.loads(answered["choices"][0]["message"]["content"]) == {"echo": 'say "hi"'}


async def test_a_closed_reply_says_nothing_more():
    reply = await opened(stream=True)
    assert reply.header("retry-after") is None
    reply.close()
    assert await reply.next_block() == b""
    assert await reply.read() == b""


async def test_it_has_a_name_and_closes():
    backend = EchoBackend(name="echo-1", model="echo")
    assert backend.name == "echo-1"
    await backend.aclose()
