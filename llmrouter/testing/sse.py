"""A strict reader of chat streams for tests, independent of the code under test and of any SDK."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["fold_chunks", "parse_sse"]


def parse_sse(raw: bytes) -> list[Any]:
    """The data of all events in order: a JSON value each, and the text `"[DONE]"` for the end marker.

    Raises:
        AssertionError: something an OpenAI SDK chokes on or silently loses: `id:` and `retry:` lines, an event without
            data or without its blank line, data that is no JSON, any data after `[DONE]`, unknown fields, bad UTF-8.
    """
    lines = re.split("\r\n|\r|\n", _decoded(raw))
    assert lines.pop() == "", f"the stream ends inside a line: {lines[-1:]}"
    events: list[Any] = []
    data: list[str] = []
    named = False
    for line in lines:
        if not line:
            assert data or not named, "an event without data"
            if data:
                _append(events, "\n".join(data))
            data, named = [], False
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            assert name in ("data", "event"), f"a field that clients choke on or drop: {line!r}"
            named = named or name == "event"
            data += [value.removeprefix(" ")] if name == "data" else []
    assert not data, f"the last event lacks its blank line: {data}"
    assert not named, "an event without data"
    return events


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise AssertionError(f"not UTF-8: {error}") from error


def _append(events: list[Any], data: str) -> None:
    assert "[DONE]" not in events, f"data after [DONE]: {data}"
    if data == "[DONE]":
        events.append(data)
        return
    try:
        events.append(json.loads(data))
    except ValueError as error:
        raise AssertionError(f"data that is no JSON: {data!r}") from error


def fold_chunks(chunks: Iterable[Any]) -> dict[str, Any]:
    """The `chat.completion` that a stream's chunks add up to; `"[DONE]"` at the end is allowed.

    Raises:
        AssertionError: an error event, or chunks that break the contract with clients: differing ids, a choice that
            begins before a lower one or without a role, tool calls not numbered densely or named twice, content after
            the finish, more than one usage chunk.
    """
    whole: dict[str, Any] = {"object": "chat.completion"}
    choices: list[dict[str, Any]] = []
    for chunk in chunks:
        if chunk == "[DONE]":
            continue
        assert "error" not in chunk, f"the stream ends in an error: {chunk['error']}"
        assert chunk["object"] == "chat.completion.chunk", f"not a chunk: {chunk}"
        _fold_envelope(whole, chunk)
        for part in chunk["choices"]:
            _fold_choice(choices, part)
    for choice in choices:
        # A stream begins with "" where a plain answer of nothing but calls says null.
        if choice["message"].get("tool_calls") and not choice["message"]["content"]:
            choice["message"]["content"] = None
    return whole | {"choices": choices}


def _fold_envelope(whole: dict[str, Any], chunk: Mapping[str, Any]) -> None:
    for name, value in chunk.items():
        if name in ("object", "choices", "obfuscation") or value is None:
            continue
        assert not (name == "usage" and "usage" in whole), "usage is told twice"
        assert name not in ("id", "created", "model") or whole.get(name, value) == value, f"{name} changes to {value!r}"
        whole[name] = value


def _fold_choice(choices: list[dict[str, Any]], part: Mapping[str, Any]) -> None:
    index, delta = part["index"], part["delta"]
    if index == len(choices):
        assert delta.get("role") == "assistant", f"choice {index} begins without a role: {delta}"
        choices.append({"index": index, "message": {"content": None}, "logprobs": None, "finish_reason": None})
    assert 0 <= index < len(choices), f"choice {index} begins before choice {len(choices)}"
    choice = choices[index]
    assert choice["finish_reason"] is None, f"choice {index} goes on after its finish: {part}"
    _fold_delta(choice["message"], delta)
    if part.get("logprobs"):
        told = choice["logprobs"] or {}
        choice["logprobs"] = {name: [*(told.get(name) or []), *(v or [])] for name, v in part["logprobs"].items()}
    extra = {name: value for name, value in part.items() if name not in ("index", "delta", "logprobs")}
    choice |= {name: value for name, value in extra.items() if value is not None}


def _fold_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            calls = message.setdefault("tool_calls", [])
            indices = [entry.get("index") for entry in value]
            assert len(set(indices)) == len(indices), f"one index twice in a chunk: {value}"
            for entry in value:
                _fold_tool_call(calls, entry)
        elif isinstance(value, str) and name != "role":
            message[name] = (message.get(name) or "") + value
        elif value is not None:
            message[name] = value


def _fold_tool_call(calls: list[dict[str, Any]], entry: Mapping[str, Any]) -> None:
    index = entry.get("index")
    assert isinstance(index, int), f"a tool call without an index: {entry}"
    function = entry.get("function") or {}
    if index == len(calls):
        assert entry.get("id"), f"tool call {index} begins without an id: {entry}"
        assert function.get("name"), f"tool call {index} begins without a name: {entry}"
        named = {"name": function["name"], "arguments": function.get("arguments") or ""}
        calls.append({"id": entry["id"], "type": entry.get("type", "function"), "function": named})
        return
    assert 0 <= index < len(calls), f"tool call {index} begins before tool call {len(calls)}"
    assert not entry.get("id"), f"tool call {index} is named twice: {entry}"
    assert not function.get("name"), f"tool call {index} is named twice: {entry}"
    calls[index]["function"]["arguments"] += function.get("arguments") or ""
