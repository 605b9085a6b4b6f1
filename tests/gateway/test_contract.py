"""The contract with clients, one suite over every way in which an answer can come about."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai.types import completion_create_params as completion_params
from openai.types import embedding_create_params as embedding_params
from openai.types.chat import completion_create_params as chat_params

from llmrouter.testing import (
    Answer,
    DialectName,
    FakeBackend,
    HttpError,
    RawSse,
    Step,
    ToolCall,
    event,
    fold_chunks,
    parse_sse,
)
from tests.gateway.rig import PATIENT, one, two
from tests.support import Running, model, running, tier

ABLE = 'capabilities = ["tools", "json_object", "json_schema", "logprobs", "n", "reasoning", "engine_fields"]'
FINISHES = {"stop", "length", "tool_calls", "content_filter", "function_call"}
SHARED = {"object", "choices", "usage", "id", "created", "model"}
OPTIONAL = {"service_tier", "system_fingerprint", "metadata", "moderation"}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("weather", "time")]


def alone(first: FakeBackend, _: FakeBackend) -> str:
    return one(first, models=ABLE)


def again(first: FakeBackend, _: FakeBackend) -> str:
    return one(first, on="retries = 1\n", models=ABLE)


def elsewhere(first: FakeBackend, second: FakeBackend) -> str:
    return re.sub(r"(?m)^(\[models\..\])$", rf"\1\n{ABLE}", two(first, second))


@dataclass(frozen=True)
class Way:
    """How an answer comes about: an engine's dialect, and what the first call of each request runs into."""

    dialect: DialectName = "vllm"
    build: Callable[[FakeBackend, FakeBackend], str] = alone
    fails_first: bool = False


WAYS = {
    "vllm": Way("vllm"),
    "llama_cpp": Way("llama_cpp"),
    "openai": Way("openai"),
    "fallback": Way("vllm", elsewhere, fails_first=True),
    "retry": Way("vllm", again, fails_first=True),
}


@asynccontextmanager
async def serving(way: Way, answer: Step, folder: Path) -> AsyncIterator[Running]:
    """A gateway whose next two requests are answered so."""
    steps: list[Step] = [answer, answer]
    if way.fails_first:
        steps = [HttpError(500), answer] * 2 if way.build is again else [HttpError(500)] * 2
    async with (
        FakeBackend(*steps, dialect=way.dialect) as first,
        FakeBackend(default=answer, dialect=way.dialect) as second,
        running(way.build(first, second), folder) as gateway,
    ):
        yield gateway


KINDS: dict[str, tuple[Answer, dict[str, Any]]] = {
    "text": (Answer("one two three"), {}),
    "cut": (Answer("one two three"), {"max_tokens": 2}),
    "unicode": (Answer('é 北🌍 "quoted" \\ \n\t {"a": [1]} data: x'), {}),
    "two choices": (Answer(("a b", "c d e")), {"n": 2}),
    "logprobs": (Answer("one two"), {"logprobs": True, "top_logprobs": 2}),
    "two choices with logprobs": (Answer(("a b", "c")), {"n": 2, "logprobs": True}),
    "tools": (Answer(tool_calls=(ToolCall("weather", '{"c": "x"}'), ToolCall("time", "{}"))), {"tools": TOOLS}),
    "text and a tool": (Answer("let me see", tool_calls=(ToolCall("weather", '{"c": 1}'),)), {"tools": TOOLS}),
    "reasoning": (Answer("so 4", reasoning="two and two"), {"reasoning_effort": "low"}),
    "filtered": (Answer("I", finish_reason="content_filter"), {}),
    "JSON": (Answer('{"a": 1}'), {"response_format": {"type": "json_object"}}),
}


