"""Reading what an upstream answered: a failure and its meaning, or a completion in the client's envelope."""

from __future__ import annotations

import email.utils
import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC
from typing import Any

import orjson

from llmrouter.gateway.deltas import new_call_id
from llmrouter.gateway.fields import ABORTED, REFUSED_IN_ANSWERS
from llmrouter.types import ChatRequest, Failure, Usage, value

__all__ = [
    "Completion",
    "Refusal",
    "client_usage",
    "read_completion",
    "read_json",
    "read_refusal",
    "refusal_from_error",
    "retry_after_s",
    "stated_usage",
]

_CONTEXT_WORDS = (
    "context length",
    "context_length",
    "context size",
    "exceed_context",
    "maximum context",
    "maximum model length",
    "max_model_len",
    "too many tokens",
)
_STATUS_OF_WORD = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "insufficient_quota": 429,
    "context_length_exceeded": 400,
    "invalid_request_error": 400,
    "BadRequestError": 400,
    "overloaded_error": 503,
    "unavailable_error": 503,
}
"""Codes and types of errors that come inside a 200, where no status tells what they mean."""

_LONGEST_WAIT_S = 3600.0
_LONGEST_MESSAGE = 2000
_LOOSE_BYTES = 1024 * 1024
"""Beyond this, JSON that is not strict is none: reading it the slow way would hold up all other requests."""
_SURROGATES = re.compile("[\ud800-\udfff]")


@value
class Refusal:
    """An error answer: what kind it is, and the engine's own words."""

    failure: Failure
    status: int
    message: str
    error: dict[str, Any]
    """The engine's error object; empty when it sent none."""


@value
class Completion:
    """A whole answer, ready for the client."""

    body: dict[str, Any]
    usage: dict[str, Any] | None
    finish_reason: str | None


def read_json(raw: bytes) -> Any:
    """JSON as engines write it: broken characters become U+FFFD, `NaN` and infinities null.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if len(raw) > _LOOSE_BYTES:
            raise
        try:
            loose = json.loads(raw.decode("utf-8", "replace"), parse_constant=lambda _: None)
        except RecursionError:
            raise error from None
        return orjson.loads(_SURROGATES.sub("\ufffd", json.dumps(loose, ensure_ascii=False)))


def stated_usage(raw: bytes) -> dict[str, Any]:
    """The usage object in a body that is otherwise no answer; empty when there is none."""
    try:
        body = read_json(raw)
    except ValueError:
        return {}
    usage = body.get("usage") if isinstance(body, dict) else None
    return usage if isinstance(usage, dict) else {}


def read_refusal(status: int, body: bytes) -> Refusal:
    """Classify an answer whose status is not 200.

    Understands OpenAI's `{"error": {...}}`, vLLM's flat `{"object": "error", ...}`, an error that is a string,
    frameworks' `{"detail": ...}`, and plain text.
    """
    try:
        parsed = read_json(body) if body else {}
    except ValueError:
        parsed = body[:_LONGEST_MESSAGE].decode("utf-8", "replace")
    return refusal_from_error(parsed, status)


def refusal_from_error(parsed: Any, status: int | None = None) -> Refusal:
    """Classify an error object, also one inside a 200; its `code` or `type` stands in for a missing status."""
    error = (parsed.get("error") or parsed) if isinstance(parsed, dict) else parsed
    if not isinstance(error, dict):
        error = {"message": str(error)[:_LONGEST_MESSAGE]}
    if status is None or status == 200:
        status = _status_inside(error)
    message = error.get("message") or error.get("detail") or ""
    text = message if isinstance(message, str) else orjson.dumps(message).decode()
    return Refusal(_failure(status, text, error), status, text[:_LONGEST_MESSAGE], error)


def _status_inside(error: dict[str, Any]) -> int:
    for name in ("code", "type"):
        word = str(error.get(name))
        if re.fullmatch("[45][0-9][0-9]", word):
            return int(word)
        if word in _STATUS_OF_WORD:
            return _STATUS_OF_WORD[word]
    return 502


def _failure(status: int, message: str, error: dict[str, Any]) -> Failure:
    if status in (400, 413, 422):
        words = f"{message} {error.get('code')} {error.get('type')}".lower()
        return Failure.CONTEXT if any(word in words for word in _CONTEXT_WORDS) else Failure.BAD_REQUEST
    if status == 429:
        return Failure.RATE_LIMITED
    if status in (408, 504):
        return Failure.TIMEOUT
    if status in (503, 529):
        return Failure.OVERLOADED
    # 501 is how llama.cpp says that it was started without what the path needs.
    return Failure.SERVER if status >= 500 and status != 501 else Failure.REFUSED


def retry_after_s(header: Callable[[str], str | None], now: Callable[[], float] = time.time) -> float | None:
    """Seconds to wait from `retry-after-ms`, else `retry-after` (seconds or an HTTP date), at most an hour."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = header(name)
        if text is None:
            continue
        try:
            seconds = float(text) * scale
        except ValueError:
            at = _http_date(text)
            if at is None:
                continue
            seconds = at - now()
        if seconds == seconds:  # not NaN
            return min(max(seconds, 0.0), _LONGEST_WAIT_S)
    return None


