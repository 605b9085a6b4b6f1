"""JSON values by value: key order, spacing and the way numbers are written make no difference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

__all__ = ["json_text", "read_json", "same_calls", "value_text"]

_LONGEST = 50_000
_DEEPEST = 100
_WHOLE = 2.0**53


def read_json(text: str) -> tuple[Any] | None:
    """The value that a text is or holds, in a tuple of one; None where there is none.

    It may stand in a fence, or be the first object or list in prose.
    """
    if len(text) > _LONGEST:
        return None
    for candidate in _candidates(text):
        try:
            return (json.loads(candidate),)
        except (ValueError, RecursionError):
            continue
    return None


def json_text(text: str) -> str | None:
    """The value in a text, in one form; None where there is none."""
    found = read_json(text)
    return None if found is None else value_text(found[0])


def value_text(value: Any) -> str | None:
    """A JSON value in one form; None for what is nested too deep."""
    if _deeper_than(value, _DEEPEST):
        return None
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def same_calls(calls: Sequence[tuple[str, str]]) -> str | None:
    """Tool calls, name and arguments as JSON text, in one form; the order of parallel calls makes no difference."""
    forms = []
    for name, arguments in calls:
        found = read_json(arguments) if arguments.strip() else ({},)
        given: Any = " ".join(arguments.split())[:_LONGEST] if found is None else found[0]
        form = value_text({"name": name, "arguments": given})
        if form is None:
            return None
        forms.append(form)
    return f"[{','.join(sorted(forms))}]"


def _plain(value: Any) -> Any:
    """Whole numbers without a decimal point."""
    if isinstance(value, float):
        return int(value) if abs(value) < _WHOLE and value == int(value) else value
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value


def _deeper_than(root: Any, limit: int) -> bool:
    level = [root]
    for _ in range(limit):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True


def _candidates(text: str) -> list[str]:
    bare = text.strip()
    candidates = [bare]
    opening = bare.find("```")
    if opening >= 0:
        start = bare.find("\n", opening)
        end = bare.find("```", start) if start >= 0 else -1
        if start >= 0:
            candidates.append(bare[start : end if end >= 0 else len(bare)].strip())
    embedded = _embedded(bare)
    if embedded is not None and embedded != bare:
        candidates.append(embedded)
    return candidates


def _embedded(text: str) -> str | None:
    """From the first opening bracket to the one that closes it, strings read over."""
    starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    if not starts:
        return None
    start = min(starts)
    depth = 0
    quoted = False
    at = start
    while at < len(text):
        letter = text[at]
        if quoted:
            if letter == "\\":
                at += 1
            elif letter == '"':
                quoted = False
        elif letter == '"':
            quoted = True
        elif letter in "{[":
            depth += 1
        elif letter in "}]":
            depth -= 1
            if depth == 0:
                return text[start : at + 1]
        at += 1
    return None