def check_usage(usage: dict[str, Any]) -> None:
    """The parts sum, and details are parts."""
    counts = [usage[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    assert all(type(count) is int and count >= 0 for count in counts)
    assert counts[0] + counts[1] == counts[2]
    for name, whole in (("prompt_tokens_details", counts[0]), ("completion_tokens_details", counts[1])):
        for part in (usage.get(name) or {}).values():
            assert part is None or 0 <= part <= whole


def check_message_choice(choice: dict[str, Any], index: int) -> None:
    assert choice["index"] == index
    assert choice["finish_reason"] in FINISHES
    assert "delta" not in choice
    message = choice["message"]
    assert message["role"] == "assistant"
    assert isinstance(message["content"], str | None)
    for call in message.get("tool_calls") or ():
        assert call.keys() == {"id", "type", "function"}
        assert call["function"].keys() == {"name", "arguments"}
    for entry in (choice["logprobs"] or {}).get("content") or ():
        assert {"token", "logprob", "bytes", "top_logprobs"} <= entry.keys()


def check_headers(answer: Any, way: Way, gateway: Running) -> None:
    headers = answer.headers
    assert re.fullmatch(r"req_[0-9a-f]{24,}", headers["x-request-id"])
    assert int(headers["openai-processing-ms"]) >= 0
    assert headers["x-llmrouter-tier"] == "auto"
    assert headers["x-llmrouter-attempts"] == str(1 + way.fails_first)
    assert headers["x-llmrouter-config-version"] == headers["x-llmrouter-routing-version"] == "1"
    assert float(headers["x-llmrouter-overhead-ms"]) >= 0
    assert headers["x-llmrouter-model"] == headers["x-llmrouter-pool"]
    entry = next(entry for entry in gateway.books() if entry.request_id == headers["x-request-id"])
    assert (entry.model_id, entry.reason) == (headers["x-llmrouter-model"], headers["x-llmrouter-reason"])
    assert (entry.status, len(entry.attempts)) == (200, 1 + way.fails_first)
    if "x-llmrouter-cost-usd" in headers:
        assert float(headers["x-llmrouter-cost-usd"]) == pytest.approx(float(entry.cost_usd))


def check_completion(body: dict[str, Any], choices: int) -> None:
    assert body.keys() >= SHARED
    assert body.keys() - SHARED - OPTIONAL <= {"prompt_logprobs", "prompt_token_ids", "prompt_text"}
    assert body["object"] == "chat.completion"
    assert re.fullmatch(r"chatcmpl-[0-9a-f]{24,}", body["id"])
    assert (type(body["created"]), body["model"]) == (int, "auto")
    assert len(body["choices"]) == choices
    for index, choice in enumerate(body["choices"]):
        check_message_choice(choice, index)
    check_usage(body["usage"])


def check_stream(events: list[Any], choices: int) -> None:
    *chunks, usage, end = events
    assert end == "[DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in (*chunks, usage)}) == 1
    assert (usage["choices"], usage["object"]) == ([], "chat.completion.chunk")
    check_usage(usage["usage"])
    finished: list[int] = []
    begun: list[int] = []
    for chunk in chunks:
        assert chunk.keys() - SHARED - OPTIONAL <= {"obfuscation"}
        assert chunk["usage"] is None
        (choice,) = chunk["choices"]
        assert choice.keys() >= {"index", "delta", "finish_reason"}
        assert choice["index"] not in finished
        if choice["index"] not in begun:
            begun.append(choice["index"])
            assert choice["delta"]["role"] == "assistant"
        else:
            assert "role" not in choice["delta"]
        if choice["finish_reason"] is not None:
            assert choice["finish_reason"] in FINISHES
            finished.append(choice["index"])
    assert begun == sorted(finished) == list(range(choices))


def essence(body: dict[str, Any]) -> dict[str, Any]:
    """What must be the same of a whole answer and of a folded stream: all but nulls, ids and times."""

    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: bare(inner) for name, inner in value.items() if inner not in (None, [], {})}
        return [bare(inner) for inner in value] if isinstance(value, list) else value

    told: dict[str, Any] = bare({name: body[name] for name in ("model", "choices", "usage")})
    for choice in told["choices"]:
        # Not said at all, said to be null or said to be empty: to a client it is all the same.
        choice["message"] = {name: value for name, value in choice["message"].items() if value != ""}
        if not choice.get("logprobs"):
            choice.pop("logprobs", None)
    return told


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_answers_have_one_shape_however_they_come_about(tmp_path, way, kind):
    answer, fields = KINDS[kind]
    choices = fields.get("n", 1)
    async with serving(way, answer, tmp_path) as gateway:
        plain = await gateway.chat(**fields)
        assert plain.status_code == 200, plain.text
        assert plain.headers["content-type"] == "application/json"
        check_completion(plain.json(), choices)
        check_headers(plain, way, gateway)
        stream = await gateway.chat(stream=True, stream_options={"include_usage": True}, **fields)
        events = parse_sse(stream.content)
        check_stream(events, choices)
        check_headers(stream, way, gateway)
        folded = fold_chunks(events)
        if (way.dialect, choices) == ("llama_cpp", 2):
            # A plain answer of llama.cpp counts the first choice only; its stream tells all.
            folded["usage"] = plain.json()["usage"]
        assert essence(folded) == essence(plain.json())


@pytest.mark.parametrize("kind", ["text", "cut", "unicode", "two choices", "logprobs"])
async def test_the_echo_backend_has_the_same_shape(tmp_path, kind):
    answer, fields = KINDS[kind]
    text = answer.text if isinstance(answer.text, str) else "one two three"
    config = model("s") + '[pools.s]\nmodel = "s"\napi = "echo"\n' + tier("auto", small="s")
    choices = fields.get("n", 1)
    async with running(config, tmp_path) as gateway:
        plain = await gateway.chat(text, **fields)
        stream = await gateway.chat(text, stream=True, stream_options={"include_usage": True}, **fields)
        check_completion(plain.json(), choices)
        check_headers(plain, Way(), gateway)
        events = parse_sse(stream.content)
        check_stream(events, choices)
        assert essence(fold_chunks(events)) == essence(plain.json())
        assert (await gateway.chat(stream=True)).status_code == 200


ERRORS: dict[str, tuple[Step | None, dict[str, Any], tuple[int, str, str, str | None, bool]]] = {
    "field": (None, {"temperature": "hot"}, (400, "invalid_request_error", "invalid_value", "temperature", False)),
    "parameter": (
        None,
        {"prediction": {}},
        (400, "invalid_request_error", "unsupported_parameter", "prediction", False),
    ),
    "unknown tier": (None, {"tier": "nobody"}, (404, "invalid_request_error", "model_not_found", "model", False)),
    "bad key": (
        None,
        {"headers": {"authorization": "Bearer x"}},
        (401, "authentication_error", "invalid_api_key", None, False),
    ),
    "engine's 400": (
        HttpError(400, "no", param="top_p"),
        {},
        (400, "invalid_request_error", "invalid_value", "top_p", False),
    ),
    "engine's window": (
        HttpError(400, "This model's maximum context length is 5 tokens"),
        {},
        (400, "invalid_request_error", "context_length_exceeded", "messages", False),
    ),
    "rate limit": (HttpError(429), {}, (429, "rate_limit_error", "rate_limit_exceeded", None, True)),
    "failure": (HttpError(500), {}, (502, "server_error", "upstream_error", None, False)),
    "overload": (HttpError(503), {}, (503, "server_error", "no_capacity", None, True)),
    "time-out": (HttpError(504), {}, (504, "server_error", "upstream_timeout", None, False)),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", ERRORS)
async def test_each_error_has_its_status_type_code_and_retry_hint(tmp_path, case, stream):
    step, fields, (status, kind, code, param, again) = ERRORS[case]
    async with FakeBackend(*[step] if step else []) as engine, running(one(engine), tmp_path) as gateway:
        answer = await gateway.chat(stream=stream, **fields)
        told = answer.json()
    assert told.keys() == {"error"}
    assert told["error"].keys() == {"message", "type", "param", "code"}
    assert (answer.status_code, told["error"]["type"], told["error"]["code"], told["error"]["param"]) == (
        status,
        kind,
        code,
        param,
    )
    assert isinstance(told["error"]["message"], str)
    assert answer.headers["x-should-retry"] == str(again).lower()
    assert ("retry-after" in answer.headers) == again
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["content-type"] == "application/json"


SAMPLES: dict[str, Any] = {
    "audio": {"voice": "x", "format": "wav"},
    "frequency_penalty": 0.5,
    "function_call": "auto",
    "functions": [{"name": "f"}],
    "logit_bias": {"5": 1},
    "logprobs": True,
    "max_completion_tokens": 5,
    "max_tokens": 5,
    "metadata": {"a": "b"},
    "modalities": ["text"],
    "moderation": {"model": "x"},
    "n": 2,
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "x"},
    "presence_penalty": 0.5,
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "low",
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    "safety_identifier": "s",
    "seed": 5,
    "service_tier": "flex",
    "stop": ["x"],
    "store": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "tool_choice": "auto",
    "tools": TOOLS,
    "top_logprobs": 2,
    "top_p": 0.5,
    "user": "u",
    "verbosity": "low",
    "web_search_options": {"search_context_size": "low"},
}
WITH: dict[str, dict[str, Any]] = {
    "stream_options": {"stream": True},
    "tool_choice": {"tools": TOOLS},
    "parallel_tool_calls": {"tools": TOOLS},
    "function_call": {"functions": [{"name": "f"}]},
    "top_logprobs": {"logprobs": True},
    "audio": {"modalities": ["text", "audio"]},
}
"""What some fields need beside them."""
REFUSED = {"store"}


def test_every_field_of_the_sdk_has_a_sample():
    known = set(chat_params.CompletionCreateParamsBase.__annotations__) - {"messages", "model"}
    assert known == set(SAMPLES)


@pytest.mark.parametrize("able", [True, False], ids=["able model", "plain model"])
async def test_every_field_of_the_sdk_is_sent_on_unchanged_or_refused_by_name(tmp_path, able):
    everything = """tools custom_tools allowed_tools vision audio_input audio_output files json_object json_schema
        logprobs n reasoning prediction web_search moderation verbosity engine_fields""".split()
    capabilities = f"capabilities = {everything if able else []!r}"
    async with FakeBackend() as engine, running(one(engine, models=capabilities), tmp_path) as gateway:
        refused = set()
        for name, value in SAMPLES.items():
            fields: dict[str, Any] = {**WITH.get(name, {}), name: value}
            answer = await gateway.chat(**fields)
            if answer.status_code == 200:
                sent = engine.calls[-1].body
                for each, wanted in fields.items():
                    renamed = "max_tokens" if each == "max_completion_tokens" else each
                    assert sent[renamed] == wanted, name
            else:
                told = answer.json()["error"]
                assert (answer.status_code, told["code"]) == (400, "unsupported_parameter"), (name, told)
                assert told["param"] in fields
                refused.add(name)
    needing = {
        "audio",
        "function_call",
        "functions",
        "logprobs",
        "moderation",
        "n",
        "parallel_tool_calls",
        "prediction",
    }
    needing |= {"reasoning_effort", "response_format", "tool_choice", "tools", "top_logprobs", "verbosity"}
    needing |= {"web_search_options"}
    assert refused == (REFUSED if able else REFUSED | needing)


@pytest.mark.parametrize("policy", ["forward", "refuse"])
async def test_unknown_fields_are_sent_on_or_refused_by_policy_and_never_lost(tmp_path, policy):
    more = f'[limits]\nunknown_fields = "{policy}"\n'
    unknown = {"brand_new": {"deep": [1, None, "x"]}, "another-one": 1.5, "ünïcode": True}
    async with FakeBackend() as engine, running(one(engine, more=more), tmp_path) as gateway:
        for name, value in unknown.items():
            fields: dict[str, Any] = {name: value}
            answer = await gateway.chat(**fields)
            if policy == "forward":
                assert answer.status_code == 200
                assert engine.calls[-1].body[name] == value
            else:
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
        assert len(engine.calls) == (3 if policy == "forward" else 0)
        assert (await gateway.chat(top_k=5, min_p=0.1)).status_code == 200
        assert engine.calls[-1].body.items() >= {"top_k": 5, "min_p": 0.1}.items()


async def test_messages_arrive_as_they_were_sent(tmp_path):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns: list[dict[str, Any]] = [
        {"role": "developer", "content": "d", "unknown": {"kept": True}},
        {"role": "user", "content": [{"type": "text", "text": "t", "prompt_cache_breakpoint": {"mode": "explicit"}}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "42"}]},
        {"role": "assistant", "refusal": "no"},
        {"role": "function", "name": "old", "content": "x"},
        {"role": "user", "content": "\u0000 \u2028 é 🌍", "name": "ann"},
    ]
    async with FakeBackend() as engine, running(one(engine), tmp_path) as gateway:
        answer = await gateway.chat(messages=turns)
        assert answer.status_code == 200, answer.text
    assert engine.calls[0].body["messages"] == turns


