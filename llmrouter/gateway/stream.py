"""A streamed answer on its way to the client: our envelope, our order, one finish a choice, the truth about its end.

`StreamRewriter` is pure: bytes in, bytes out. Most events of a long answer differ in their text alone, so what
surrounds the text is learned from one of them and exchanged on bytes; only other events are parsed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from llmrouter.gateway.deltas import ToolCalls
from llmrouter.gateway.fields import REFUSED_IN_ANSWERS
from llmrouter.gateway.sse import EventFramer, payload

__all__ = ["DONE", "KEEP_ALIVE", "StreamRewriter", "error_event"]

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

_ENVELOPE = frozenset(("id", "object", "created", "model", "choices", "usage", "obfuscation"))
_QUOTE = ord('"')
_PROBE = "llmrouter-text-stands-here"
_LESSONS = 8
"""How often a stream may change its plain events before each is simply parsed."""


class _Template(NamedTuple):
    """What surrounds the text in the plain events of one upstream, and what to put there instead."""

    prefix: bytes
    """All before the text, its opening quote included."""
    suffix: bytes
    """All behind it, from its closing quote on."""
    our_prefix: bytes
    our_suffix: bytes


_NONE_YET = _Template(b"", b"", b"", b"")


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
        self._usage_alone: dict[str, Any] | None = None
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
        self._template = _NONE_YET
        self._lessons = _LESSONS
        self._begun: set[int] = set()
        self._finished: dict[int, str] = {}
        self._waiting: dict[int, list[dict[str, Any]]] = {}
        """Choices of a later index, held until those before them have begun."""
        self._tools: dict[int, ToolCalls] = {}

    def feed(self, block: bytes) -> bytes:
        """Client bytes for a block of upstream bytes; whole events only."""
        if self.over:
            return b""
        out: list[bytes] = []
        prefix, suffix, our_prefix, our_suffix = self._template
        begin, end = len(prefix), -len(suffix)
        for event in self._framer.events(block):
            if prefix and event.startswith(prefix) and event.endswith(suffix):
                text = event[begin:end]
                # Without a quote and a last backslash it is the inside of one JSON string, whatever it says.
                if _QUOTE not in text and not text.endswith(b"\\") and (text.isascii() or _is_utf8(text)):
                    out += (our_prefix, text, our_suffix)
                    self.output_chunks += 1
                    continue
            data = payload(event)
            if data is None:
                continue
            out.append(self._read(data))
            if self.over:
                break
            prefix, suffix, our_prefix, our_suffix = self._template
            begin, end = len(prefix), -len(suffix)
        return b"".join(out)

    @property
    def over(self) -> bool:
        """Nothing of what may still come matters."""
        return self.done or self.failed

    @property
    def failed(self) -> bool:
        return self.error is not None or self.malformed is not None

    @property
    def complete(self) -> bool:
        """Every choice has begun and finished."""
        return len(self._finished) >= self._n

    def drain(self) -> bytes:
        """Client bytes of a last event that the upstream did not end with a blank line."""
        if self.over:
            return b""
        return b"".join([self._read(data) for data in self._framer.flush()])

    def end(self, usage: dict[str, Any] | None) -> bytes:
        """The ending of a complete stream: the usage chunk if the client asked for one, then `[DONE]`."""
        if not self._include_usage:
            return DONE
        return _event({**self._envelope, "choices": [], "usage": usage}) + DONE

    def _read(self, data: bytes) -> bytes:
        """One event that must be understood, as client events."""
        if data == b"[DONE]":
            self.done = True
            return b""
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            event = _lenient(data)
        if not isinstance(event, dict):
            self.malformed = "an event of the stream is not a JSON object"
            return b""
        if event.get("error") is not None or event.get("object") == "error":
            error = event.get("error", event)
            self.error = error if isinstance(error, dict) else {"message": str(error)}
            return b""
        chunk = self._chunk(event)
        if chunk and self._n == 1 and self._lessons:
            self._learn(event, data)
        return chunk

    def _chunk(self, event: dict[str, Any]) -> bytes:
        """One upstream event as client events."""
        usage, choices = event.get("usage"), event.get("choices")
        if isinstance(usage, dict):
            self._note_usage(usage, alone=not choices)
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

    def _note_usage(self, usage: dict[str, Any], *, alone: bool) -> None:
        """Keep the newest count; chunks of nothing but usage add up, as llama.cpp sends one for each of n choices."""
        before = self._usage_alone
        if alone:
            self._usage_alone = usage
            if before is not None and self._n > 1:
                output = int(before.get("completion_tokens") or 0) + int(usage.get("completion_tokens") or 0)
                total = int(usage.get("prompt_tokens") or 0) + output
                usage = self._usage_alone = {**usage, "completion_tokens": output, "total_tokens": total}
        self.usage = usage

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

    def _learn(self, event: dict[str, Any], data: bytes) -> None:
        """Remember what surrounds the text of a plain event, if this is one.

        Plain: one choice with a single piece of text and nothing else that could matter. The guess where the text
        stands is proven by reading the event with another text put there.
        """
        spot = _text_spot(event, chat=self._chat)
        if spot is None or "obfuscation" in event or not REFUSED_IN_ANSWERS.isdisjoint(event):
            return
        holder, name = spot
        text = holder[name]
        quoted = orjson.dumps(text)
        start = data.rfind(b"%b" % quoted)
        if quoted[1:-1] != text.encode() or data.count(quoted) != 1:
            return
        self._lessons -= 1
        prefix, suffix = data[: start + 1], data[start + len(quoted) - 1 :]
        holder[name] = _PROBE
        if orjson.loads(prefix + _PROBE.encode() + suffix) != event:
            return
        extras = {k: v for k, v in event.items() if k not in _ENVELOPE}
        ours = self._event(extras, event["choices"][0])
        our_prefix, _, our_suffix = ours.partition(_PROBE.encode())
        self._template = _Template(b"data: " + prefix, suffix, our_prefix, our_suffix)


def error_event(body: dict[str, Any]) -> bytes:
    """The one form in which OpenAI clients notice an error after the stream has begun."""
    return _event(body)


def _text_spot(event: dict[str, Any], *, chat: bool) -> tuple[dict[str, Any], str] | None:
    """Where a plain event holds its one piece of text: the mapping and the key; None when the event is not plain."""
    choices = event["choices"]
    if len(choices) != 1 or event.get("usage") is not None:
        return None
    choice = choices[0]
    if choice.get("index", 0) != 0 or choice.get("finish_reason") is not None or choice.get("logprobs"):
        return None
    if not chat:
        return (choice, "text") if choice.get("text") else None
    delta = choice.get("delta")
    if not isinstance(delta, dict) or len(delta) != 1:
        return None
    ((name, text),) = delta.items()
    return (delta, name) if isinstance(text, str) and text and name != "role" else None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


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
