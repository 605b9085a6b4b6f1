"""A streamed answer on its way to the client: our envelope, our order, one finish a choice, the truth about its end.

`StreamRewriter` is pure: bytes in, bytes out. Most blocks of a long answer only need their envelope exchanged, which is
done on the bytes of the whole block at once; an event is parsed only when something in it must be read or changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from llmrouter.gateway.deltas import ToolCalls
from llmrouter.gateway.fields import REFUSED_IN_ANSWERS
from llmrouter.gateway.sse import EventFramer

__all__ = ["DONE", "KEEP_ALIVE", "StreamRewriter", "error_event"]

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

_ENVELOPE = frozenset(("id", "object", "created", "model", "choices", "usage", "obfuscation"))
_NULL_USAGE = b'"usage":null,'


@dataclass(frozen=True, slots=True)
class _Template:
    """What surrounds `choices` in the plain events of one upstream, and what to put there instead."""

    prefix: bytes
    suffix: bytes
    our_prefix: bytes
    our_suffix: bytes
    null_finish: bytes | None
    """How this upstream writes "no finish yet", or None when it leaves the key out."""
    usages: int
    """How often `"usage"` stands in its envelope."""

    def rewrite(self, events: bytes) -> tuple[bytes, int] | None:
        """Exchange the envelope of every event; None when one of them needs to be read.

        Exact because a raw newline or an unescaped quote cannot stand inside a JSON string, so the prefix (which
        begins with `data: {"`) and the suffix (which ends with a blank line) match only at the ends of events.
        """
        count = events.count(b"\n\n")
        if not (events.startswith(self.prefix) and events.endswith(self.suffix)):
            return None
        if count > 1 and (events.count(self.prefix) != count or events.count(self.suffix) != count):
            return None
        if b'"tool_calls"' in events or b'"error"' in events or events.count(b'"usage"') != self.usages * count:
            return None
        if self.null_finish is None:
            if b'"finish_reason"' in events:
                return None
        elif events.count(self.null_finish) != count:
            return None
        if not events.isascii():
            try:
                events.decode()
            except UnicodeDecodeError:
                return None
        if count == 1:
            middle = events[len(self.prefix) : len(events) - len(self.suffix)]
            return b"%b%b%b" % (self.our_prefix, middle, self.our_suffix), 1
        return events.replace(self.prefix, self.our_prefix).replace(self.suffix, self.our_suffix), count


class StreamRewriter:
    """Turns the bytes of one upstream stream into those of the client's stream.

    Feed blocks until `done` or the upstream ends, then ask `end`. Nothing that `feed` returns may be sent before
    `begun`; until then the attempt can still be replaced.

    Args:
        chunk_id, created, model: the client's envelope, the same on every chunk.
        include_usage: whether the client asked for usage.
        n: number of choices.
        chat: False for `/v1/completions`, whose chunks carry text and no role.
    """

    def __init__(
        self, *, chunk_id: str, created: int, model: str, include_usage: bool, n: int = 1, chat: bool = True
    ) -> None:
        self.begun = False
        """A content or tool delta, or a finish, has been passed on."""
        self.done = False
        """The upstream said `[DONE]`."""
        self.error: dict[str, Any] | None = None
        """An error object that came inside the stream."""
        self.malformed: str | None = None
        self.usage: dict[str, Any] | None = None
        self.finish_reason: str | None = None
        """Of the lowest choice."""
        self.output_chunks = 0
        """Events with output; an estimate of tokens where an engine reports no usage."""
        self._envelope: dict[str, Any] = {
            "id": chunk_id,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": created,
            "model": model,
        }
        self._include_usage = include_usage
        self._n = n
        self._chat = chat
        self._framer = EventFramer()
        self._template: _Template | None = None
        self._begun: set[int] = set()
        self._finished: dict[int, str] = {}
        self._waiting: dict[int, list[dict[str, Any]]] = {}
        """Choices of a later index, held until those before them have begun."""
        self._tools: dict[int, ToolCalls] = {}

    def feed(self, block: bytes) -> bytes:
        """Client bytes for a block of upstream bytes; whole events only."""
        if self.done or self.failed:
            return b""
        template = self._template
        if template is not None:
            events = self._framer.complete_prefix(block)
            if events is not None:
                if not events:
                    return b""
                rewritten = template.rewrite(events)
                if rewritten is not None:
                    self.output_chunks += rewritten[1]
                    return rewritten[0]
                # Whole events that need a reader; the framer holds only what comes after them.
                rest = self._framer.rest
                self._framer = EventFramer()
                out = self._read(self._framer.push(events))
                self._framer.push(rest)
                return out
        return self._read(self._framer.push(block))

    @property
    def failed(self) -> bool:
        return self.error is not None or self.malformed is not None

    @property
    def complete(self) -> bool:
        """Every choice has begun and finished."""
        return len(self._finished) >= self._n

    def drain(self) -> bytes:
        """Client bytes of a last event that the upstream did not end with a blank line."""
        return b"" if self.done or self.failed else self._read(self._framer.flush())

    def end(self, usage: dict[str, Any] | None) -> bytes:
        """The ending of a complete stream: the usage chunk if the client asked for one, then `[DONE]`."""
        if not self._include_usage:
            return DONE
        return _event({**self._envelope, "choices": [], "usage": usage}) + DONE

    def _read(self, payloads: list[bytes]) -> bytes:
        out: list[bytes] = []
        for payload in payloads:
            if payload == b"[DONE]":
                self.done = True
                break
            try:
                event = orjson.loads(payload)
            except orjson.JSONDecodeError:
                event = _lenient(payload)
            if not isinstance(event, dict):
                self.malformed = "an event of the stream is not a JSON object"
                break
            if event.get("error") is not None or event.get("object") == "error":
                error = event.get("error", event)
                self.error = error if isinstance(error, dict) else {"message": str(error)}
                break
            chunk = self._chunk(event)
            if chunk:
                out.append(chunk)
                self._learn(event, payload)
        return b"".join(out)

    def _chunk(self, event: dict[str, Any]) -> bytes:
        """One upstream event as client events."""
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        choices = event.get("choices")
        if not isinstance(choices, list):
            return b""
        ready: list[dict[str, Any]] = []
        for choice in choices:
            if isinstance(choice, dict):
                ready += self._admit(choice)
        if not ready:
            return b""
        extras = {k: v for k, v in event.items() if k not in _ENVELOPE and k not in REFUSED_IN_ANSWERS}
        return b"".join(self._event(extras, choice) for choice in ready)

    def _event(self, extras: dict[str, Any], choice: dict[str, Any]) -> bytes:
        null_usage = {"usage": None} if self._include_usage else {}
        return _event({**self._envelope, **extras, **null_usage, "choices": [choice]})

    def _admit(self, choice: dict[str, Any]) -> list[dict[str, Any]]:
        """What may go out now because of this part of a choice: its chunks, and those of choices it held up."""
        index = choice.get("index", 0)
        if not isinstance(index, int) or not 0 <= index < self._n or index in self._finished:
            return []
        part = self._normalise(choice, index) if self._chat else _text_part(choice, index)
        if part is None:
            return []
        if index not in self._begun and any(k not in self._begun for k in range(index)):
            self._waiting.setdefault(index, []).append(part)
            return []
        ready = self._emit(index, part)
        while (following := len(self._begun)) in self._waiting:
            for held in self._waiting.pop(following):
                ready += self._emit(following, held)
        return ready

    def _emit(self, index: int, part: dict[str, Any]) -> list[dict[str, Any]]:
        chunks = []
        if index not in self._begun:
            self._begun.add(index)
            if self._chat:
                role = {"role": "assistant", "content": ""}
                chunks.append({"index": index, "delta": role, "logprobs": None, "finish_reason": None})
        self.begun = True
        if part.get("delta") or part.get("text"):
            self.output_chunks += 1
        finish = part.get("finish_reason")
        if finish is not None:
            self._finished[index] = finish
            if index == min(self._finished):
                self.finish_reason = finish
        chunks.append(part)
        return chunks

    def _normalise(self, choice: dict[str, Any], index: int) -> dict[str, Any] | None:
        """A choice without its role and empty parts; None when nothing is left of it."""
        delta = choice.get("delta")
        delta = dict(delta) if isinstance(delta, dict) else {}
        delta.pop("role", None)
        calls = delta.pop("tool_calls", None)
        if isinstance(calls, list) and calls:
            delta["tool_calls"] = self._tools.setdefault(index, ToolCalls()).normalise(calls)
        if index not in self._begun:
            delta = {name: value for name, value in delta.items() if value not in (None, "", [])}
        finish = choice.get("finish_reason")
        if not any(value is not None for value in delta.values()) and finish is None and not choice.get("logprobs"):
            return None
        return {**choice, "index": index, "delta": delta, "finish_reason": finish}

    def _learn(self, event: dict[str, Any], payload: bytes) -> None:
        """Remember the envelope of a plain content event, so that the next ones are exchanged on bytes."""
        if self._template is not None or self._n != 1 or "obfuscation" in event or event.get("usage") is not None:
            return
        choices = event.get("choices")
        if not (isinstance(choices, list) and len(choices) == 1 and choices[0].get("finish_reason") is None):
            return
        if not REFUSED_IN_ANSWERS.isdisjoint(event) or "tool_calls" in (choices[0].get("delta") or {}):
            return
        start = payload.find(b'"choices"')
        start = payload.find(b"[", start)
        stop = payload.rfind(b"]") + 1
        try:
            if start < 0 or orjson.loads(payload[start:stop]) != choices:
                return
        except orjson.JSONDecodeError:
            return
        extras = {k: v for k, v in event.items() if k not in _ENVELOPE}
        head = orjson.dumps({**self._envelope, **extras})[:-1] + b","
        middle = payload[start:stop]
        spelled = [s for s in (b'"finish_reason":null', b'"finish_reason": null') if s in middle]
        self._template = _Template(
            prefix=b"data: " + payload[:start],
            suffix=payload[stop:] + b"\n\n",
            our_prefix=b"data: " + head + (_NULL_USAGE if self._include_usage else b"") + b'"choices":',
            our_suffix=b"}\n\n",
            null_finish=spelled[0] if spelled else None,
            usages=(payload[:start] + payload[stop:]).count(b'"usage"'),
        )


def error_event(body: dict[str, Any]) -> bytes:
    """The one form in which OpenAI clients notice an error after the stream has begun."""
    return _event(body)


def _text_part(choice: dict[str, Any], index: int) -> dict[str, Any] | None:
    finish = choice.get("finish_reason")
    return {**choice, "index": index} if choice.get("text") or finish is not None else None


def _event(value: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(value)


def _lenient(payload: bytes) -> Any:
    """An event whose text is not valid UTF-8, with replacement characters; None when it is not JSON either."""
    try:
        return orjson.loads(payload.decode("utf-8", "replace").encode())
    except orjson.JSONDecodeError:
        return None
