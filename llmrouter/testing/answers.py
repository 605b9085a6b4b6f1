"""Steps that answer properly: what a healthy engine says, in its own dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from itertools import cycle, islice
from typing import Any, Literal

from llmrouter.testing.actions import Data, DialectName, End, Engine, Head, Plan, Step
from llmrouter.testing.content import Choice, Content, ToolCall, ToolShape, dump, split_tokens
from llmrouter.testing.dialects import Dialect, JsonObject, dialect
from llmrouter.testing.records import Incoming
from llmrouter.testing.render import UsageIn, chat_body, chat_chunks, embeddings_body, text_body, text_chunks

__all__ = ["Answer", "Bytes", "Decide", "Json", "RawSse", "Text", "event"]

Headers = Mapping[str, str]
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """A good answer, as JSON or as a stream, whichever the request asks for, with n choices and within its cap.

    Without text it echoes the last user message. On `/v1/embeddings` it answers with vectors made from the input.
    """

    text: str | tuple[str, ...] | None = None
    """A tuple gives the choices of n > 1 texts of their own, in turn."""
    _: KW_ONLY
    pieces: tuple[str, ...] | None = None
    """The tokens as they are streamed, instead of `text` cut at its spaces."""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_shape: ToolShape = "dense"
    finish_reason: str | None = None
    """None: `length` when the request's cap cut the text, else `tool_calls` or `stop`."""
    model: str | None = None
    """None: the model asked for."""
    usage: Mapping[str, Any] | None = None
    """Sent as it is, see `usage()`. None: counted by the fake. `{}`: this engine never reports usage."""
    usage_in: UsageIn = "asked"
    logprobs: tuple[float, ...] = (-0.1,)
    """Given to the tokens in turn when the request wants logprobs. `()`: this engine ignores that wish."""
    choice_order: Literal["first_first", "last_first"] | None = None
    """Which choice of a stream begins. None: as the dialect does (llama.cpp was seen to begin with the last)."""
    dialect: DialectName | None = None
    """None: the backend's."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further top-level fields of the body, or of every chunk."""
    choice_extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every choice."""
    headers: Headers = field(default_factory=dict)

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        writer = dialect(self.dialect or engine.dialect)
        if request.path.endswith("/embeddings"):
            return json_plan(embeddings_body(request, self._model(request, engine)), writer, self.headers)
        content = self._content(request, engine)
        chat = request.path.endswith("/chat/completions")
        if request.stream:
            last_first = writer.last_choice_first if self.choice_order is None else self.choice_order == "last_first"
            chunks = (
                chat_chunks(content, writer, self.usage_in, last_choice_first=last_first)
                if chat
                else text_chunks(content, writer, self.usage_in)
            )
            return sse_plan(map(self._extended, chunks), writer, self.headers)
        body = chat_body(content, writer) if chat else text_body(content, writer)
        return json_plan(self._extended(body), writer, self.headers)

    def _content(self, request: Incoming, engine: Engine) -> Content:
        return Content(
            request=request,
            model=self._model(request, engine),
            created=engine.created,
            choices=[self._choice(index, request) for index in range(request.n)],
            usage=self.usage,
            tool_shape=self.tool_shape,
        )

    def _model(self, request: Incoming, engine: Engine) -> str:
        asked = request.fields.get("model")
        return self.model or (asked if isinstance(asked, str) else engine.models[0])

    def _choice(self, index: int, request: Incoming) -> Choice:
        reasoning, content = split_tokens(self.reasoning), self._tokens(index, request)
        cap = request.output_cap
        cut = cap is not None and len(reasoning) + len(content) > cap
        if cap is not None:
            reasoning, content = reasoning[:cap], content[: max(0, cap - len(reasoning))]
        natural = "length" if cut else "tool_calls" if self.tool_calls else "stop"
        logprobs = tuple(islice(cycle(self.logprobs), len(content)))
        return Choice(index, reasoning, content, self.tool_calls, self.finish_reason or natural, logprobs)

    def _tokens(self, index: int, request: Incoming) -> tuple[str, ...]:
        if self.pieces is not None:
            return self.pieces
        if isinstance(self.text, tuple):
            return split_tokens(self.text[index % len(self.text)])
        if self.text is None and self.tool_calls:
            return ()
        return split_tokens(request.last_user_text if self.text is None else self.text)

    def _extended(self, body: JsonObject) -> JsonObject:
        body = body | dict(self.extra)
        if self.choice_extra:
            body["choices"] = [choice | dict(self.choice_extra) for choice in body["choices"]]
        return body


@dataclass(frozen=True, slots=True)
class Json:
    """Any JSON value with any status."""

    body: Any
    status: int = 200
    headers: Headers = field(default_factory=dict)

    def plan(self, _request: Incoming, _engine: Engine) -> Plan:
        return body_plan(self.status, dump(self.body), "application/json", self.headers)


@dataclass(frozen=True, slots=True)
class Text:
    """Any text with any status, e.g. a recorded `/metrics` body."""

    body: str = ""
    status: int = 200
    content_type: str = "text/plain; version=0.0.4; charset=utf-8"
    headers: Headers = field(default_factory=dict)

    def plan(self, _request: Incoming, _engine: Engine) -> Plan:
        return body_plan(self.status, self.body.encode(), self.content_type, self.headers)


@dataclass(frozen=True, slots=True)
class RawSse:
    """A stream of the given bytes, each piece one chunk; nothing is added, not even `[DONE]`."""

    pieces: tuple[bytes, ...] | bytes
    headers: Headers = field(default_factory=dict)

    def plan(self, _request: Incoming, engine: Engine) -> Plan:
        pieces = (self.pieces,) if isinstance(self.pieces, bytes) else self.pieces
        return stream_plan(pieces, dialect(engine.dialect), self.headers)


@dataclass(frozen=True, slots=True)
class Bytes:
    """A body of the given bytes with its length told."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    headers: Headers = field(default_factory=dict)

    def plan(self, _request: Incoming, _engine: Engine) -> Plan:
        return body_plan(self.status, self.body, self.content_type, self.headers)


@dataclass(frozen=True, slots=True)
class Decide:
    """Lets a function choose the step when the request is there; it must not block."""

    choose: Callable[[Incoming], Step]

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        return self.choose(request).plan(request, engine)


def event(value: Any) -> bytes:
    """One SSE event with a JSON value."""
    return b"data: " + dump(value) + b"\n\n"


def body_plan(status: int, body: bytes, content_type: str, headers: Headers) -> Plan:
    return Head(status, _merged({"content-type": content_type}, headers), "length"), Data(body), End()


def json_plan(body: JsonObject, writer: Dialect, headers: Headers, status: int = 200) -> Plan:
    head = _merged({"server": writer.server, "content-type": "application/json"}, headers)
    return Head(status, head, "length"), Data(dump(body, writer.json_indent)), End()


def sse_plan(chunks: Iterable[JsonObject], writer: Dialect, headers: Headers) -> Plan:
    return stream_plan([*map(event, chunks), DONE], writer, headers)


def stream_plan(pieces: Iterable[bytes], writer: Dialect, headers: Headers) -> Plan:
    head = _merged({"server": writer.server, "content-type": "text/event-stream; charset=utf-8"}, headers)
    return Head(200, head, "chunked"), *(Data(piece) for piece in pieces), End()


def _merged(defaults: Headers, headers: Headers) -> tuple[tuple[str, str], ...]:
    given = {name.lower() for name in headers}
    return (*((name, value) for name, value in defaults.items() if name not in given), *headers.items())
