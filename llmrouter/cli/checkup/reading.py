"""Reads what an engine answered, whatever its shape: nothing here raises for a body that is not as it should be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx

__all__ = ["body_of", "content_of", "error_words", "first_choice", "has_logprobs", "has_usage", "object_in"]


def object_in(text: str | bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def body_of(answer: httpx.Response) -> dict[str, Any]:
    return object_in(answer.content)


def first_choice(answer: httpx.Response) -> dict[str, Any]:
    choices = body_of(answer).get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def content_of(choice: Mapping[str, Any]) -> str:
    message = choice.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, str) else ""


def has_usage(body: Mapping[str, Any]) -> bool:
    usage = body.get("usage")
    return isinstance(usage, dict) and isinstance(usage.get("prompt_tokens"), int)


def has_logprobs(choice: Mapping[str, Any]) -> bool:
    logprobs = choice.get("logprobs")
    return isinstance(logprobs, dict) and bool(logprobs.get("content"))


def error_words(answer: httpx.Response) -> str:
    """The engine's own words, shortened; error bodies come in several shapes."""
    body = body_of(answer)
    error = body.get("error", body)
    message = error.get("message") or error.get("detail") if isinstance(error, dict) else error
    return str(message or answer.text.strip() or "no message")[:200]
