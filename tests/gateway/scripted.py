"""A strategy whose plan is written in the test: a generator that yields targets and is sent what came of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from llmrouter.protocols import PlanInput, Steps
from llmrouter.types import Bound, BoundedCall, ChatRequest, Decision
from tests.support import Running

__all__ = ["DECISION", "Scripted", "asking", "follow_script"]

DECISION = Decision("cascade", "policy", route="cascade", score=0.625)

Script = Callable[[ChatRequest], Steps]


class Scripted:
    """Implements `protocols.Strategy`."""

    def __init__(self, script: Script, *, calls: int = 4) -> None:
        self._script = script
        self._calls = calls

    def plan(self, given: PlanInput) -> ScriptedPlan:
        bound = Bound(
            tuple(
                BoundedCall(each.model_id, self._calls, each.input_tokens, each.output_tokens)
                for each in given.candidates
            )
        )
        return ScriptedPlan(self._script(given.request), bound)


class ScriptedPlan:
    def __init__(self, steps: Steps, bound: Bound) -> None:
        self.decision = DECISION
        self._steps = steps
        self._bound = bound

    def steps(self) -> Steps:
        return self._steps

    def bound(self) -> Bound:
        return self._bound


def follow_script(gateway: Running, script: Script, *, calls: int = 4) -> None:
    """Let the tier `auto` follow a script."""
    gateway.assembly.state.tiers["auto"].strategy = Scripted(script, calls=calls)


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
