"""A streamed answer on its way to the client: our envelope, our order, one finish a choice, the truth about its end.

`StreamRewriter` is pure: bytes in, bytes out. Most events of a long answer differ in their text alone, so `frames`
rewrites them without parsing; an event is parsed when something else in it must be read or changed.
"""

from __future__ import annotations

from typing import Any

import orjson

from llmrouter.gateway.answers import read_json
from llmrouter.gateway.deltas import ToolCalls
from llmrouter.gateway.fields import ABORTED, REFUSED_IN_ANSWERS
from llmrouter.gateway.frames import Frame, learn, plain_text
from llmrouter.gateway.logprobs import LogprobFilter
from llmrouter.gateway.sse import EventFramer, payload
from llmrouter.gateway.usage import UsageTally

__all__ = ["DONE", "KEEP_ALIVE", "StreamRewriter", "error_event"]

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

_ENVELOPE = frozenset(("id", "object", "created", "model", "choices", "usage"))
_LARGEST_EVENT = 16 * 1024 * 1024
_USEFUL = 4
"""Events that a frame must serve to have been worth learning."""
_MOST_SHORT_FRAMES = 8


class StreamRewriter:
    """Turns the bytes of one upstream stream into those of the client's stream.

    Feed blocks until `done` or the upstream ends, then `drain`, then ask `end`. Nothing that `feed` returns may be sent
    before `begun`; until then the attempt can still be replaced.

    Args:
        chunk_id, created, model: the client's envelope, the same on every chunk.
        include_usage: whether the client asked for usage.
        n: number of choices.
        chat: False for `/v1/completions`, whose chunks carry text and no role.
        logprobs: reads and cuts the log-probabilities, where a plan asked for them.
    """

    def __init__(
        self,
        *,
        chunk_id: str,
        created: int,
        model: str,
        include_usage: bool,
        n: int = 1,
        chat: bool = True,
        logprobs: LogprobFilter | None = None,
    ) -> None:
        self.begun = False
        """A content or tool delta, or a finish, has been passed on."""
        self.done = False
        """The upstream said `[DONE]`."""
        self.error: dict[str, Any] | None = None
        """An error object that came inside the stream."""
        self.malformed: str | None = None
        self.finish_reason: str | None = None
        """Of the lowest choice that has finished."""
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
        self._logprobs = logprobs
        self._framer = EventFramer()
        self._frame: Frame | None = None
        self._short_frames = 0
        """Frames in a row that served hardly any event: an upstream whose envelope always changes."""
        self._learned_at = 0
        self._usage = UsageTally(n, one_prompt=chat)
        self._begun = 0
        """Choices that have begun; they begin in order."""
        self._finished: set[int] = set()
        self._waiting: dict[int, list[dict[str, Any]]] = {}
        """Choices of a later index, held until those before them have begun."""
        self._tools: dict[int, ToolCalls] = {}

    def feed(self, block: bytes) -> bytes:
        """Client bytes for a block of upstream bytes; whole events only."""
        if self.over:
            return b""
        events = self._framer.push(block)
        if not events:
            if self._framer.pending > _LARGEST_EVENT:
                self.malformed = f"an event of the stream is larger than {_LARGEST_EVENT} bytes"
            return b""
        frame = self._frame
        if frame is not None:
            exchanged = frame.exchange(events)
            if exchanged is not None:
                self.output_chunks += exchanged[1]
                return exchanged[0]
        return self._read(events)

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

    @property
    def calls_tools(self) -> bool:
        """A tool call has begun."""
        return bool(self._tools)

    @property
    def written(self) -> int:
        """Output tokens seen so far, as well as they can be counted."""
        return max(self.output_chunks, self._logprobs.tokens) if self._logprobs is not None else self.output_chunks

    @property
    def usage(self) -> dict[str, Any] | None:
        """What the engine has reported so far, of all choices together."""
        return self._usage.total()

    def drain(self) -> bytes:
        """Client bytes of a last event that the upstream did not end with a blank line."""
        if self.over:
            return b""
        out = self._read(self._framer.flush())
        if self.complete:
            # What was cut came after the last finish: the answer is whole.
            self.malformed = None
        return out

    def end(self, usage: dict[str, Any] | None) -> bytes:
        """The ending of a complete stream: the usage chunk if the client asked for one, then `[DONE]`."""
        if not self._include_usage:
            return DONE
        return _sse({**self._envelope, "choices": [], "usage": usage}) + DONE

    def _read(self, events: bytes) -> bytes:
        out: list[bytes] = []
        for event in events.split(b"\n\n"):
            frame = self._frame
            if frame is not None:
                exchanged = frame.exchange(event + b"\n\n")
                if exchanged is not None:
                    self.output_chunks += exchanged[1]
                    out.append(exchanged[0])
                    continue
            data = payload(event)
            if data is None and event.startswith(b"{") and not self.begun:
                # No stream at all: an error as plain JSON with status 200, or a whole answer.
                data = event
            if data is None:
                continue
            if data.strip() == b"[DONE]":
                self.done = True
                break
            out.append(self._rewrite(event, data))
            if self.failed:
                break
        return b"".join(out)

    def _rewrite(self, event: bytes, data: bytes) -> bytes:
        """One upstream event as client events."""
        value = self._parse(data)
        if value is None:
            return b""
        choices = value.get("choices")
        usage = value.get("usage")
        if isinstance(usage, dict):
            self._usage.note(usage, choices)
        ready: list[dict[str, Any]] = []
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                ready += self._admit(choice if self._logprobs is None else self._logprobs.pass_on(choice))
        if not ready:
            return b""
        extras = {k: v for k, v in value.items() if k not in _ENVELOPE and k not in REFUSED_IN_ANSWERS}
        try:
            out = b"".join(self._chunk(extras, choice) for choice in ready)
        except orjson.JSONEncodeError as error:
            self.malformed = f"an event of the stream cannot be passed on: {error}"
            return b""
        if self._n == 1 and usage is None and (self._logprobs is None or not _tells_logprobs(choices)):
            self._learn(event, value, extras, ready[-1])
        return out

    def _parse(self, data: bytes) -> dict[str, Any] | None:
        """The event's object; None when it holds nothing for the client, or says that the stream has failed."""
        try:
            value = read_json(data)
        except ValueError:
            value = data
        if value is None:
            # llama.cpp puts an event of `null` into streams of several prompts.
            return None
        if not isinstance(value, dict):
            self.malformed = "an event of the stream is not a JSON object"
            return None
        error = value.get("error")
        if error or value.get("object") == "error" or (error is not None and "choices" not in value):
            error = error or value
            self.error = error if isinstance(error, dict) else {"message": str(error)}
            return None
        return value

    def _chunk(self, extras: dict[str, Any], choice: dict[str, Any]) -> bytes:
        null_usage = {"usage": None} if self._include_usage else {}
        return _sse({**self._envelope, **extras, **null_usage, "choices": [choice]})

    def _admit(self, choice: dict[str, Any]) -> list[dict[str, Any]]:
        """What may go out now because of this part of a choice: its chunks, and those of choices it held up."""
        index = choice.get("index") or 0
        if type(index) is not int or not 0 <= index < self._n or index in self._finished:
            return []
        # Some servers write "" where others write null.
        finish = choice.get("finish_reason")
        if not isinstance(finish, str) or not finish:
            finish = None
        elif finish in ABORTED:
            self.error = {"message": f"the engine ended the answer early (finish_reason `{finish}`)"}
            return []
        part = self._delta_part(choice, index, finish) if self._chat else self._text_part(choice, index, finish)
        if part is None:
            return []
        if index > self._begun:
            self._waiting.setdefault(index, []).append(part)
            return []
        ready = self._emit(index, part)
        while self._begun in self._waiting:
            following = self._begun
            for held in self._waiting.pop(following):
                ready += self._emit(following, held)
        return ready

    def _emit(self, index: int, part: dict[str, Any]) -> list[dict[str, Any]]:
        if index in self._finished:
            return []
        chunks = []
        if index == self._begun:
            self._begun += 1
            self.begun = True
            if self._chat:
                role = {"role": "assistant", "content": ""}
                chunks.append({"index": index, "delta": role, "logprobs": None, "finish_reason": None})
        if _has_output(part):
            self.output_chunks += 1
        finish = part["finish_reason"]
        if finish is not None:
            if all(index < other for other in self._finished):
                self.finish_reason = finish
            self._finished.add(index)
            self._frame = None
        chunks.append(part)
        return chunks

    def _delta_part(self, choice: dict[str, Any], index: int, finish: str | None) -> dict[str, Any] | None:
        """A choice of a chat without its role and what is null; None when nothing is left of it."""
        given = choice.get("delta")
        if given is None and "message" in choice:
            # A whole answer where a stream was asked for.
            given = choice["message"]
            choice = {key: value for key, value in choice.items() if key != "message"}
        delta = {k: v for k, v in given.items() if v is not None} if isinstance(given, dict) else {}
        delta.pop("role", None)
        calls = delta.pop("tool_calls", None)
        if isinstance(calls, list) and (entries := self._tools.setdefault(index, ToolCalls()).normalise(calls)):
            delta["tool_calls"] = entries
        part = {**choice, "index": index, "delta": delta, "finish_reason": finish}
        if index >= self._begun and not _has_output(part):
            # A role, or an empty text, before there is any output.
            part["delta"] = delta = {}
        return part if delta or finish is not None or _has_output(part) else None

    def _text_part(self, choice: dict[str, Any], index: int, finish: str | None) -> dict[str, Any] | None:
        part = {**choice, "index": index, "text": choice.get("text") or "", "finish_reason": finish}
        return part if index < self._begun or finish is not None or _has_output(part) else None

    def _learn(self, event: bytes, value: dict[str, Any], extras: dict[str, Any], part: dict[str, Any]) -> None:
        """Take the frame of a plain event, so that the next ones need no reading."""
        frame = self._frame
        if plain_text(part) is None or self._short_frames == _MOST_SHORT_FRAMES:
            return
        if frame is not None and frame.surrounds(event):
            return
        useful = self.output_chunks - self._learned_at > _USEFUL
        self._short_frames = 0 if useful else self._short_frames + 1
        self._learned_at = self.output_chunks
        self._frame = learn(event, value, part, lambda choice: self._chunk(extras, choice))


def error_event(body: dict[str, Any]) -> bytes:
    """The one form in which OpenAI clients notice an error after the stream has begun."""
    return _sse(body)


def _has_output(part: dict[str, Any]) -> bool:
    """Whether a part of a choice holds anything that a model wrote."""
    if part.get("text") or any(part.get("delta", {}).values()):
        return True
    logprobs = part.get("logprobs")
    return isinstance(logprobs, dict) and any(logprobs.values())


def _tells_logprobs(choices: Any) -> bool:
    """Whether an event has what `LogprobFilter` must read, so that a frame must not pass the next one by."""
    return any(isinstance(choice, dict) and choice.get("logprobs") for choice in choices)


def _sse(value: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(value)
