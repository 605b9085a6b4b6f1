"""From the bytes of a request to what the gateway knows of it, and on to the bytes that an engine gets."""

import json
import sys
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.backends.openai import encode
from llmrouter.config import LimitsConfig
from llmrouter.errors import RequestError, RequestTooLarge, UnsupportedParameter
from llmrouter.gateway.fields import CHAT_FIELDS, ENGINE_FIELDS, REFUSED_FIELDS
from llmrouter.gateway.wire import parse
from llmrouter.types import ChatRequest, Endpoint

LIMITS = LimitsConfig()
CHAT: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "Hi"}]}
TEXT: dict[str, Any] = {"model": "auto", "prompt": "Hi"}
EMBED: dict[str, Any] = {"model": "auto", "input": "Hi"}
NOTHING: frozenset[str] = frozenset()


def read(
    body: Any = None,
    *,
    endpoint: Endpoint = "chat",
    headers: dict[str, str] | None = None,
    limits: LimitsConfig = LIMITS,
    **fields: Any,
) -> ChatRequest:
    base = {"chat": CHAT, "completions": TEXT, "embeddings": EMBED}[endpoint]
    raw = body if isinstance(body, bytes) else json.dumps({**base, **(body or {}), **fields}).encode()
    return parse(endpoint, raw, headers or {}, limits)


def tried(endpoint: Endpoint, body: bytes) -> ChatRequest | RequestError:
    try:
        return parse(endpoint, body, {}, LIMITS, label=lambda _text, _tools: "x")
    except RequestError as error:
        return error


def refused(*args: Any, **kwargs: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(*args, **kwargs)
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"7",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b"\xff",
        b'{"a": "\\ud83c"}',
        b"[" * 100_000,
    ],
)
def test_a_body_that_is_no_json_object_is_a_400(body):
    error = refused(body)
    assert (error.status, error.code, error.param) == (400, "invalid_json", None)


def test_g033_a_body_over_the_cap_is_a_413():
    error = refused(b" " * 2000, limits=LimitsConfig(max_body_bytes=1024))
    assert isinstance(error, RequestTooLarge)
    assert (error.status, error.code) == (413, "request_too_large")


@pytest.mark.parametrize("levels", [10_000, 1_000, 300, 66])
@pytest.mark.parametrize("kind", ["[]", "{}"])
def test_g033_a_body_nested_too_deep_is_a_400(levels, kind):
    inner = b"[" * levels + b"]" * levels if kind == "[]" else b'{"a":' * levels + b"1" + b"}" * levels
    error = refused(b'{"model":"auto","messages":[{"role":"user","content":"Hi"}],"x":' + inner + b"}")
    assert (error.status, error.code) == (400, "invalid_json")


def test_g033_the_depth_is_counted_exactly():
    def nested(levels: int) -> Any:
        return [nested(levels - 1)] if levels else 1

    limits = LimitsConfig(max_depth=8)
    assert read(x=nested(7), limits=limits).fields["x"] == nested(7)
    assert "nested more than 8 levels" in refused(x=nested(8), limits=limits).message


def test_g033_what_is_read_can_be_written_at_any_allowed_depth():
    """orjson reads 1,024 levels but writes only 254."""
    limits = LimitsConfig(max_depth=512)
    deep: Any = 1
    for _ in range(249):
        deep = [deep]
    assert encode(read(x=deep, limits=limits), model="m", cap_field="max_tokens", cache_salt=None)
    assert refused(x=[deep], limits=limits).status == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 7}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream": True, "stream_options": 1}, "stream_options"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": False, "stream_options": {}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"include_obfuscation": 1}}, "stream_options.include_obfuscation"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": None}}, "metadata"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
        ({"metadata": {"a" * 65: "x"}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"temperature": "hot"}, "temperature"),
    ],
)
def test_a_bad_field_is_a_400_that_names_it(fields, param):
    error = refused(fields)
    assert (error.status, error.param) == (400, param)
    assert error.body()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, "5", 1.5, 1e9, True, [], 2**31])
