"""Steps that go wrong: error answers, errors inside good answers, broken connections, bytes that are no answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from llmrouter.testing.actions import (
    After,
    Data,
    DialectName,
    Drop,
    End,
    Engine,
    Freeze,
    Head,
    Plan,
    Step,
    Write,
    is_chunk,
    is_event_stream,
    split,
    unframed,
)
from llmrouter.testing.answers import DONE, Answer, Headers, Json, event, json_plan
from llmrouter.testing.dialects import dialect
from llmrouter.testing.records import Incoming

__all__ = [
    "BrokenJson",
    "ErrorInside",
    "Hang",
    "HttpError",
    "Huge",
    "NotHttp",
    "RawHttp",
    "Refuses",
    "Reset",
    "Truncate",
    "Window",
]


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error status with an error body in the form of an engine."""

    status: int = 500
    message: str = "the fake was told to fail"
    _: KW_ONLY
    type: str | None = None
    """None: what the engine says for this status."""
    code: str | None = None
    param: str | None = None
    form: DialectName | Literal["vllm_flat", "text", "detail"] | None = None
    """Shape of the body. None: the backend's dialect. `vllm_flat` is the older vLLM form without `error` around it,
    `text` has a string under `error`, `detail` is what FastAPI says by itself."""
    retry_after_s: float | str | None = None
    """Sent as `retry-after` as it is written, so an HTTP date or rubbish can be given too."""
    retry_after_ms: float | None = None
    headers: Headers = field(default_factory=dict)

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        hints = {"retry-after": self.retry_after_s, "retry-after-ms": self.retry_after_ms}
        headers = {name: f"{value}" for name, value in hints.items() if value is not None}
        return Json(self._body(engine), self.status, {**headers, **self.headers}).plan(request, engine)

    def _body(self, engine: Engine) -> dict[str, Any]:
        if self.form == "text":
            return {"error": self.message}
        if self.form == "detail":
            return {"detail": self.message}
        if self.form == "vllm_flat":
            body = dialect("vllm").error(self.status, self.message, self.type, self.param, self.code)["error"]
            return {"object": "error", **body}
        writer = dialect(self.form or engine.dialect)
        return writer.error(self.status, self.message, self.type, self.param, self.code)


@dataclass(frozen=True, slots=True)
class ErrorInside:
    """A 200 that turns out to be an error: in a plain body, or as an event after so many chunks of a stream."""

    error: Mapping[str, Any] | str
    """What stands under `error`: an object or a text."""
    step: Step = field(default_factory=Answer)
    _: KW_ONLY
    after: int = 0
    event_line: bool = False
    """Put `event: error` before the data."""
    done: bool = True
    """Send `[DONE]` after it, as vLLM does."""

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        body = {"error": self.error if isinstance(self.error, str) else dict(self.error)}
        plan = unframed(self.step.plan(request, engine), self)
        if not is_event_stream(plan):
            waits = tuple(action for action in plan if not isinstance(action, Head | Data | End))
            return *waits, *json_plan(body, dialect(engine.dialect), {})
        chunks = [position for position, action in enumerate(plan) if is_chunk(action)]
        if len(chunks) < self.after:
            raise ValueError(f"this answer has no point after {self.after} chunks: it has {len(chunks)}")
        end = [*chunks, len(plan) - 1][self.after]
        line = b"event: error\n" if self.event_line else b""
        done = [Data(DONE)] if self.done else []
        return *plan[:end], Data(line + event(body)), *done, End()


@dataclass(frozen=True, slots=True)
class Hang:
    """Says no more after some point and keeps the connection open until the peer leaves."""

    step: Step = field(default_factory=Answer)
    after: After = "request"

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        return *split(self.step.plan(request, engine), self.after)[0], Freeze()


@dataclass(frozen=True, slots=True)
class Reset:
    """Breaks the connection with a TCP RST at some point; what the peer had not read by then may be lost to it."""

    step: Step = field(default_factory=Answer)
    after: After = "request"

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        return *split(self.step.plan(request, engine), self.after)[0], Drop("reset")


@dataclass(frozen=True, slots=True)
class Truncate:
    """Closes the connection in order, but before the answer is complete."""

    step: Step = field(default_factory=Answer)
    after: After = "half"

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        return *split(self.step.plan(request, engine), self.after)[0], Drop("close")


@dataclass(frozen=True, slots=True)
class RawHttp:
    """Any bytes on the socket, head included; then the connection is closed, reset, left silent or kept for more."""

    data: bytes
    then: Literal["close", "reset", "hang", "keep"] = "close"

    def plan(self, _request: Incoming, _engine: Engine) -> Plan:
        endings: dict[str, Plan] = {"close": (Drop("close"),), "reset": (Drop("reset"),), "hang": (Freeze(),)}
        return Write(self.data, counts=True), *endings.get(self.then, ())


@dataclass(frozen=True, slots=True)
class NotHttp:
    """What a port says that speaks another protocol."""

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        return RawHttp(b"\x15\x03\x01\x00\x02\x02\x46 this is not HTTP\r\n\r\n").plan(request, engine)


@dataclass(frozen=True, slots=True)
class BrokenJson:
    """A 200 whose JSON stops in the middle although HTTP says it is complete; a stream ends with such an event."""

    step: Step = field(default_factory=Answer)

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        plan = unframed(self.step.plan(request, engine), self)
        position, first = next((at, action) for at, action in enumerate(plan) if isinstance(action, Data))
        half = first.data.rstrip()[: len(first.data) // 2]
        tail = b"\n\n" if is_event_stream(plan) else b""
        return *plan[:position], Data(half + tail), End()


@dataclass(frozen=True, slots=True)
class Huge:
    """A valid JSON answer of at least that many bytes, written in blocks of 64 KiB."""

    size: int
    framing: Literal["length", "chunked"] = "length"

    def plan(self, _request: Incoming, _engine: Engine) -> Plan:
        block = Data(b"x" * 65536, counts=False)
        opening, closing = b'{"object":"chat.completion","choices":[{"index":0,"message":{"content":"', b'"}}]}'
        blocks = [block] * (self.size // len(block.data) + 1)
        head = Head(200, (("content-type", "application/json"),), self.framing)
        return head, Data(opening, counts=False), *blocks, Data(closing), End()


@dataclass(frozen=True, slots=True)
class Refuses:
    """An engine that answers 400 to a parameter it does not know, and otherwise as `step` says.

    `FakeBackend(default=Refuses("max_completion_tokens"))` is an older vLLM, `"max_tokens"` a newer hosted model.
    """

    param: str
    step: Step = field(default_factory=Answer)

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        if self.param not in request.fields:
            return self.step.plan(request, engine)
        message = f"Unsupported parameter: '{self.param}' is not supported with this model."
        error = HttpError(400, message, param=self.param, code="unsupported_parameter")
        return error.plan(request, engine)


@dataclass(frozen=True, slots=True)
class Window:
    """An engine whose context holds so many tokens (words, here) for prompt and cap together; more is a 400."""

    tokens: int
    step: Step = field(default_factory=Answer)

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        prompt, cap = request.prompt_words, request.output_cap or 0
        if prompt + cap <= self.tokens:
            return self.step.plan(request, engine)
        message = (
            f"This model's maximum context length is {self.tokens} tokens. However, you requested {prompt + cap} "
            f"tokens ({prompt} in the messages, {cap} in the completion)."
        )
        return HttpError(400, message, param="messages", code="context_length_exceeded").plan(request, engine)
