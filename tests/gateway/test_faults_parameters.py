"""Faults of parameters: caps, choices, logprobs, sizes, windows and capabilities, through a whole gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmrouter.backends.breaker import BreakerState
from llmrouter.testing import Answer, FakeBackend, HttpError, Refuses, Window, fold_chunks, parse_sse
from tests.gateway.rig import ONCE, Wire, one, request
from tests.support import Running, model, pool, running, tier

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


def error(answer: Any) -> dict[str, Any]:
    """The error of an answer that must be one of the client's fault."""
    assert answer.status_code == 400, answer.text
    told: dict[str, Any] = answer.json()["error"]
    assert told.keys() == {"message", "type", "param", "code"}
    assert told["type"] == "invalid_request_error"
    return told


async def answered(gateway: Running, *, stream: bool, **fields: Any) -> dict[str, Any]:
    """A completion, folded if it was streamed."""
    if not stream:
        whole = await gateway.chat(**fields)
        assert whole.status_code == 200, whole.text
        body: dict[str, Any] = whole.json()
        return body
    options = {"include_usage": True}
    return fold_chunks(parse_sse((await gateway.chat(stream=True, stream_options=options, **fields)).content))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("cap", ["max_tokens", "max_completion_tokens"])
async def test_g026_one_cap_covers_reasoning_and_answer(tmp_path, cap, stream):
    thinker = Answer(" ".join(["word"] * 60), reasoning=" ".join(["think"] * 30))
    async with FakeBackend(thinker) as engine, running(one(engine), tmp_path) as gateway:
        whole = await answered(gateway, stream=stream, **{cap: 50})
        (entry,) = gateway.books()
    assert whole["usage"]["completion_tokens"] == 50
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 30
    assert whole["choices"][0]["finish_reason"] == entry.finish == "length"
    assert (entry.usage.output_tokens, entry.usage.reasoning_tokens) == (50, 30)


@pytest.mark.parametrize("sent", [["max_tokens"], ["max_completion_tokens"], ["max_tokens", "max_completion_tokens"]])
async def test_g027_each_backend_gets_the_one_cap_that_it_takes_also_on_fallback(tmp_path, sent):
    """An older vLLM refuses `max_completion_tokens`, a newer hosted model `max_tokens`."""
    async with (
        FakeBackend(default=Refuses("max_completion_tokens", Answer("old"))) as old,
        FakeBackend(default=Refuses("max_tokens", Answer("new"))) as new,
    ):
        text = model("a") + model("b") + pool("a", [old.url]) + pool("b", [new.url], api="openai")
        text += tier("old", small="a") + tier("new", small="b") + tier("both", small="a", large="b", extra=ONCE)
        async with running(text, tmp_path) as gateway:
            cap: dict[str, Any] = dict.fromkeys(sent, 7)
            assert (await gateway.chat(tier="old", **cap)).status_code == 200
            assert (await gateway.chat(tier="new", **cap)).status_code == 200
            old.script(HttpError(500))
            fallback = await gateway.chat(tier="both", **cap)
            assert fallback.json()["choices"][0]["message"]["content"] == "new"
    assert [{key: call.body.get(key) for key in ("max_tokens", "max_completion_tokens")} for call in old.calls] == [
        {"max_tokens": 7, "max_completion_tokens": None}
    ] * 2
    assert [{key: call.body.get(key) for key in ("max_tokens", "max_completion_tokens")} for call in new.calls] == [
        {"max_tokens": None, "max_completion_tokens": 7}
    ] * 2


async def test_g027_two_caps_that_differ_are_refused(tmp_path):
    async with FakeBackend() as engine, running(one(engine), tmp_path) as gateway:
        assert error(await gateway.chat(max_tokens=5, max_completion_tokens=6))["param"] == "max_completion_tokens"
        assert not engine.calls