OTHER = 'capabilities = ["completions", "embeddings", "n"]'


def test_the_fields_of_the_other_endpoints_are_those_of_the_sdk():
    assert set(completion_params.CompletionCreateParamsBase.__annotations__) == {
        *("best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "model", "n", "prompt"),
        *("presence_penalty", "seed", "stop", "stream_options", "suffix", "temperature", "top_p", "user"),
    }
    assert set(embedding_params.EmbeddingCreateParams.__annotations__) == {
        *("dimensions", "encoding_format", "input", "model", "user"),
    }


@pytest.mark.parametrize("dialect", ["vllm", "llama_cpp"])
async def test_completions_pass_through_whole_and_streamed(tmp_path, dialect):
    body = {"model": "auto", "prompt": "one two", "max_tokens": 5, "n": 2}
    async with (
        FakeBackend(default=Answer(("a b", "c d")), dialect=dialect) as engine,
        running(one(engine, models=OTHER), tmp_path) as gateway,
    ):
        plain = (await gateway.http.post("/v1/completions", json=body)).json()
        options = {"stream": True, "stream_options": {"include_usage": True}}
        raw = (await gateway.http.post("/v1/completions", json=body | options)).content
        *chunks, usage, end = parse_sse(raw)
        entries = gateway.books()
    assert (plain["object"], plain["model"]) == ("text_completion", "auto")
    assert [choice["text"] for choice in plain["choices"]] == ["a b", "c d"]
    texts = ["", ""]
    for chunk in chunks:
        assert (chunk["object"], chunk["model"], chunk["usage"]) == ("text_completion", "auto", None)
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert (texts, end, usage["choices"]) == (["a b", "c d"], "[DONE]", [])
    check_usage(usage["usage"])
    check_usage(plain["usage"])
    assert [entry.endpoint for entry in entries] == ["completions", "completions"]


async def test_several_prompts_give_as_many_choices_in_a_stream(tmp_path):
    """A list of prompts counts as choices, too; none of them may be dropped."""
    texts = ("a", "b", "c")

    def chunk(index: int, text: str, finish: str | None = None) -> bytes:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
        return event({"id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]})

    pieces = [chunk(index, text) for index, text in enumerate(texts)]
    pieces += [chunk(index, "", "stop") for index in range(3)]
    async with (
        FakeBackend(RawSse((*pieces, b"data: [DONE]\n\n"))) as engine,
        running(one(engine, models=OTHER), tmp_path) as gateway,
    ):
        body = {"model": "auto", "prompt": list(texts), "stream": True}
        *chunks, end = parse_sse((await gateway.http.post("/v1/completions", json=body)).content)
    said = ["", "", ""]
    for each in chunks:
        for choice in each["choices"]:
            said[choice["index"]] += choice["text"]
    assert (tuple(said), end) == (texts, "[DONE]")


async def test_embeddings_pass_through_and_are_booked(tmp_path):
    body = {"model": "auto", "input": ["one two", "three"], "dimensions": 4, "encoding_format": "float", "user": "u"}
    async with FakeBackend() as engine, running(one(engine, models=OTHER), tmp_path) as gateway:
        answer = await gateway.http.post("/v1/embeddings", json=body)
        told = answer.json()
        (entry,) = gateway.books()
        refused = await gateway.http.post("/v1/embeddings", json={"model": "auto"})
    assert answer.status_code == 200
    assert told.keys() == {"object", "data", "model", "usage"}
    assert (told["object"], told["model"], len(told["data"])) == ("list", "auto", 2)
    assert told["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert engine.calls[0].body == body | {"model": "s"}
    assert (entry.endpoint, entry.usage.input_tokens, entry.usage.output_tokens) == ("embeddings", 3, 0)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
async def test_pools_without_an_endpoint_are_not_asked_for_it(tmp_path, path):
    body = {"model": "auto", "prompt": "x"} if path == "/v1/completions" else {"model": "auto", "input": "x"}
    async with FakeBackend() as lacking, FakeBackend() as having:
        text = two(lacking, having, pools=PATIENT)
        text = text.replace("[models.s]\n", "[models.s]\ncapabilities = []\n")
        text = text.replace("[models.l]\n", f"[models.l]\n{OTHER}\n")
        async with running(text + tier("small", small="s"), tmp_path) as gateway:
            assert (await gateway.http.post(path, json=body)).headers["x-llmrouter-model"] == "l"
            refused = await gateway.http.post(path, json=body | {"model": "small"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_parameter")
    assert not lacking.calls