def test_g031_a_cap_that_is_no_positive_integer_is_a_400(name, value):
    error = refused({name: value})
    assert (error.status, error.param) == (400, name)


@pytest.mark.parametrize(
    ("fields", "cap"),
    [
        ({}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 5}, 5),
        ({"max_tokens": None, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 1_000_000_000}, 1_000_000_000),
    ],
)
def test_g026_there_is_one_effective_cap(fields, cap):
    assert read(fields).max_output_tokens == cap


@pytest.mark.parametrize("name", sorted(REFUSED_FIELDS))
def test_g071_controls_that_reach_past_the_own_request_are_refused(name):
    error = refused({name: "x"})
    assert isinstance(error, UnsupportedParameter)
    assert (error.status, error.param, error.code) == (400, name, "unsupported_parameter")


def test_g071_an_operator_may_open_one_of_them_to_engines_that_have_it():
    limits = LimitsConfig(allow_engine_fields=("chat_template_kwargs",))
    request = read(chat_template_kwargs={"thinking": False}, limits=limits)
    assert request.needs == {"engine_fields"}
    assert refused(cache_salt="mine", limits=limits).param == "cache_salt"


@pytest.mark.parametrize("name", sorted(ENGINE_FIELDS))
def test_g030_controls_of_engines_need_such_an_engine(name):
    assert read({name: 1}).needs == {"engine_fields"}


def test_g030_a_field_that_the_endpoint_itself_has_is_no_engine_control():
    assert read(echo=True, endpoint="completions").needs == {"completions"}
    assert read(echo=True).needs == {"engine_fields"}


@pytest.mark.parametrize("policy", ["forward", "refuse"])
def test_unknown_fields_are_forwarded_or_refused_never_lost(policy):
    limits = LimitsConfig(unknown_fields=policy)
    if policy == "refuse":
        error = refused(x_new=1, limits=limits)
        assert (error.status, error.param, error.code) == (400, "x_new", "unsupported_parameter")
        assert read(top_k=1, limits=limits).needs == {"engine_fields"}
        opened = LimitsConfig(unknown_fields="refuse", allow_engine_fields=("x_new",))
        assert read(x_new=1, limits=opened).fields["x_new"] == 1
    else:
        request = read(x_new={"a": [1]}, limits=limits)
        assert request.fields["x_new"] == {"a": [1]}
        assert not request.needs


def test_every_field_of_the_chat_api_is_known_to_be_harmless_when_null():
    request = read({**dict.fromkeys(CHAT_FIELDS), **CHAT}, limits=LimitsConfig(unknown_fields="refuse"))
    assert (request.needs, request.n, request.max_output_tokens, request.stream) == (NOTHING, 1, None, False)


@pytest.mark.parametrize(
    ("fields", "stream", "include_usage"),
    [
        ({}, False, False),
        ({"stream": None}, False, False),
        ({"stream": True}, True, False),
        ({"stream": True, "stream_options": None}, True, False),
        ({"stream": True, "stream_options": {}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": None}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": False}}, True, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, True, True),
    ],
)
def test_g002_usage_is_shown_only_to_a_client_that_set_it(fields, stream, include_usage):
    request = read(fields)
    assert (request.stream, request.include_usage) == (stream, include_usage)


def test_g034_every_prompt_of_a_completion_has_its_choices():
    assert read(endpoint="completions", prompt=["a", "b", "c"]).n == 3
    assert read(endpoint="completions", prompt=["a", "b"], n=4).n == 8
    assert read(endpoint="completions", prompt=[1, 2, 3], n=2).n == 2
    assert read(endpoint="embeddings", input=["a", "b"]).n == 1


def test_g033_prompts_times_choices_are_capped():
    limits = LimitsConfig(max_messages=10)
    assert read(endpoint="completions", prompt=["a"] * 5, n=2, limits=limits).n == 10
    assert refused(endpoint="completions", prompt=["a"] * 6, n=2, limits=limits).param == "prompt"
    assert refused(endpoint="embeddings", input=["a"] * 11, limits=limits).param == "input"


