"""An answer before any engine writes it down: choices, tokens, tool calls, usage."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llmrouter.testing.records import Incoming

__all__ = ["Choice", "Content", "Counts", "ToolCall", "ToolShape", "shape_tool_deltas", "split_tokens", "usage"]

ToolShape = Literal[
    "dense", "whole", "duplicate_index", "index_once", "no_index", "repeated_id", "index_from_one", "one_index"
]
"""How a stream numbers its tool calls.

`dense` is right: index always, from 0; id, type and name once; then fragments of the arguments. `whole` is right too,
with a call in one delta. The others are seen in the wild: the first chunk holds two entries of one index; the index
comes only with the first delta, later ones carry the id; no index at all; the id in every delta; the first index is 1;
all calls on index 0.
"""


def usage(prompt: int, completion: int, *, cached: int | None = None, reasoning: int | None = None) -> dict[str, Any]:
    """A usage object as OpenAI writes it, where cached and reasoning tokens are parts of the other two."""
    counted: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if cached is not None:
        counted["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning is not None:
        counted["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return counted


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model makes; `arguments` is the JSON text it wrote, valid or not."""

    name: str
    arguments: str = "{}"
    id: str = ""
    """Empty: one is made from the position."""

    def fragments(self) -> list[str]:
        """The arguments as a stream delivers them."""
        size = max(1, (len(self.arguments) + 2) // 3)
        return [self.arguments[at : at + size] for at in range(0, len(self.arguments), size)]


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens the fake counts by itself: words of the prompt, tokens as streamed."""

    prompt: int
    completion: int
    reasoning: int

    @property
    def total(self) -> int:
        return self.prompt + self.completion


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the n answers."""

    index: int
    reasoning: tuple[str, ...]
    content: tuple[str, ...]
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    logprobs: tuple[float, ...]
    """One a content token; empty when the engine gives none."""

    @property
    def tokens(self) -> int:
        calls = sum(1 + len(call.fragments()) for call in self.tool_calls)
        return len(self.reasoning) + len(self.content) + calls


@dataclass(frozen=True, slots=True)
class Content:
    """All that an engine needs to write an answer."""

    request: Incoming
    model: str
    created: int
    choices: Sequence[Choice]
    usage: Mapping[str, Any] | None
    """As the test gives it; None leaves the counting to the engine, an empty one is never sent."""
    tool_shape: ToolShape = "dense"

    def counts(self, choices: Sequence[Choice]) -> Counts:
        reasoning = sum(len(choice.reasoning) for choice in choices)
        return Counts(self.request.prompt_words, sum(choice.tokens for choice in choices), reasoning)


def split_tokens(text: str) -> tuple[str, ...]:
    """Words with the space before them; joined again they are the text."""
    return tuple(re.findall(r"\s*\S+|\s+$", text))


def shape_tool_deltas(calls: Sequence[ToolCall], shape: ToolShape) -> list[list[dict[str, Any]]]:
    """The `tool_calls` lists of a stream's deltas, one list a chunk."""
    deltas: list[list[dict[str, Any]]] = []
    for position, call in enumerate(calls):
        first, *rest = _call_deltas(position, call, shape)
        deltas += [[first, *rest[:1]], *([entry] for entry in rest[1:])] if shape == "duplicate_index" else []
        deltas += [[entry] for entry in (first, *rest)] if shape != "duplicate_index" else []
    return deltas


def _call_deltas(position: int, call: ToolCall, shape: ToolShape) -> list[dict[str, Any]]:
    index = {"index_from_one": position + 1, "one_index": 0}.get(shape, position)
    call_id = tool_call_id(position, call)
    where: dict[str, Any] = {} if shape == "no_index" else {"index": index}
    again = {"index_once": {"id": call_id}, "repeated_id": {**where, "id": call_id}}.get(shape, where)
    opening = {"name": call.name, "arguments": call.arguments if shape == "whole" else ""}
    first = {**where, "id": call_id, "type": "function", "function": opening}
    fragments = [] if shape == "whole" else call.fragments()
    return [first, *({**again, "function": {"arguments": fragment}} for fragment in fragments)]


def tool_call_id(position: int, call: ToolCall) -> str:
    return call.id or f"call_{position}_{call.name}"


def whole_tool_calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    """The `tool_calls` list of a message that is not streamed."""
    return [
        {
            "id": tool_call_id(position, call),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for position, call in enumerate(calls)
    ]


def dump(value: Any, indent: int | None = None) -> bytes:
    """JSON without spaces, or indented, in UTF-8."""
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=None if indent else (",", ":")).encode()
