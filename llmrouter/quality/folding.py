"""Puts the chunks of a stream together again: the choices as an answer in one piece would have had them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

__all__ = ["fold"]

_PIECEMEAL = ("content", "refusal", "reasoning_content", "reasoning", "text", "arguments", "input")
"""Texts that come in pieces; everything else comes whole."""


def fold(events: bytes) -> list[dict[str, Any]]:
    """The choices of a stream, each with `message` or `text`, by index.

    Raises:
        ValueError: the bytes are not such a stream, or it ended in an error.
    """
    choices: dict[int, dict[str, Any]] = {}
    for chunk in _chunks(events):
        if not isinstance(chunk, dict) or not isinstance(chunk.get("choices"), list):
            raise ValueError("an event is no chunk of an answer")
        for part in chunk["choices"]:
            index = part.get("index", 0)
            _add(choices.setdefault(index, {"index": index, "finish_reason": None}), part)
    return [_whole(choices[index]) for index in sorted(choices)]


def _chunks(events: bytes) -> Iterator[Any]:
    for line in events.splitlines():
        name, _, data = line.partition(b":")
        if name == b"data" and (data := data.strip()) and data != b"[DONE]":
            yield orjson.loads(data)


def _add(choice: dict[str, Any], part: Mapping[str, Any]) -> None:
    if part.get("finish_reason") is not None:
        choice["finish_reason"] = part["finish_reason"]
    if "text" in part:
        _merge(choice, {"text": part["text"]})
    if part.get("delta"):
        delta = dict(part["delta"])
        calls = delta.pop("tool_calls", None) or ()
        message = choice.setdefault("message", {})
        _merge(message, delta)
        for fragment in calls:
            _merge(message.setdefault("tool_calls", {}).setdefault(fragment["index"], {}), fragment)


def _merge(target: dict[str, Any], fragment: Mapping[str, Any]) -> None:
    for name, value in fragment.items():
        if isinstance(value, dict):
            _merge(target.setdefault(name, {}), value)
        elif isinstance(value, str) and name in _PIECEMEAL:
            target.setdefault(name, _Pieces()).append(value)
        elif value is not None:
            target[name] = value


class _Pieces(list[str]):
    """Text that is joined once, at the end."""


def _whole(value: Any) -> Any:
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, dict):
        return {name: _calls(each) if name == "tool_calls" else _whole(each) for name, each in value.items()}
    return value


def _calls(by_index: Mapping[int, dict[str, Any]]) -> list[Any]:
    return [
        {name: each for name, each in _whole(by_index[index]).items() if name != "index"} for index in sorted(by_index)
    ]