async def test_g028_an_engines_400_for_a_parameter_never_opens_its_breaker(tmp_path):
    step = Refuses("max_tokens")
    async with FakeBackend(default=step) as engine, running(one(engine, pools=""), tmp_path) as gateway:
        told = [error(await gateway.chat(max_tokens=5)) for _ in range(20)]
        (replica,) = gateway.assembly.pools["s"].status().replicas
        assert (await gateway.chat()).status_code == 200
    assert {(each["param"], each["code"]) for each in told} == {("max_tokens", "invalid_value")}
    assert (replica.breaker, replica.breaker_opens) == (BreakerState.CLOSED, 0)
    assert len(engine.calls) == 21


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["vllm", "llama_cpp", "openai"])
async def test_g030_logprobs_come_for_every_token_if_asked_for_and_else_not_at_all(tmp_path, dialect, stream):
    async with (
        FakeBackend(default=Answer("a b c"), dialect=dialect) as engine,
        running(one(engine), tmp_path) as gateway,
    ):
        asked = await answered(gateway, stream=stream, logprobs=True, top_logprobs=3)
        plain = await answered(gateway, stream=stream)
    entries = asked["choices"][0]["logprobs"]["content"]
    assert len(entries) == asked["usage"]["completion_tokens"] == 3
    assert [len(entry["top_logprobs"]) for entry in entries] == [3, 3, 3]
    assert not plain["choices"][0].get("logprobs")


async def test_g030_what_no_model_can_honour_is_refused_and_what_another_can_goes_there(tmp_path):
    async with FakeBackend() as deaf, FakeBackend(Answer("b")) as able:
        text = model("a", extra='capabilities = ["n"]') + model("b", extra='capabilities = ["logprobs"]')
        text += pool("a", [deaf.url]) + pool("b", [able.url])
        text += tier("auto", small="a", large="b") + tier("deaf", small="a")
        async with running(text, tmp_path) as gateway:
            told = error(await gateway.chat(tier="deaf", logprobs=True))
            other = await gateway.chat(logprobs=True)
            both = error(await gateway.chat(logprobs=True, n=2))
    assert (told["param"], told["code"]) == ("logprobs", "unsupported_parameter")
    assert other.headers["x-llmrouter-model"] == "b"
    assert "together" in both["message"]
    assert not deaf.calls


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_g031_a_cap_that_is_no_positive_integer_is_refused_by_name(tmp_path, name):
    async with FakeBackend() as engine, running(one(engine), tmp_path) as gateway:
        for bad in (0, -1, "5", 1.5, True, 2**31, [5]):
            refused: dict[str, Any] = {name: bad}
            assert error(await gateway.chat(**refused))["param"] == name
        assert not engine.calls
        for good in (None, 1, 10**9):
            taken: dict[str, Any] = {name: good}
            assert (await gateway.chat(**taken)).status_code == 200
    assert [call.body.get("max_tokens") for call in engine.calls] == [None, 1, 10**9]


async def test_g031_several_system_and_developer_turns_arrive_in_order(tmp_path):
    turns = [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": "b"},
        {"role": "system", "content": [{"type": "text", "text": "c"}]},
        {"role": "user", "content": "d", "name": "ann"},
    ]
    async with FakeBackend() as engine, running(one(engine), tmp_path) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json={"model": "auto", "messages": turns})
        assert answer.status_code == 200
    assert engine.calls[0].body["messages"] == turns


SMALL_LIMITS = "[limits]\nmax_messages = 4\nmax_tools = 3\nmax_body_bytes = 100000\n"


async def test_g033_counts_are_capped_by_name(tmp_path):
    tool = {"type": "function", "function": {"name": "f"}}
    turn = {"role": "user", "content": "Hi"}
    async with FakeBackend() as engine, running(one(engine, more=SMALL_LIMITS), tmp_path) as gateway:
        cases: list[tuple[str, dict[str, Any]]] = [
            ("n", {"n": 1000}),
            ("n", {"n": 9}),
            ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
            ("stop", {"stop": ["x"] * 17}),
            ("tools", {"tools": [tool] * 4}),
            ("messages", {"messages": [turn] * 5}),
            ("metadata", {"metadata": {str(position): "x" for position in range(17)}}),
        ]
        for param, fields in cases:
            assert error(await gateway.chat(**fields))["param"] == param
        assert not engine.calls
        assert (await gateway.chat(n=8)).status_code == 200


