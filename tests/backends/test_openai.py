"""What an OpenAI-compatible engine is sent for a request."""

import json
from typing import Any

import orjson
import pytest

from llmrouter import __version__
from llmrouter.backends.openai import OpenAIBackend, encode
from llmrouter.config import LimitsConfig
from llmrouter.errors import ConfigError
from llmrouter.gateway.wire import parse
from llmrouter.protocols import Backend, BackendFault, Timeouts
from llmrouter.testing import Answer, Call, FakeBackend, Refuses, Step
from llmrouter.types import ChatRequest, Endpoint, Failure

LIMITS = Timeouts(connect_s=5, first_byte_s=5, between_chunks_s=5, total_s=5)
BODIES: dict[Endpoint, dict[str, Any]] = {
    "chat": {"model": "auto", "messages": [{"role": "user", "content": "Hi"}]},
    "completions": {"model": "auto", "prompt": "Hi"},
    "embeddings": {"model": "auto", "input": "Hi"},
}


def request(endpoint: Endpoint = "chat", /, **fields: Any) -> ChatRequest:
    return parse(endpoint, json.dumps({**BODIES[endpoint], **fields}).encode(), {}, LimitsConfig())


def sent(given: ChatRequest, *, cap_field: str = "max_tokens", salt: str | None = None, engine: str = "vllm") -> Any:
    return orjson.loads(encode(given, model="theirs", cap_field=cap_field, cache_salt=salt, engine=engine))


async def called(given: ChatRequest, *steps: Step, salt: str | None = None, **options: Any) -> tuple[int, Call]:
    """The status of one call and what the engine saw of it."""
    async with FakeBackend(*steps) as engine:
        settings = {"name": "pool/0", "base_url": engine.url, "engine": "vllm", "model": "theirs", **options}
        backend = OpenAIBackend(**settings)
        reply = await backend.open(given, request_id="req_1", timeouts=LIMITS, cache_salt=salt)
        await reply.read()
        reply.close()
        await backend.aclose()
        return reply.status, engine.calls[0]


def test_it_is_a_backend():
    backend: Backend = OpenAIBackend(name="pool/0", base_url="http://127.0.0.1:1/v1", engine="vllm", model="m")
    assert backend.name == "pool/0"


@pytest.mark.parametrize("endpoint", BODIES)
def test_only_the_model_is_renamed(endpoint):
    assert sent(request(endpoint)) == {**BODIES[endpoint], "model": "theirs"}


@pytest.mark.parametrize("asked", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("accepted", ["max_tokens", "max_completion_tokens"])
def test_g027_the_cap_goes_out_under_the_one_name_that_the_engine_takes(asked, accepted):
    fields: dict[str, Any] = {asked: 50}
    body = sent(request(**fields), cap_field=accepted)
    assert {name: value for name, value in body.items() if "tokens" in name} == {accepted: 50}


def test_g027_both_names_with_one_value_become_one():
    body = sent(request(max_tokens=50, max_completion_tokens=50), cap_field="max_completion_tokens")
    assert (body.get("max_tokens"), body["max_completion_tokens"]) == (None, 50)


@pytest.mark.parametrize(
    ("engine", "options", "name"),
    [
        ("openai", {}, "max_completion_tokens"),
        ("vllm", {}, "max_tokens"),
        ("llama_cpp", {}, "max_tokens"),
        ("vllm", {"cap_field": "max_completion_tokens"}, "max_completion_tokens"),
        ("openai", {"cap_field": "max_tokens"}, "max_tokens"),
    ],
)
async def test_g027_each_engine_answers_under_its_own_name(engine, options, name):
    other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}[name]
    status, call = await called(request(max_tokens=50), Refuses(other), engine=engine, **options)
    assert (status, call.body[name]) == (200, 50)


def test_g026_the_effective_cap_of_the_gateway_is_the_one_sent():
    """A clamped cap is on the request, never in the client's fields."""
    given = request(max_completion_tokens=32_000)
    clamped = ChatRequest(endpoint="chat", model="auto", fields=given.fields, max_output_tokens=100)
    assert sent(clamped)["max_tokens"] == 100
    assert given.fields["max_completion_tokens"] == 32_000


def test_g026_no_cap_is_no_cap():
    assert "max_tokens" not in sent(request(max_tokens=None))
    assert "max_tokens" not in sent(request())


@pytest.mark.parametrize("asked", ["max_tokens", "max_completion_tokens"])
def test_g027_plain_completions_know_one_name_only(asked):
    body = sent(request("completions", **{asked: 50}), cap_field="max_completion_tokens")
    assert {name: value for name, value in body.items() if "tokens" in name} == {"max_tokens": 50}