def _http_date(text: str) -> float | None:
    try:
        at = email.utils.parsedate_to_datetime(text)
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def read_completion(raw: bytes, request: ChatRequest, *, envelope: Mapping[str, Any]) -> Completion | Refusal:
    """A 200 body as the client gets it, or what is wrong with it.

    Args:
        envelope: `id`, `created` and `model` of the client's answer.
    """
    try:
        body = read_json(raw)
    except ValueError:
        return _not_an_answer("the answer is not JSON")
    if not isinstance(body, dict):
        return _not_an_answer("the answer is not a JSON object")
    if body.get("error") or body.get("object") == "error":
        return refusal_from_error(body)
    usage = body.get("usage")
    usage = usage if isinstance(usage, dict) else None
    body = {name: value for name, value in body.items() if name not in REFUSED_IN_ANSWERS}
    body.update(envelope)
    if request.endpoint == "embeddings":
        body.pop("id", None)
        body.pop("created", None)
        if not isinstance(body.get("data"), list):
            return _not_an_answer("the answer has no `data`")
        return Completion(body, usage, "stop")
    body["object"] = "chat.completion" if request.endpoint == "chat" else "text_completion"
    choices: Any = body.get("choices")
    fault = _fault_of_choices(choices, request)
    if fault is not None:
        return fault
    choices.sort(key=_index)
    for position, choice in enumerate(choices):
        choice["index"] = position
        choice.setdefault("logprobs", None)
        if request.endpoint == "chat":
            _complete_message(choice["message"])
    return Completion(body, usage, choices[0]["finish_reason"])


def _not_an_answer(what: str) -> Refusal:
    return Refusal(Failure.PROTOCOL, 502, what, {})


def _fault_of_choices(choices: Any, request: ChatRequest) -> Refusal | None:
    """Why these choices are not the whole answer to the request."""
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        return _not_an_answer("the answer has no choices")
    if len(choices) < request.n:
        return _not_an_answer(f"the answer has {len(choices)} of {request.n} choices")
    for choice in choices:
        finish = choice.get("finish_reason")
        if not isinstance(finish, str) or not finish:
            return _not_an_answer("a choice of the answer has no finish_reason")
        if finish in ABORTED:
            return Refusal(Failure.SERVER, 502, f"the engine ended the answer early (finish_reason `{finish}`)", {})
        if request.endpoint == "chat" and not isinstance(choice.get("message"), dict):
            return _not_an_answer("a choice of the answer has no message")
    return None


def _index(choice: dict[str, Any]) -> int:
    index = choice.get("index")
    return index if type(index) is int else 0


def _complete_message(message: dict[str, Any]) -> None:
    """What clients may rely on in a message and some engines leave out."""
    message.setdefault("role", "assistant")
    message.setdefault("content", None)
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            call["id"] = call.get("id") or new_call_id()
            call.setdefault("type", "custom" if "custom" in call else "function")


def client_usage(raw: Mapping[str, Any] | None, usage: Usage) -> dict[str, Any]:
    """The `usage` object of the answer.

    The engine's own object where it sent one, with the counts that the books hold: an engine that counts cached tokens
    beside its prompt, or breaks a sum, is corrected here as it is there.
    """
    counted: dict[str, Any] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    if raw is None:
        return counted
    parts = (
        ("prompt_tokens_details", "cached_tokens", usage.cached_tokens),
        ("completion_tokens_details", "reasoning_tokens", usage.reasoning_tokens),
    )
    for details, name, count in parts:
        told = raw.get(details)
        told = told if isinstance(told, Mapping) else {}
        if count or told.get(name):
            counted[details] = {**told, name: count}
    return {**raw, **counted}
