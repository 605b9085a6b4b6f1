"""Steps that take their time: wrappers that put waits between the actions of another step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field

from llmrouter.testing.actions import (
    Action,
    After,
    Engine,
    HoldFor,
    Plan,
    Step,
    Wait,
    is_chunk,
    is_event_stream,
    split,
)
from llmrouter.testing.answers import Answer
from llmrouter.testing.records import Incoming
from llmrouter.testing.watch import Signal

__all__ = ["Held", "Slow", "Takes"]


@dataclass(frozen=True, slots=True)
class Slow:
    """Waits before the headers, before the first chunk (or the body), and between chunks."""

    step: Step = field(default_factory=Answer)
    _: KW_ONLY
    before_headers_s: float = 0.0
    before_first_chunk_s: float = 0.0
    between_chunks_s: float = 0.0

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        plan = self.step.plan(request, engine)
        return Wait(self.before_headers_s), *_paced(plan, self.before_first_chunk_s, self.between_chunks_s)


@dataclass(frozen=True, slots=True)
class Takes:
    """Takes so many seconds in all: before a plain answer, or spread evenly over the chunks of a stream."""

    seconds: float
    step: Step = field(default_factory=Answer)

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        plan = self.step.plan(request, engine)
        if not is_event_stream(plan):
            return Wait(self.seconds), *plan
        share_s = self.seconds / sum(map(is_chunk, plan))
        return tuple(_paced(plan, share_s, share_s))


@dataclass(frozen=True, slots=True)
class Held:
    """Stops at a point of the answer until the test opens the gate with `gate.set()`: a delay without a clock."""

    gate: Signal
    step: Step = field(default_factory=Answer)
    after: After = "request"

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        before, rest = split(self.step.plan(request, engine), self.after)
        return *before, HoldFor(self.gate), *rest


def _paced(plan: Plan, first_s: float, between_s: float) -> Iterator[Action]:
    wait_s = first_s
    for action in plan:
        if is_chunk(action):
            yield Wait(wait_s)
            wait_s = between_s
        yield action
