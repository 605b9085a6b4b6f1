"""What an upstream's bytes mean: failures by kind, whole answers in the client's envelope, waits, usage."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.gateway.answers import (
    Completion,
    Refusal,
    client_usage,
    read_completion,
    read_json,
    read_refusal,
    refusal_from_error,
    retry_after_s,
)
from llmrouter.pricing.cost import normalise_usage
from llmrouter.types import ChatRequest, Endpoint, Failure, Usage

ENVELOPE = {"id": "chatcmpl-ours", "created": 1_800_000_000, "model": "auto"}
MESSAGE = {"role": "assistant", "content": "Paris"}
USAGE = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}


def completion(**changes: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": MESSAGE, "logprobs": None, "finish_reason": "stop"}
    body = {"id": "theirs", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return {**body, "usage": USAGE, **changes}


def choices(*finishes: str | None) -> list[dict[str, Any]]:
    return [{"index": i, "message": MESSAGE, "finish_reason": finish} for i, finish in enumerate(finishes)]


def read(body: Any, *, endpoint: Endpoint = "chat", n: int = 1) -> Completion | Refusal:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    return read_completion(raw, ChatRequest(endpoint=endpoint, model="auto", fields={}, n=n), envelope=ENVELOPE)


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (400, Failure.BAD_REQUEST),
        (413, Failure.BAD_REQUEST),
        (422, Failure.BAD_REQUEST),
        (401, Failure.REFUSED),
        (403, Failure.REFUSED),
        (404, Failure.REFUSED),
        (302, Failure.REFUSED),
        (501, Failure.REFUSED),
        (408, Failure.TIMEOUT),
        (504, Failure.TIMEOUT),
        (429, Failure.RATE_LIMITED),
        (503, Failure.OVERLOADED),
        (529, Failure.OVERLOADED),
        (500, Failure.SERVER),
        (502, Failure.SERVER),
    ],
)
def test_a_status_has_one_meaning(status, failure):
    refusal = read_refusal(status, b'{"error": {"message": "no", "type": "t", "code": "c"}}')
    assert (refusal.failure, refusal.status, refusal.message) == (failure, status, "no")


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message": "no"}}',
        b'{"object": "error", "message": "no", "type": "BadRequestError", "param": null, "code": 400}',
        b'{"error": "no"}',
        b'{"error": null, "message": "no"}',
        b'{"detail": "no"}',
        b'"no"',
        b"no",
    ],
)
def test_every_form_of_an_error_body_gives_its_message(body):
    refusal = read_refusal(400, body)
    assert (refusal.failure, refusal.message) == (Failure.BAD_REQUEST, "no")


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"\xff\xfe", b"<html>", b"[" * 5000, b'{"error": {"code": "1e9"}}']
)
def test_a_body_that_says_nothing_still_has_its_status(body):
    assert read_refusal(503, body).failure is Failure.OVERLOADED


def test_a_structured_message_is_kept_as_text():
    assert read_refusal(422, b'{"detail": [{"loc": ["body"]}]}').message == '[{"loc":["body"]}]'


def test_a_huge_message_is_cut():
    assert len(read_refusal(400, orjson.dumps({"error": {"message": "x" * 10**6}})).message) == 2000
    assert len(read_refusal(400, b"x" * 10**6).message) == 2000


@pytest.mark.parametrize(
    "error",
    [
        {"message": "This model's maximum context length is 32768 tokens. However, you requested 33077 tokens"},
        {"message": "request (3031 tokens) exceeds the available context size (512 tokens), try increasing it"},
        {"message": "too long", "type": "exceed_context_size_error"},
        {"message": "too long", "code": "context_length_exceeded"},
        {"message": "The decoder prompt (length 600) is longer than the maximum model length of 512."},
    ],
)
def test_a_prompt_that_is_too_long_is_told_from_other_bad_requests(error):
    assert read_refusal(400, orjson.dumps({"error": error})).failure is Failure.CONTEXT


@pytest.mark.parametrize(
    ("error", "status", "failure"),
    [
        ({"code": 400, "message": "bad"}, 400, Failure.BAD_REQUEST),
        ({"code": "429"}, 429, Failure.RATE_LIMITED),
        ({"code": "rate_limit_exceeded"}, 429, Failure.RATE_LIMITED),
        ({"code": None, "type": "BadRequestError"}, 400, Failure.BAD_REQUEST),
        ({"type": "overloaded_error"}, 503, Failure.OVERLOADED),
        ({"code": "context_length_exceeded"}, 400, Failure.CONTEXT),
        ({"message": "boom"}, 502, Failure.SERVER),
        ({"code": 200}, 502, Failure.SERVER),
        ({"code": "²"}, 502, Failure.SERVER),
        ({"code": "4" * 5000}, 502, Failure.SERVER),
        ({"code": [400]}, 502, Failure.SERVER),
        ("just text", 502, Failure.SERVER),
        (None, 502, Failure.SERVER),
    ],
)
def test_an_error_inside_a_200_says_by_its_code_or_type_what_it_is(error, status, failure):
    refusal = refusal_from_error({"error": error})
    assert (refusal.status, refusal.failure) == (status, failure)


@given(st.integers(100, 999), st.binary(max_size=60))
def test_no_error_body_raises(status, body):
    assert read_refusal(status, body).failure in Failure


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "1e12"}, 3600.0),
        ({"retry-after": "inf"}, 3600.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "later"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Wed, 21 Oct 99999999999 07:28:00 GMT"}, None),
        ({}, None),
    ],
)
def test_the_wait_that_an_engine_asks_for(headers, seconds):
    assert retry_after_s(headers.get) == seconds


@pytest.mark.parametrize("zone", ["GMT", "-0000"])
def test_a_wait_may_be_a_date_in_universal_time(zone):
    now = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
    date = format_datetime(now + timedelta(seconds=30), usegmt=True).replace("GMT", zone)
    assert retry_after_s({"retry-after": date}.get, now=now.timestamp) == 30.0
    assert retry_after_s({"retry-after": date}.get, now=(now + timedelta(hours=1)).timestamp) == 0.0


@given(st.text(max_size=40))
def test_no_retry_header_raises(text):
    wait = retry_after_s({"retry-after": text}.get)
    assert wait is None or 0 <= wait <= 3600


def test_an_answer_gets_our_envelope_and_keeps_the_rest():
    answer = read(completion(system_fingerprint="fp", service_tier="default", x_new="kept"))
    assert isinstance(answer, Completion)
    assert answer.usage == USAGE
    assert answer.finish_reason == "stop"
    assert answer.body == completion(system_fingerprint="fp", service_tier="default", x_new="kept") | ENVELOPE


def test_engine_internals_stay_inside():
    answer = read(completion(timings={"prompt_ms": 3}, kv_transfer_params={}, metrics={}))
    assert isinstance(answer, Completion)
    assert answer.body.keys() == completion().keys()


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        (b"not json", Failure.PROTOCOL),
        (b"", Failure.PROTOCOL),
        (b"[1]", Failure.PROTOCOL),
        (b"{}", Failure.PROTOCOL),
        (b'{"choices": [' + b"[" * 3000, Failure.PROTOCOL),
        (completion(choices=[]), Failure.PROTOCOL),
        (completion(choices=["x"]), Failure.PROTOCOL),
        (completion(choices=choices(None)), Failure.PROTOCOL),
        (completion(choices=choices("")), Failure.PROTOCOL),
        (completion(choices=[{"index": 0, "finish_reason": "stop"}]), Failure.PROTOCOL),
        (completion(choices=choices("abort")), Failure.SERVER),
        (completion(choices=choices("error")), Failure.SERVER),
        ({"error": {"message": "boom", "code": 503}}, Failure.OVERLOADED),
        ({"error": "boom"}, Failure.SERVER),
        ({"object": "error", "message": "boom", "code": 400}, Failure.BAD_REQUEST),
    ],
)
def test_what_is_no_whole_answer_is_a_refusal(body, failure):
    refusal = read(body)
    assert isinstance(refusal, Refusal)
    assert refusal.failure is failure


@pytest.mark.parametrize("error", [None, "", {}, False])
def test_an_empty_error_beside_choices_is_no_error(error):
    assert isinstance(read(completion(error=error)), Completion)


def test_g034_choices_come_in_order_with_dense_indexes():
    given_choices = [
        {**choice, "index": index} for choice, index in zip(choices("length", "stop"), (1, 0), strict=True)
    ]
    answer = read(completion(choices=given_choices), n=2)
    assert isinstance(answer, Completion)
    assert [(c["index"], c["finish_reason"]) for c in answer.body["choices"]] == [(0, "stop"), (1, "length")]
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize("index", [None, "1", 0])
def test_choices_with_odd_indexes_are_numbered(index):
    answer = read(completion(choices=[{**choice, "index": index} for choice in choices("stop", "stop")]), n=2)
    assert isinstance(answer, Completion)
    assert [choice["index"] for choice in answer.body["choices"]] == [0, 1]


def test_g030_fewer_choices_than_asked_are_no_answer():
    refusal = read(completion(), n=2)
    assert isinstance(refusal, Refusal)
    assert (refusal.failure, refusal.message) == (Failure.PROTOCOL, "the answer has 1 of 2 choices")


def test_g025_a_tool_call_without_id_or_type_gets_them():
    call = {"function": {"name": "f", "arguments": "{}"}}
    given_choice = {
        "index": 0,
        "finish_reason": "tool_calls",
        "message": {"tool_calls": [call, {**call, "id": "mine"}]},
    }
    answer = read(completion(choices=[given_choice]))
    assert isinstance(answer, Completion)
    message = answer.body["choices"][0]["message"]
    assert (message["role"], message["content"]) == ("assistant", None)
    one, two = message["tool_calls"]
    assert one["id"].startswith("call_")
    assert (one["type"], two["id"]) == ("function", "mine")


def test_a_text_completion_keeps_its_kind():
    choice = {"index": 0, "text": "Paris", "logprobs": None, "finish_reason": "stop"}
    answer = read(completion(object="text_completion", choices=[choice]), endpoint="completions")
    assert isinstance(answer, Completion)
    assert (answer.body["object"], answer.body["choices"]) == ("text_completion", [choice])


def test_embeddings_have_no_id_and_need_data():
    body = {"id": "e", "created": 1, "object": "list", "data": [{"index": 0, "embedding": [0.1]}], "model": "m"}
    answer = read(body, endpoint="embeddings")
    assert isinstance(answer, Completion)
    assert answer.body == {"object": "list", "data": body["data"], "model": "auto"}
    assert isinstance(read({"object": "list"}, endpoint="embeddings"), Refusal)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b'{"a": "\xff"}', {"a": "\ufffd"}),
        (rb'{"a": "\ud83c"}', {"a": "\ufffd"}),
        (rb'{"a": "\ud83c\udf0d"}', {"a": "🌍"}),
        (b'{"a": [NaN, -Infinity]}', {"a": [None, None]}),
        (b"null", None),
    ],
)
def test_json_of_engines_is_read_with_its_flaws(raw, value):
    assert read_json(raw) == value


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a": 1', b"[" * 100_000, b"\xff", b"1" * 5000 + b"x"])
def test_what_is_not_json_is_a_value_error(raw):
    with pytest.raises(ValueError):
        read_json(raw)


@given(st.binary(max_size=80))
def test_no_body_raises(raw):
    assert isinstance(read(raw), Completion | Refusal)


JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from("choices message index finish_reason tool_calls id type function error usage data".split()),
            inner,
            max_size=6,
        ),
    ),
    max_leaves=25,
)


@given(JSON_VALUES, st.sampled_from(["chat", "completions", "embeddings"]))
def test_no_shape_of_answer_raises(body, endpoint):
    assert isinstance(read(body, endpoint=endpoint), Completion | Refusal)


def seen_by_client(raw: dict[str, Any]) -> dict[str, Any]:
    usage, _ = normalise_usage(raw)
    return client_usage(raw, usage)


@pytest.mark.parametrize(
    "raw",
    [
        USAGE,
        {**USAGE, "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0}},
        {**USAGE, "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 1}},
        {**USAGE, "prompt_tokens_details": None, "completion_tokens_details": None},
        {**USAGE, "num_sources_used": 3},
    ],
)
def test_g057_a_consistent_usage_reaches_the_client_as_it_is(raw):
    assert seen_by_client(raw) == raw


def test_g057_cached_tokens_counted_beside_the_prompt_are_shown_as_part_of_it():
    beside = {"input_tokens": 86, "cache_read_input_tokens": 1920, "output_tokens": 300}
    usage = seen_by_client(beside)
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (2006, 300, 2306)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 1920}
    within = {"prompt_tokens": 2006, "completion_tokens": 300, "prompt_tokens_details": {"cached_tokens": 1920}}
    assert {name: usage[name] for name in seen_by_client(within)} == seen_by_client(within)


@pytest.mark.parametrize(
    "raw",
    [
        {"prompt_tokens": 5, "completion_tokens": None, "total_tokens": None},
        {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 99},
        {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 50}},
        {"prompt_tokens": "5", "completion_tokens": -7},
        {},
    ],
)
def test_the_parts_of_usage_sum_whatever_the_engine_says(raw):
    usage = seen_by_client(raw)
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
    assert all(type(usage[name]) is int and usage[name] >= 0 for name in USAGE)
    details = usage.get("prompt_tokens_details") or {"cached_tokens": 0}
    assert details["cached_tokens"] <= usage["prompt_tokens"]


def test_without_usage_the_client_gets_our_estimate():
    assert client_usage(None, Usage(input_tokens=7, output_tokens=3, estimated=True)) == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
    }


def test_a_client_can_serialise_whatever_usage_came():
    assert json.dumps(seen_by_client({"prompt_tokens": 1, "odd": [None, {"a": "b"}]}))
