"""The plain events of a stream, rewritten without parsing them.

Nearly all events of an answer are alike but for one text, a token. A `Frame` holds the bytes around that text, as the
upstream writes them and as the client gets them. The second half comes from the way that rewrites a parsed event, so
both ways give the same events; whatever is not exactly the frame around one JSON string takes the other way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from llmrouter.gateway.sse import payload

__all__ = ["Frame", "learn"]

_PROBE = "llmrouterProbe"
_TEXTS = {
    key: re.compile(rb'"%b"\s*:\s*"([^"\\]*(?:\\.[^"\\]*)*)"' % key.encode(), re.DOTALL)
    for key in ("content", "reasoning", "reasoning_content", "refusal", "text")
}
_SIMPLE = re.compile(rb'[^"\\\x00-\x1f]*').fullmatch
"""The inside of a JSON string without escapes."""
_ESCAPED = re.compile(
    rb'[^"\\\x00-\x1f]*'
    rb'(?:\\(?:["\\/bfnrt]'
    rb"|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}"
    rb"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb'[^"\\\x00-\x1f]*)*'
).fullmatch
"""The inside of any JSON string but one with half a surrogate pair."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands before, after and between the texts of consecutive plain events."""

    before: bytes
    after: bytes
    between: bytes
    our_before: bytes
    our_after: bytes
    our_between: bytes

    def exchange(self, events: bytes) -> tuple[bytes, int] | None:
        """The client's form of whole events and how many of them have text; None when one of them must be read."""
        before, after = self.before, self.after
        if not (events.startswith(before) and events.endswith(after)) or len(events) < len(before) + len(after):
            return None
        texts = events[len(before) : -len(after)].split(self.between)
        # A space keeps the broken characters of two events from making a whole one.
        inside = b" ".join(texts)
        if not _SIMPLE(inside) and not all(map(_ESCAPED, texts)):
            return None
        if not inside.isascii():
            try:
                inside.decode()
            except UnicodeDecodeError:
                return None
        ours = b"%b%b%b" % (self.our_before, self.our_between.join(texts), self.our_after)
        return ours, len(texts) - texts.count(b"")

    def surrounds(self, event: bytes) -> bool:
        """Whether an event, given without its blank line, differs from a plain one only inside the text."""
        return event.startswith(self.before) and event.endswith(self.after[:-2])


def learn(event: bytes, value: dict[str, Any], part: dict[str, Any], render: Callable[[Any], bytes]) -> Frame | None:
    """The frame of a plain event; None when it is not plain.

    Args:
        event: as it came, without its blank line.
        value: what was read from it.
        part: its choice as the client gets it.
        render: makes the client's event of such a choice.
    """
    key = plain_text(part)
    found = _TEXTS[key].search(event, event.find(b'"choices"')) if key is not None and b"\n" not in event else None
    if key is None or found is None or len(value["choices"]) != 1:
        return None
    before, after = event[: found.start(1)], event[found.end(1) :] + b"\n\n"
    expected = {**value, "choices": [_with_text(value["choices"][0], key, _PROBE)]}
    try:
        if orjson.loads(payload(before + _PROBE.encode() + after[:-2]) or b"") != expected:
            return None
    except orjson.JSONDecodeError:
        return None
    ours = render(_with_text(part, key, _PROBE)).split(_PROBE.encode())
    if len(ours) != 2:
        return None
    return Frame(before, after, after + before, ours[0], ours[1], ours[1] + ours[0])


def plain_text(part: dict[str, Any]) -> str | None:
    """The key of the one text of a choice that holds nothing else for the client to see."""
    if part.get("finish_reason") is not None:
        return None
    texts = part.get("delta", part)
    if "text" in texts:
        return "text"
    filled = [key for key, text in texts.items() if text]
    return filled[0] if len(filled) == 1 and filled[0] in _TEXTS and isinstance(texts[filled[0]], str) else None


def _with_text(choice: dict[str, Any], key: str, text: str) -> dict[str, Any]:
    if "delta" in choice:
        return {**choice, "delta": {**choice["delta"], key: text}}
    return {**choice, key: text}
