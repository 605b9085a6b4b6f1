"""Tool-call deltas in the one shape that OpenAI clients can fold: dense index, id and name once, one entry a chunk."""

from __future__ import annotations

from typing import Any

__all__ = ["ToolCalls"]


class ToolCalls:
    """Re-indexes the tool-call fragments of one choice."""

    __slots__ = ("_by_id", "_by_index", "_count", "_ids", "_last", "_named")

    def __init__(self) -> None:
        self._by_id: dict[str, int] = {}
        self._by_index: dict[int, int] = {}
        self._ids: dict[int, str] = {}
        self._named: set[int] = set()
        self._count = 0
        self._last = 0

    def normalise(self, fragments: list[Any]) -> list[dict[str, Any]]:
        """The fragments with our index; fragments of one call in one chunk are merged."""
        merged: dict[int, dict[str, Any]] = {}
        for fragment in fragments:
            if not isinstance(fragment, dict):
                continue
            slot, is_new = self._slot(fragment)
            part = self._clean(fragment, slot, is_new)
            if slot in merged:
                _merge(merged[slot], part)
            else:
                merged[slot] = part
        return list(merged.values())

    def _slot(self, fragment: dict[str, Any]) -> tuple[int, bool]:
        """Which call a fragment belongs to, and whether it begins it.

        An id that was seen names its call; a new id begins one, even on an index in use; without an id the index
        decides; without either the fragment continues the latest call.
        """
        call_id, index = fragment.get("id"), fragment.get("index")
        if not isinstance(index, int):
            index = None
        if isinstance(call_id, str) and call_id:
            if call_id in self._by_id:
                slot, new = self._by_id[call_id], False
            elif index in self._by_index and self._by_index[index] not in self._ids:
                slot, new = self._by_index[index], False
            else:
                slot, new = self._begin(), True
            self._by_id[call_id] = slot
        elif index is not None:
            new = index not in self._by_index
            slot = self._begin() if new else self._by_index[index]
        elif self._count == 0:
            slot, new = self._begin(), True
        else:
            slot, new = self._last, False
        if index is not None:
            self._by_index[index] = slot
        self._last = slot
        return slot, new

    def _begin(self) -> int:
        self._count += 1
        return self._count - 1

    def _clean(self, fragment: dict[str, Any], slot: int, is_new: bool) -> dict[str, Any]:
        part = {**fragment, "index": slot}
        call_id = part.pop("id", None)
        if isinstance(call_id, str) and call_id and slot not in self._ids:
            self._ids[slot] = call_id
            part["id"] = call_id
        if not is_new:
            part.pop("type", None)
        elif "type" not in part and "function" in part:
            part["type"] = "function"
        inner = part.get("function")
        if isinstance(inner, dict) and "name" in inner:
            if slot in self._named:
                part["function"] = {key: value for key, value in inner.items() if key != "name"}
            elif inner["name"]:
                self._named.add(slot)
        return part


def _merge(into: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        if name in ("function", "custom") and isinstance(value, dict):
            target = into.setdefault(name, {})
            for key, text in value.items():
                if key in ("arguments", "input") and isinstance(target.get(key), str) and isinstance(text, str):
                    target[key] += text
                else:
                    target.setdefault(key, text)
        elif name != "index":
            into.setdefault(name, value)
