"""A whole answer as the events of a stream, for a client that asked for one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

__all__ = ["events_of"]

_NOT_EXTRA = frozenset(("id", "object", "created", "model", "choices", "usage"))


def events_of(body: Mapping[str, Any]) -> Iterator[bytes]:
    """Events as an engine would have streamed this answer: each choice's words, then its calls, then its finish.

    They still need `StreamRewriter`, as any engine's events do.
    """
    extras = {name: value for name, value in body.items() if name not in _NOT_EXTRA}
    for choice in body["choices"]:
        for part in _parts(choice):
            yield b"data: %b\n\n" % orjson.dumps({**extras, "choices": [{"index": choice["index"], **part}]})
    yield b"data: [DONE]\n\n"


def _parts(choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    ending = {name: value for name, value in choice.items() if name not in ("message", "text", "logprobs")}
    if "message" not in choice:
        yield {"text": choice.get("text") or "", "logprobs": choice.get("logprobs"), "finish_reason": None}
        yield {**ending, "text": "", "logprobs": None}
        return
    message = choice["message"]
    calls = message.get("tool_calls")
    words = {name: value for name, value in message.items() if value and name not in ("role", "tool_calls")}
    if words:
        yield {"delta": words, "logprobs": choice.get("logprobs"), "finish_reason": None}
    for position, call in enumerate(calls if isinstance(calls, list) else ()):
        if isinstance(call, Mapping):
            yield {"delta": {"tool_calls": [{**call, "index": position}]}, "logprobs": None, "finish_reason": None}
    yield {**ending, "delta": {}, "logprobs": None}