@pytest.mark.parametrize(("depth", "status"), [(60, 200), (80, 400), (2000, 400)])
async def test_g033_deep_json_is_refused(tmp_path, depth, status):
    async with FakeBackend() as engine, running(one(engine), tmp_path) as gateway:
        deep = b'{"of":' * depth + b"0" + b"}" * depth
        body = b'{"model":"auto","messages":[{"role":"user","content":"Hi"}],"extra":%s}' % deep
        answer = await gateway.http.post("/v1/chat/completions", content=body)
        assert answer.status_code == status
        if status == 400:
            assert error(answer)["code"] == "invalid_json"
        brackets = await gateway.http.post("/v1/chat/completions", content=b"[" * 10_000 + b"]" * 10_000)
        assert error(brackets)["code"] == "invalid_json"
        assert (await gateway.chat()).status_code == 200


async def test_g033_a_body_that_says_it_is_too_large_is_not_read(tmp_path):
    async with FakeBackend() as engine, running(one(engine), tmp_path) as gateway, Wire(gateway) as client:
        head, _, body = request(gateway, headers={"Content-Length": str(64 * 1024 * 1024)}).partition(b"\r\n\r\n")
        client.writer.write(head + b"\r\n\r\n" + body)
        status, headers, answer = await client.answer()
        assert (status, headers["connection"]) == (413, "close")
        assert json.loads(answer)["error"]["code"] == "request_too_large"
        assert gateway.books() == []
        assert not engine.calls


