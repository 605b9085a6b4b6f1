"""Steps that write the same answer in other bytes: cuts, line ends, comments, compression, missing ends.

They wrap an answer directly; pacing and faults go around them. Those for event streams leave plain answers alone.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Literal

from llmrouter.testing.actions import (
    Action,
    Data,
    End,
    Engine,
    Head,
    Plan,
    Step,
    Write,
    cut,
    is_event_stream,
    lower,
    unframed,
    whole_body,
)
from llmrouter.testing.answers import DONE, Answer
from llmrouter.testing.records import Incoming

__all__ = [
    "Cut",
    "Dribble",
    "EndByClose",
    "Gzip",
    "LineEnds",
    "SplitData",
    "WithLines",
    "WithoutDone",
    "WithoutFinalBlankLine",
    "WithoutSpace",
]


@dataclass(frozen=True, slots=True)
class Cut:
    """Splits the body at these offsets into separate writes (and HTTP chunks), with a turn of the loop between.

    With `wire` the offsets count all bytes on the socket, the head and the chunk framing too.
    """

    step: Step
    at: tuple[int, ...]
    _: KW_ONLY
    wire: bool = False

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        plan = self.step.plan(request, engine)
        return cut(lower(plan), Write, self.at) if self.wire else cut(unframed(plan, self), Data, self.at)


@dataclass(frozen=True, slots=True)
class Dribble:
    """Writes so few bytes at a time, of the body or of everything on the wire."""

    step: Step = field(default_factory=Answer)
    size: int = 1
    _: KW_ONLY
    wire: bool = False

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        plan = self.step.plan(request, engine)
        if self.wire:
            plan = lower(plan)
            total = sum(len(action.data) for action in plan if isinstance(action, Write))
            return cut(plan, Write, tuple(range(self.size, total, self.size)))
        return cut(unframed(plan, self), Data, tuple(range(self.size, len(whole_body(plan)), self.size)))


@dataclass(frozen=True, slots=True)
class LineEnds:
    r"""Ends the lines of a stream with `\r\n` or `\r`, which the SSE specification allows."""

    step: Step = field(default_factory=Answer)
    end: Literal["\r\n", "\r"] = "\r\n"

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        return _each_event(self, request, engine, lambda event: [event.replace(b"\n", self.end.encode())])


@dataclass(frozen=True, slots=True)
class WithLines:
    """Adds SSE lines to a stream: to each event in front of its data, or as frames of their own between events.

    `WithLines(Answer(), in_each=("id: 7",), between=(": ping", "retry: 3000", "event: ping"))`
    """

    step: Step = field(default_factory=Answer)
    _: KW_ONLY
    in_each: tuple[str, ...] = ()
    between: tuple[str, ...] = ()

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        frames = [f"{line}\n\n".encode() for line in self.between]
        lines = "".join(f"{line}\n" for line in self.in_each).encode()
        return _each_event(self, request, engine, lambda event: [*frames, lines + event])


@dataclass(frozen=True, slots=True)
class WithoutSpace:
    """Writes `data:` with no space after it."""

    step: Step = field(default_factory=Answer)

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        return _each_event(self, request, engine, lambda event: [event.replace(b"data: ", b"data:", 1)])


@dataclass(frozen=True, slots=True)
class SplitData:
    """Spreads each event's JSON over several `data:` lines, which a reader joins with line feeds."""

    step: Step = field(default_factory=Answer)

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        return _each_event(self, request, engine, lambda event: [_spread(event)])


@dataclass(frozen=True, slots=True)
class WithoutDone:
    """Ends a stream without `[DONE]`."""

    step: Step = field(default_factory=Answer)

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        return _each_event(self, request, engine, lambda event: [] if event == DONE else [event])


@dataclass(frozen=True, slots=True)
class WithoutFinalBlankLine:
    """Leaves out the line ends after the last event of a stream."""

    step: Step = field(default_factory=Answer)

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        plan = unframed(self.step.plan(request, engine), self)
        if not is_event_stream(plan):
            return plan
        last = max(position for position, action in enumerate(plan) if isinstance(action, Data))
        return tuple(
            Data(action.data.rstrip(b"\r\n")) if position == last and isinstance(action, Data) else action
            for position, action in enumerate(plan)
        )


@dataclass(frozen=True, slots=True)
class EndByClose:
    """Tells the body's end by closing the connection: neither a length nor chunks, as HTTP/1.1 allows."""

    step: Step = field(default_factory=Answer)

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        plan = unframed(self.step.plan(request, engine), self)
        return tuple(replace(action, framing="close") if isinstance(action, Head) else action for action in plan)


@dataclass(frozen=True, slots=True)
class Gzip:
    """Compresses the body whether or not the client can read that; a stream is flushed after each event."""

    step: Step = field(default_factory=Answer)

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        plan = unframed(self.step.plan(request, engine), self)
        packed = _gzip_events(plan) if is_event_stream(plan) else _gzip_body(plan)
        return tuple(_encoded_head(action) for action in packed)


def _each_event(
    wrapper: LineEnds | WithLines | WithoutSpace | SplitData | WithoutDone,
    request: Incoming,
    engine: Engine,
    change: Callable[[bytes], Iterable[bytes]],
) -> Plan:
    """Replace each event of a stream by others, of which the last one counts as the chunk."""
    plan = unframed(wrapper.step.plan(request, engine), wrapper)
    if not is_event_stream(plan):
        return plan
    changed: list[Action] = []
    for action in plan:
        if not isinstance(action, Data):
            changed.append(action)
            continue
        pieces = list(change(action.data))
        changed += [Data(piece, counts=position == len(pieces)) for position, piece in enumerate(pieces, start=1)]
    return tuple(changed)


def _spread(event: bytes) -> bytes:
    text = event.decode().removeprefix("data: ").rstrip("\n")
    if not text.startswith("{"):
        return event
    lines = json.dumps(json.loads(text), ensure_ascii=False, indent=0).split("\n")
    return "".join(f"data: {line}\n" for line in lines).encode() + b"\n"


def _gzip_body(plan: Plan) -> Plan:
    packed = Data(gzip.compress(whole_body(plan), mtime=0))
    rest = tuple(action for action in plan if not isinstance(action, Data | End))
    return *rest, packed, End()


def _gzip_events(plan: Plan) -> Plan:
    packer = zlib.compressobj(wbits=31)
    packed: list[Action] = []
    for action in plan:
        if isinstance(action, End):
            packed.append(Data(packer.flush(), counts=False))
        if isinstance(action, Data):
            data = packer.compress(action.data) + packer.flush(zlib.Z_SYNC_FLUSH)
            packed.append(replace(action, data=data))
        else:
            packed.append(action)
    return tuple(packed)


def _encoded_head(action: Action) -> Action:
    if not isinstance(action, Head):
        return action
    return replace(action, headers=(*action.headers, ("content-encoding", "gzip")))