@pytest.mark.parametrize(
    ("endpoint", "needs"), [("chat", set()), ("completions", {"completions"}), ("embeddings", {"embeddings"})]
)
def test_each_endpoint_needs_pools_that_have_it(endpoint, needs):
    assert read(endpoint=endpoint).needs == needs


@pytest.mark.parametrize(
    ("headers", "metadata", "intent"),
    [
        ({"x-llmrouter-intent": "code"}, {"intent": "chat"}, "code"),
        ({}, {"intent": "chat"}, "chat"),
        ({}, {}, "unknown"),
        ({"x-llmrouter-intent": "c" * 100}, {}, "c" * 64),
    ],
)
def test_the_intent_is_the_clients_word_where_it_says_one(headers, metadata, intent):
    assert read(headers=headers, metadata=metadata).intent == intent


def test_the_labeller_is_asked_only_where_the_client_names_no_intent():
    asked: list[tuple[str, bool]] = []

    def label(text: str, tools: bool) -> str:
        asked.append((text, tools))
        return "labelled"

    tools = [{"type": "function", "function": {"name": "f"}}]
    raw = json.dumps({**CHAT, "tools": tools}).encode()
    assert parse("chat", raw, {}, LIMITS, label=label).intent == "labelled"
    assert parse("chat", raw, {"x-llmrouter-intent": "code"}, LIMITS, label=label).intent == "code"
    assert asked == [("Hi", True)]


@pytest.mark.parametrize(
    ("headers", "fields", "conversation"),
    [
        ({"x-llmrouter-conversation": "h"}, {"metadata": {"conversation_id": "m"}, "prompt_cache_key": "k"}, "h"),
        ({}, {"metadata": {"conversation_id": "m"}, "prompt_cache_key": "k"}, "m"),
        ({}, {"prompt_cache_key": "k"}, "k"),
        ({"x-llmrouter-conversation": "h" * 300}, {}, "h" * 256),
    ],
)
def test_a_conversation_is_what_the_client_calls_it(headers, fields, conversation):
    assert read(fields, headers=headers).conversation == conversation


def test_a_nameless_conversation_keeps_its_digest_as_it_grows():
    first = read()
    later = read(messages=[*CHAT["messages"], {"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}])
    other = read(messages=[{"role": "user", "content": "Ho"}])
    assert first.conversation == later.conversation != other.conversation


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("600", 600.0),
        ("0.5", 0.5),
        ("0", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("soon", None),
        ("1e9", None),
    ],
)
def test_the_clients_read_timeout_is_its_deadline(text, seconds):
    assert read(headers={"x-stainless-read-timeout": text}).deadline_s == seconds
    assert read().deadline_s is None


@pytest.mark.parametrize(("sent", "user_id"), [(b"bob", "bob"), ("bób".encode(), "bób"), (b"b\xf3b", "bób")])
def test_a_user_in_a_header_has_the_name_that_he_has_in_a_body(sent, user_id):
    assert read(headers={"x-llmrouter-user": sent.decode("latin-1")}).user_id == user_id


def test_what_is_measured_of_a_request():
    messages = [
        {"role": "system", "content": "é"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": "u"}}],
        },
    ]
    request = read(messages=messages, n=2, metadata={"team": "a"})
    assert (request.text_bytes, request.message_count, request.media_parts, request.n) == (7, 2, 1, 2)
    assert (request.last_user_text, request.needs) == ("what?", frozenset(("vision", "n")))
    assert request.tags == {"team": "a"}


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=20,
)
NAMES = st.text(min_size=1, max_size=12).filter(lambda name: name not in CHAT_FIELDS | ENGINE_FIELDS | REFUSED_FIELDS)


@given(st.dictionaries(NAMES, JSON, max_size=6), st.booleans())
def test_unknown_fields_reach_the_engine_untouched(unknown, stream):
    """wire contract, 11.7."""
    request = read({**unknown, "stream": stream})
    sent = orjson.loads(encode(request, model="theirs", cap_field="max_tokens", cache_salt=None))
    assert {name: sent[name] for name in unknown} == unknown
    assert sent["messages"] == CHAT["messages"]
    assert sent.keys() - unknown.keys() <= {"model", "messages", "stream", "stream_options"}


@given(st.lists(st.sampled_from(["system", "developer", "user", "assistant"]), min_size=1, max_size=6), JSON)
def test_turns_keep_their_order_and_unknown_keys(roles, extra):
    messages = [{"role": role, "content": str(at), "x_key": extra} for at, role in enumerate(roles)]
    sent = orjson.loads(encode(read(messages=messages), model="m", cap_field="max_tokens", cache_salt=None))
    assert sent["messages"] == messages


KEYS = st.one_of(
    st.sampled_from(sorted(CHAT_FIELDS | {"prompt", "input", "best_of", "echo", "dimensions"})),
    st.sampled_from(
        "role content type text image_url function custom name tool_calls json_schema include_usage".split()
    ),
    st.text(max_size=4),
)
WORDS = st.sampled_from("user assistant tool text function custom json_schema allowed_tools auto image_url".split())
SHAPED = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 3), st.floats(allow_nan=False), WORDS, st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=6)),
    max_leaves=30,
)


