"""A strategy whose plan is written in the test: a generator that yields targets and is sent what came of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from llmrouter.protocols import Candidate, PlanInput, Steps
from llmrouter.types import Bound, BoundedCall, ChatRequest, Decision
from tests.support import Running

__all__ = ["DECISION", "Scripted", "asking", "follow_script"]

DECISION = Decision("cascade", "policy", route="cascade", score=0.625)

Script = Callable[[ChatRequest], Steps]


Worst = Callable[[Sequence[Candidate]], Bound]


def _four_each(candidates: Sequence[Candidate]) -> Bound:
    return Bound(tuple(BoundedCall(each.model_id, 4, each.input_tokens, each.output_tokens) for each in candidates))


class Scripted:
    """Implements `protocols.Strategy`."""

    def __init__(self, script: Script, bound: Worst) -> None:
        self._script = script
        self._bound = bound

    def plan(self, given: PlanInput) -> ScriptedPlan:
        return ScriptedPlan(self._script(given.request), self._bound(given.candidates))


class ScriptedPlan:
    def __init__(self, steps: Steps, bound: Bound) -> None:
        self.decision = DECISION
        self._steps = steps
        self._bound = bound

    def steps(self) -> Steps:
        return self._steps

    def bound(self) -> Bound:
        return self._bound


def follow_script(gateway: Running, script: Script, bound: Worst = _four_each) -> None:
    """Let the tier `auto` follow a script."""
    gateway.assembly.state.tiers["auto"].strategy = Scripted(script, bound)


def asking(request: ChatRequest, **fields: Any) -> ChatRequest:
    """The request with other fields, e.g. more choices; not streamed unless the fields say so."""
    kept = {name: value for name, value in request.fields.items() if name not in ("stream", "stream_options")}
    return dataclasses.replace(
        request,
        fields={**kept, **fields},
        stream=bool(fields.get("stream")),
        include_usage=False,
        n=fields.get("n", request.n),
        max_output_tokens=fields.get("max_tokens", request.max_output_tokens),
    )
