"""Reading what an upstream answered: a failure and its meaning, or a completion in the client's envelope."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from llmrouter.gateway.fields import REFUSED_IN_ANSWERS
from llmrouter.types import ChatRequest, Failure, Usage

__all__ = [
    "Completion",
    "Refusal",
    "client_usage",
    "read_completion",
    "read_refusal",
    "refusal_from_error",
    "retry_after_s",
]

_CONTEXT_WORDS = (
    "context length",
    "context_length",
    "context size",
    "exceed_context",
    "maximum context",
    "too many tokens",
)
_LONGEST_WAIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error answer: what kind it is, and the engine's own words."""

    failure: Failure
    status: int
    message: str
    error: dict[str, Any]
    """The engine's error object; empty when it sent none."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer, ready for the client."""

    body: dict[str, Any]
    usage: dict[str, Any] | None
    finish_reason: str | None


def read_refusal(status: int, body: bytes) -> Refusal:
    """Classify an answer whose status is not 200.

    Understands OpenAI's `{"error": {...}}`, vLLM's flat `{"object": "error", ...}`, an error that is a string,
    frameworks' `{"detail": ...}`, and plain text.
    """
    try:
        parsed = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError:
        parsed = {"message": body[:300].decode("utf-8", "replace")}
    return refusal_from_error(parsed, status)


def refusal_from_error(parsed: Any, status: int | None = None) -> Refusal:
    """Classify an error object, also one inside a 200; its integer `code` stands in for a missing status."""
    error = parsed.get("error", parsed) if isinstance(parsed, dict) else {"message": str(parsed)[:300]}
    if not isinstance(error, dict):
        error = {"message": str(error)[:300]}
    message = error.get("message") or error.get("detail") or ""
    code = error.get("code")
    if status is None or status == 200:
        digits = str(code or "")
        status = int(digits) if digits.isdigit() and 400 <= int(digits) <= 599 else 502
    text = message if isinstance(message, str) else orjson.dumps(message).decode()
    return Refusal(_failure(status, text, str(code or ""), str(error.get("type") or "")), status, text, error)


def _failure(status: int, message: str, code: str, kind: str) -> Failure:
    words = f"{message} {code} {kind}".lower()
    if status in (400, 413, 422):
        return Failure.CONTEXT if any(word in words for word in _CONTEXT_WORDS) else Failure.BAD_REQUEST
    if status == 429:
        return Failure.RATE_LIMITED
    if status in (408, 504):
        return Failure.TIMEOUT
    if status == 503:
        return Failure.OVERLOADED
    return Failure.SERVER if status >= 500 else Failure.REFUSED


def retry_after_s(header: Callable[[str], str | None], now: Callable[[], float] = time.time) -> float | None:
    """Seconds to wait from `retry-after-ms`, else `retry-after` (seconds or an HTTP date), at most an hour."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = header(name)
        if text is None:
            continue
        try:
            seconds = float(text) * scale
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(text).timestamp() - now()
            except ValueError:
                continue
        if seconds == seconds:  # not NaN
            return min(max(seconds, 0.0), _LONGEST_WAIT_S)
    return None


def read_completion(raw: bytes, request: ChatRequest, *, envelope: Mapping[str, Any]) -> Completion | Refusal:
    """A 200 body as the client gets it, or what is wrong with it.

    Args:
        envelope: `id`, `created` and `model` of the client's answer.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return Refusal(Failure.PROTOCOL, 502, "the answer is not JSON", {})
    if not isinstance(body, dict):
        return Refusal(Failure.PROTOCOL, 502, "the answer is not a JSON object", {})
    if body.get("error") is not None or body.get("object") == "error":
        return refusal_from_error(body)
    usage = body.get("usage")
    usage = usage if isinstance(usage, dict) else None
    body = {name: value for name, value in body.items() if name not in REFUSED_IN_ANSWERS}
    body.update(envelope)
    if request.endpoint == "embeddings":
        body.pop("id", None)
        body.pop("created", None)
        if not isinstance(body.get("data"), list):
            return Refusal(Failure.PROTOCOL, 502, "the answer has no `data`", {})
        return Completion(body, usage, "stop")
    body["object"] = "chat.completion" if request.endpoint == "chat" else "text_completion"
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(c, dict) for c in choices):
        return Refusal(Failure.PROTOCOL, 502, "the answer has no choices", {})
    if not all(isinstance(choice.get("finish_reason"), str) for choice in choices):
        return Refusal(Failure.PROTOCOL, 502, "a choice of the answer has no finish_reason", {})
    if request.endpoint == "chat" and not all(isinstance(choice.get("message"), dict) for choice in choices):
        return Refusal(Failure.PROTOCOL, 502, "a choice of the answer has no message", {})
    choices.sort(key=lambda choice: choice.get("index", 0))
    return Completion(body, usage, choices[0]["finish_reason"])


def client_usage(raw: Mapping[str, Any] | None, usage: Usage) -> dict[str, Any]:
    """The `usage` object of the answer: the engine's own with the three required counts, else our estimate."""
    counted = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    return counted if raw is None else {**counted, **raw}