async def test_g033_a_body_that_grows_too_large_is_cut_off(tmp_path):
    """Without a length nobody knows beforehand; the gateway reads its limit and little more."""
    async with (
        FakeBackend() as engine,
        running(one(engine, more=SMALL_LIMITS), tmp_path) as gateway,
        Wire(gateway) as client,
    ):
        head = request(gateway, body=b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        client.writer.write(head)
        for _ in range(4):
            client.writer.write(b"8000\r\n" + b" " * 0x8000 + b"\r\n")
        status, headers, _ = await client.answer()
        assert (status, headers["connection"]) == (413, "close")


async def test_g033_a_client_that_sends_it_all_still_reads_the_answer(tmp_path):
    """As SDKs do: they write 64 MB before they look for an answer."""
    async with FakeBackend() as engine, running(one(engine), tmp_path) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", content=b" " * (64 * 1024 * 1024))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
        assert not engine.calls


async def test_g095_a_cap_past_the_window_is_clamped_and_said_so(tmp_path):
    prompt = " ".join(["word"] * 1077)
    window = "context_window = 32768"
    async with FakeBackend(default=Window(32768, Answer("ok"))) as engine:
        async with running(one(engine, models=window), tmp_path) as gateway:
            clamped = await gateway.chat(prompt, max_tokens=32000)
            fits = await gateway.chat(prompt, max_tokens=1000)
        assert clamped.status_code == 200
        asked, _, sent = clamped.headers["x-llmrouter-clamped"].partition(" -> ")
        assert (asked, int(sent)) == ("32000", engine.calls[0].body["max_tokens"])
        assert 20_000 < int(sent) < 32768 - 1077
        assert "x-llmrouter-clamped" not in fits.headers
        assert engine.calls[1].body["max_tokens"] == 1000


async def test_g095_only_the_model_that_answers_counts_as_clamped(tmp_path):
    async with FakeBackend(HttpError(500)) as narrow, FakeBackend() as wide:
        text = model("s", extra="max_output_tokens = 50") + model("l", extra="max_output_tokens = 500")
        text += pool("s", [narrow.url]) + pool("l", [wide.url]) + tier("auto", small="s", large="l", extra=ONCE)
        async with running(text, tmp_path) as gateway:
            fallback = await gateway.chat(max_tokens=200)
            first = await gateway.chat(max_tokens=200)
    assert (narrow.calls[0].body["max_tokens"], wide.calls[0].body["max_tokens"]) == (50, 200)
    assert "x-llmrouter-clamped" not in fallback.headers
    assert first.headers["x-llmrouter-clamped"] == "200 -> 50"


async def test_g095_without_clamping_the_refusal_names_both_numbers(tmp_path):
    more = "[limits]\nclamp_output_tokens = false\n"
    async with FakeBackend() as engine:
        async with running(one(engine, models="context_window = 32768", more=more), tmp_path) as gateway:
            told = error(await gateway.chat(" ".join(["word"] * 1077), max_tokens=32000))
        assert (told["param"], told["code"]) == ("max_tokens", "context_length_exceeded")
        assert "32000" in told["message"]
        assert "32768" in told["message"]
        assert not engine.calls


async def test_g095_a_prompt_too_long_for_one_window_goes_to_a_larger_one(tmp_path):
    """By our bound where that is certain, else by the engine's own refusal; the window is never the replica's fault."""
    async with FakeBackend(default=Window(50)) as narrow, FakeBackend(default=Answer("wide")) as wide:
        text = model("s", extra="context_window = 64") + model("l", extra="context_window = 4096")
        text += pool("s", [narrow.url], extra="breaker.failures = 1\n") + pool("l", [wide.url])
        async with running(text + tier("auto", small="s", large="l"), tmp_path) as gateway:
            close = await gateway.chat(" ".join(["a"] * 60))
            sure = await gateway.chat("word " * 1000)
            short = await gateway.chat("a b")
            neither = error(await gateway.chat("word " * 20_000))
    assert [answer.headers["x-llmrouter-model"] for answer in (close, sure, short)] == ["l", "l", "s"]
    assert close.headers["x-llmrouter-attempts"] == "2"
    assert sure.headers["x-llmrouter-attempts"] == "1"
    assert neither["code"] == "context_length_exceeded"


async def test_g100_an_image_goes_to_a_model_that_sees_or_nowhere(tmp_path):
    content = [{"type": "text", "text": "what is this?"}, IMAGE]
    async with FakeBackend() as blind, FakeBackend(Answer("a cat")) as seeing:
        text = model("s") + model("l", extra='capabilities = ["vision"]') + pool("s", [blind.url])
        text += pool("l", [seeing.url]) + tier("auto", small="s", large="l") + tier("text", small="s")
        async with running(text, tmp_path) as gateway:
            answer = await gateway.chat(messages=[{"role": "user", "content": content}])
            told = error(await gateway.chat(tier="text", messages=[{"role": "user", "content": content}]))
        assert answer.json()["choices"][0]["message"]["content"] == "a cat"
        assert seeing.calls[0].body["messages"][0]["content"] == content
        assert (told["param"], told["code"]) == ("messages", "unsupported_parameter")
        assert not blind.calls


@pytest.mark.parametrize(
    ("capability", "param", "fields"),
    [
        ("tools", "tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        ("custom_tools", "tools", {"tools": [{"type": "custom", "custom": {"name": "f"}}]}),
        ("json_schema", "response_format", {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
        ("json_object", "response_format", {"response_format": {"type": "json_object"}}),
        ("n", "n", {"n": 2}),
        ("reasoning", "reasoning_effort", {"reasoning_effort": "high"}),
        ("web_search", "web_search_options", {"web_search_options": {}}),
        ("audio_output", "modalities", {"modalities": ["text", "audio"]}),
        ("prediction", "prediction", {"prediction": {"type": "content", "content": "x"}}),
        ("engine_fields", "top_k", {"top_k": 5}),
    ],
)
async def test_g100_every_capability_is_a_hard_filter(tmp_path, capability, param, fields):
    async with FakeBackend() as lacking, FakeBackend() as having:
        text = model("s", extra="capabilities = []") + model("l", extra=f'capabilities = ["{capability}"]')
        text += pool("s", [lacking.url]) + pool("l", [having.url])
        async with running(text + tier("auto", small="s", large="l") + tier("small", small="s"), tmp_path) as gateway:
            answer = await gateway.chat(**fields)
            told = error(await gateway.chat(tier="small", **fields))
        assert answer.headers["x-llmrouter-model"] == "l"
        assert having.calls[0].body.items() >= fields.items()
        assert (told["param"], told["code"]) == (param, "unsupported_parameter")
        assert not lacking.calls