@given(st.sampled_from(["chat", "completions", "embeddings"]), st.dictionaries(KEYS, SHAPED, max_size=8))
def test_no_json_raises_anything_but_a_request_error(endpoint, fields):
    base = {"chat": CHAT, "completions": TEXT, "embeddings": EMBED}[endpoint]
    for body in (fields, {**base, **fields}):
        outcome = tried(endpoint, json.dumps(body).encode())
        if isinstance(outcome, ChatRequest):
            assert encode(outcome, model="m", cap_field="max_tokens", cache_salt="s", engine="openai")
        else:
            assert outcome.status == 400
            assert json.dumps(outcome.body())


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_request_error(body):
    with pytest.raises(RequestError):
        parse("chat", body, {}, LIMITS)


def steps_of(body: bytes, limits: LimitsConfig = LIMITS) -> int:
    """Lines of our code that reading a body runs: a measure of work that no busy machine disturbs."""
    count = 0

    def line(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += 1
        return line

    before = sys.gettrace()
    sys.settrace(line)
    try:
        with suppress(RequestError):
            parse("chat", body, {}, limits)
    finally:
        sys.settrace(before)
    return count


def many(size: int) -> dict[str, bytes]:
    turn = {"role": "user", "content": "x"}
    parts = [{"type": "text", "text": "x"}] * size
    tools = [{"type": "function", "function": {"name": "f"}}] * size
    bodies: dict[str, Any] = {
        "turns": {**CHAT, "messages": [{**turn, "role": "system"}] * size},
        "parts": {**CHAT, "messages": [{**turn, "content": parts}]},
        "tools": {**CHAT, "tools": tools},
        "unknown fields": {**CHAT, **{f"x{at}": at for at in range(size)}},
        "wide": {**CHAT, "x": [[] for _ in range(size)]},
        "stop": {**CHAT, "stop": ["x"] * size},
        "logit_bias": {**CHAT, "logit_bias": {str(at): 1 for at in range(size)}},
    }
    return {name: json.dumps(body).encode() for name, body in bodies.items()}


@pytest.mark.parametrize("kind", many(1))
def test_work_grows_no_faster_than_the_body(kind):
    limits = LimitsConfig(max_messages=100_000, max_tools=100_000)
    small, large = (steps_of(many(size)[kind], limits) for size in (500, 5_000))
    assert large <= 11 * small


def test_a_client_may_insist_on_a_role_and_only_on_one_that_exists():
    body = json.dumps({"model": "auto", "messages": [{"role": "user", "content": "hi"}]}).encode()
    assert parse("chat", body, {"x-llmrouter-role": "large"}, LimitsConfig()).role == "large"
    with pytest.raises(RequestError, match="must be one of small, large, frontier"):
        parse("chat", body, {"x-llmrouter-role": "huge"}, LimitsConfig())
