"""What of a request and its answer goes into a sample: the words and the parameters, masked, without what identifies.

An answer is kept as its choices. Log probabilities are left out: they repeat the words token by token, where no search
finds a datum that several of them spell. So are the ids and counts of the envelope, which the ledger has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import orjson

from llmrouter.quality.folding import fold
from llmrouter.quality.redaction import MEDIA, USER, Redactor, Unreadable

__all__ = ["Unreadable", "kept_answer", "kept_request"]

_IDENTIFYING = ("user", "safety_identifier")
_MEDIA_KEYS = ("data", "file_data")
_MESSAGE_KEYS = ("role", "content", "refusal", "reasoning_content", "reasoning", "tool_calls", "function_call")


def kept_request(fields: Mapping[str, Any], redactor: Redactor, counts: Counter[str]) -> Any:
    """The client's JSON object as it is kept; the argument is left as it is. Adds to `counts` what was masked.

    Raises:
        Unreadable: it holds what cannot be searched: a prompt of token numbers, or too deep a nesting.
    """
    if not redactor.masks:
        return dict(fields)
    kept = dict(fields)
    if _token_ids(kept.get("prompt")):
        raise Unreadable("the prompt is token numbers, which cannot be searched")
    for name in _IDENTIFYING:
        if kept.get(name) is not None:
            kept[name] = USER
            counts["user"] += 1
    if isinstance(kept.get("messages"), list | tuple):
        kept["messages"] = [_without_media(message, counts) for message in kept["messages"]]
    return redactor.value(kept, counts)


def kept_answer(answer: bytes, redactor: Redactor, counts: Counter[str], *, stream: bool) -> Any:
    """The choices of an answer as it is kept; `answer` is the JSON body, or the events of the stream, that was sent.

    Raises:
        Unreadable: it is no answer, or nested too deeply.
    """
    try:
        choices = fold(answer) if stream else _choices(orjson.loads(answer))
    except (ValueError, TypeError, KeyError, AttributeError):  # whatever is not where an answer has it
        raise Unreadable("the answer is not one that can be read") from None
    kept = [_kept_choice(choice) for choice in choices]
    return redactor.value(kept, counts) if redactor.masks else kept


def _token_ids(prompt: Any) -> bool:
    parts = prompt if isinstance(prompt, list) else []
    return any(not isinstance(part, str) for part in parts)


def _without_media(message: Any, counts: Counter[str]) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list):
        return message
    return {**message, "content": [_without_bytes(part, counts) for part in content]}


def _without_bytes(part: Any, counts: Counter[str]) -> Any:
    """A content part without the bytes of a picture, a sound or a file that stand in it; addresses stay."""
    if not isinstance(part, Mapping):
        return part
    kept: dict[str, Any] = {}
    for name, value in part.items():
        inline = isinstance(value, str) and (name in _MEDIA_KEYS or value[:5].lower() == "data:")
        if inline and part.get("type") != "text":
            kept[name] = MEDIA
            counts["media"] += 1
        else:
            kept[name] = _without_bytes(value, counts)
    return kept


def _choices(body: Any) -> list[dict[str, Any]]:
    choices = body["choices"]
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise ValueError("choices")
    return choices


def _kept_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {"index": choice.get("index", 0), "finish_reason": choice.get("finish_reason")}
    if "text" in choice:
        kept["text"] = choice["text"]
    message = choice.get("message")
    if isinstance(message, Mapping):
        kept["message"] = {name: message[name] for name in _MESSAGE_KEYS if message.get(name) is not None}
    return kept