@pytest.mark.parametrize(
    ("options", "upstream"),
    [
        ({}, {"include_usage": True}),
        ({"stream_options": None}, {"include_usage": True}),
        ({"stream_options": {"include_usage": False}}, {"include_usage": True}),
        ({"stream_options": {"include_obfuscation": False}}, {"include_obfuscation": False, "include_usage": True}),
    ],
)
def test_g002_a_stream_is_always_asked_for_its_usage(options, upstream):
    assert sent(request(stream=True, **options))["stream_options"] == upstream
    assert "stream_options" not in sent(request())


def test_g071_the_salt_is_ours_and_only_ours():
    assert sent(request(), salt="ours")["cache_salt"] == "ours"
    opened = LimitsConfig(allow_engine_fields=("cache_salt",))
    body = json.dumps({**BODIES["chat"], "cache_salt": "theirs"}).encode()
    assert sent(parse("chat", body, {}, opened), salt="ours")["cache_salt"] == "ours"


@pytest.mark.parametrize(
    ("engine", "endpoint", "salted"),
    [
        ("vllm", "chat", True),
        ("vllm", "completions", True),
        ("vllm", "embeddings", False),
        ("llama_cpp", "chat", False),
        ("openai", "chat", False),
    ],
)
async def test_g071_the_salt_goes_to_engines_that_have_one(engine, endpoint, salted):
    _, call = await called(request(endpoint), salt="ours", engine=engine)
    assert ("cache_salt" in call.body) == salted


@pytest.mark.parametrize(
    ("engine", "store", "kept"),
    [("openai", None, False), ("openai", True, True), ("vllm", None, True), ("llama_cpp", None, True)],
)
def test_metadata_goes_where_it_does_no_harm(engine, store, kept):
    """OpenAI refuses metadata unless the answer is to be stored; the gateway has read the tags by then."""
    body = {**BODIES["chat"], "metadata": {"team": "a"}, "store": store}
    given = parse("chat", json.dumps(body).encode(), {}, LimitsConfig(allow_engine_fields=("store",)))
    assert ("metadata" in sent(given, engine=engine)) == kept
    assert given.tags == {"team": "a"}


def test_what_is_sent_leaves_the_request_as_it_was():
    given = request(max_tokens=5, stream=True, stream_options={"include_usage": False})
    before = json.dumps(given.fields)
    sent(given, salt="s", cap_field="max_completion_tokens")
    assert json.dumps(given.fields) == before


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [("chat", "/v1/chat/completions"), ("completions", "/v1/completions"), ("embeddings", "/v1/embeddings")],
)
async def test_every_endpoint_has_its_path(endpoint, path):
    status, call = await called(request(endpoint))
    assert (status, call.method, call.path) == (200, "POST", path)


async def test_the_headers_of_a_call():
    options: dict[str, Any] = {"api_key": "sk-secret", "headers": {"X-Team": "é", "User-Agent": "mine"}}
    _, call = await called(request(), Answer(), **options)
    headers = {name: value for name, value in call.headers if name not in ("host", "content-length")}
    assert headers == {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "accept-encoding": "identity",
        "user-agent": "mine",
        "authorization": "Bearer sk-secret",
        "x-team": "é",
        "x-request-id": "req_1",
    }


async def test_the_gateway_names_itself():
    _, call = await called(request())
    assert call.header("user-agent") == f"llmrouter/{__version__}"
    assert call.header("authorization") is None


@pytest.mark.parametrize("value", ["a\nb", "a\r\nx-admin: 1", "日本"])
@pytest.mark.parametrize("where", ["api_key", "headers"])
def test_a_header_that_cannot_be_sent_is_a_configuration_error(where, value):
    options: dict[str, Any] = {where: value if where == "api_key" else {"x-one": value}}
    with pytest.raises(ConfigError) as caught:
        OpenAIBackend(name="pool/0", base_url="http://127.0.0.1:1/v1", engine="vllm", model="m", **options)
    assert value not in caught.value.message


async def test_nobody_there_is_a_fault():
    backend = OpenAIBackend(name="pool/0", base_url="http://127.0.0.1:1/v1", engine="vllm", model="m")
    with pytest.raises(BackendFault) as caught:
        await backend.open(request(), request_id="req_1", timeouts=LIMITS, cache_salt=None)
    assert caught.value.failure is Failure.CONNECT
