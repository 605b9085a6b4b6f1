"""Tool-call deltas in the one shape that OpenAI clients can fold: dense index, id and name once, one entry a chunk."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["ToolCalls", "new_call_id"]

_BODIES = ("function", "custom")
_FRAGMENTED = ("arguments", "input")
"""Texts that come in pieces; everything else of a call comes whole."""


class ToolCalls:
    """Re-indexes the tool-call fragments of one choice."""

    __slots__ = ("_by_id", "_by_index", "_count", "_last", "_named", "_with_id")

    def __init__(self) -> None:
        self._by_id: dict[str, int] = {}
        self._by_index: dict[int, int] = {}
        self._with_id: set[int] = set()
        """Calls to which the engine has given an id."""
        self._named: set[int] = set()
        self._count = 0
        self._last = 0

    def normalise(self, fragments: list[Any]) -> list[dict[str, Any]]:
        """The fragments with our index; fragments of one call in one chunk are merged."""
        merged: dict[int, dict[str, Any]] = {}
        for fragment in fragments:
            if isinstance(fragment, dict):
                slot, is_new = self._slot(fragment)
                _merge(merged.setdefault(slot, {"index": slot}), self._part(fragment, slot, is_new))
        return list(merged.values())

    def _slot(self, fragment: dict[str, Any]) -> tuple[int, bool]:
        """Which call a fragment belongs to, and whether it begins it.

        An id that was seen names its call; a new id begins one, even on an index in use; without an id the index
        decides; without either the fragment continues the latest call.
        """
        call_id, index = _text(fragment.get("id")), fragment.get("index")
        if type(index) is not int:
            index = None
        if call_id is not None:
            slot = self._by_id.get(call_id)
            if slot is None and index in self._by_index and self._by_index[index] not in self._with_id:
                slot = self._by_index[index]
        elif index is not None:
            slot = self._by_index.get(index)
        else:
            slot = self._last if self._count else None
        is_new = slot is None
        if slot is None:
            slot = self._count
            self._count += 1
        if call_id is not None:
            self._by_id[call_id] = slot
            self._with_id.add(slot)
        if index is not None:
            self._by_index[index] = slot
        self._last = slot
        return slot, is_new

    def _part(self, fragment: dict[str, Any], slot: int, is_new: bool) -> dict[str, Any]:
        """What a fragment adds to its call: id and type only where it begins, the name only once."""
        part: dict[str, Any] = {}
        if is_new:
            part["id"] = _text(fragment.get("id")) or new_call_id()
            part["type"] = _text(fragment.get("type")) or ("custom" if "custom" in fragment else "function")
        for key, value in fragment.items():
            if key in _BODIES:
                if isinstance(value, dict):
                    part[key] = self._body(value, slot)
            elif key not in ("index", "id", "type") and value is not None:
                part[key] = value
        return part

    def _body(self, body: dict[str, Any], slot: int) -> dict[str, Any]:
        name = _text(body.get("name"))
        if name is None or slot in self._named:
            return {key: value for key, value in body.items() if key != "name"}
        self._named.add(slot)
        return body


def new_call_id() -> str:
    """An id for a call of an engine that gives none; the client answers the call by it."""
    return f"call_{os.urandom(12).hex()}"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _merge(into: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        if name not in _BODIES:
            into.setdefault(name, value)
            continue
        body = into.setdefault(name, {})
        for key, text in value.items():
            before = body.get(key)
            if key in _FRAGMENTED and isinstance(before, str) and isinstance(text, str):
                body[key] = before + text
            elif before is None:
                body[key] = text
