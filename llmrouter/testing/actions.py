"""What a step becomes: a plan of small actions that the server plays without deciding anything.

A step first speaks of an HTTP answer (`Head`, `Data`, `End`); `lower` frames that as bytes (`Write`). Wrappers that
change the body work on the first form, wrappers that break the connection or cut the wire work on the second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from itertools import pairwise
from typing import Literal, Protocol

from llmrouter.testing.records import Incoming
from llmrouter.testing.watch import Signal

__all__ = [
    "Action",
    "After",
    "Data",
    "DialectName",
    "Drop",
    "End",
    "Engine",
    "Freeze",
    "Head",
    "HoldFor",
    "Plan",
    "Step",
    "Wait",
    "Write",
    "cut",
    "head_headers",
    "is_chunk",
    "is_event_stream",
    "is_head",
    "lower",
    "split",
    "unframed",
    "whole_body",
]

DialectName = Literal["vllm", "llama_cpp", "openai"]
After = Literal["request", "headers", "half"] | int
"""A point in an answer: nothing sent yet, the headers sent, half of the body's bytes, or so many chunks."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers, with the way in which the body's end is told."""

    status: int
    headers: tuple[tuple[str, str], ...]
    framing: Literal["length", "chunked", "close"]


@dataclass(frozen=True, slots=True)
class Data:
    """A piece of the body. `counts` marks the piece that completes an SSE event or a plain body."""

    data: bytes
    counts: bool = True


@dataclass(frozen=True, slots=True)
class End:
    """The regular end of the answer."""


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes for one write to the socket; `status` marks the end of the head."""

    data: bytes
    counts: bool = False
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Sleep."""

    seconds: float


@dataclass(frozen=True, slots=True)
class HoldFor:
    """Wait until the test opens the gate."""

    gate: Signal


@dataclass(frozen=True, slots=True)
class Freeze:
    """Do nothing until the peer goes away."""


@dataclass(frozen=True, slots=True)
class Drop:
    """End the connection: orderly with FIN, or with RST."""

    how: Literal["close", "reset"]


Action = Head | Data | End | Write | Wait | HoldFor | Freeze | Drop
Plan = tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Engine:
    """What a step may know of the backend that plays it."""

    dialect: DialectName
    models: tuple[str, ...]
    created: int


class Step(Protocol):
    """What the backend does with one call."""

    def plan(self, request: Incoming, engine: Engine, /) -> Plan:
        """The actions for this request; pure. A ValueError or TypeError says that the step does not fit the request."""


def is_head(action: Action) -> bool:
    return isinstance(action, Head) or (isinstance(action, Write) and action.status is not None)


def is_chunk(action: Action) -> bool:
    return isinstance(action, Data | Write) and action.counts


def is_event_stream(plan: Plan) -> bool:
    return any("text/event-stream" in head_headers(action).get("content-type", "") for action in plan)


def head_headers(action: Action) -> Mapping[str, str]:
    """Headers by lower-case name; empty for what is no head."""
    return {name.lower(): value for name, value in action.headers} if isinstance(action, Head) else {}


def whole_body(plan: Plan) -> bytes:
    return b"".join(action.data for action in plan if isinstance(action, Data))


def unframed(plan: Plan, wrapper: Step) -> Plan:
    """The plan as it is, if it still speaks of an HTTP answer.

    Raises:
        TypeError: it is bytes already, so the wrapper would change nothing.
    """
    if not any(isinstance(action, Head) for action in plan):
        raise TypeError(f"{type(wrapper).__name__} must wrap an answer directly, inside pacing and faults")
    return plan


def lower(plan: Plan) -> Plan:
    """The same plan with the HTTP answer framed as bytes; what is framed already stays as it is."""
    return tuple(_lowered(plan))


def _lowered(plan: Plan) -> Iterator[Action]:
    framing = "close"
    for action in plan:
        match action:
            case Head():
                framing = action.framing
                yield Write(_head_bytes(action, len(whole_body(plan))), status=action.status)
            case Data() if framing != "chunked":
                yield Write(action.data, action.counts)
            # An empty HTTP chunk would end the body.
            case Data() if action.data:
                yield Write(b"%x\r\n%b\r\n" % (len(action.data), action.data), action.counts)
            case Data():
                pass
            case End() if framing == "chunked":
                yield Write(b"0\r\n\r\n")
            case End() if framing == "close":
                yield Drop("close")
            case End():
                pass
            case _:
                yield action


def _head_bytes(head: Head, body_bytes: int) -> bytes:
    framing = {
        "length": (("content-length", str(body_bytes)),),
        "chunked": (("transfer-encoding", "chunked"),),
        "close": (("connection", "close"),),
    }[head.framing]
    given = head_headers(head)
    headers = head.headers + tuple(pair for pair in framing if pair[0] not in given)
    lines = [f"HTTP/1.1 {head.status} {_phrase(head.status)}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def split(plan: Plan, after: After) -> tuple[Plan, Plan]:
    """What comes before that point of the answer, and the rest, both framed as bytes."""
    plan = lower(plan)
    if after == "request":
        return (), plan
    if after == "half":
        return _split_in_half(plan)
    wanted = 0 if after == "headers" else after
    chunks = 0
    for position, action in enumerate(plan):
        chunks += is_chunk(action)
        if chunks == wanted and (is_chunk(action) or (wanted == 0 and is_head(action))):
            return plan[: position + 1], plan[position + 1 :]
    raise ValueError(f"this answer has no point after {after!r}: it has {chunks} chunks")


def _split_in_half(plan: Plan) -> tuple[Plan, Plan]:
    head, body = split(plan, "headers")
    middle = sum(len(action.data) for action in body if isinstance(action, Write)) // 2
    seen = 0
    for position, action in enumerate(body):
        if isinstance(action, Write) and seen + len(action.data) > middle:
            first, rest = action.data[: middle - seen], action.data[middle - seen :]
            return (*head, *body[:position], Write(first)), (Write(rest, action.counts), *body[position + 1 :])
        seen += len(action.data) if isinstance(action, Write) else 0
    return plan, ()


def cut(plan: Plan, kind: type[Data] | type[Write], offsets: tuple[int, ...]) -> Plan:
    """Split the pieces of that kind at absolute offsets of their joined bytes."""
    return tuple(_cut(plan, kind, sorted(set(offsets))))


def _cut(plan: Plan, kind: type[Data] | type[Write], offsets: list[int]) -> Iterator[Action]:
    start = 0
    for action in plan:
        if not isinstance(action, kind):
            yield action
            continue
        size = len(action.data)
        bounds = [0, *(at - start for at in offsets if start < at < start + size), size]
        yield from (_piece(action, begin, end) for begin, end in pairwise(bounds))
        start += size


def _piece(whole: Data | Write, begin: int, end: int) -> Data | Write:
    data, last = whole.data[begin:end], end == len(whole.data)
    if isinstance(whole, Data):
        return Data(data, whole.counts and last)
    return Write(data, whole.counts and last, whole.status if last else None)
