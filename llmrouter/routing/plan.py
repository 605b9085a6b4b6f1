"""The fallback plan: a chain of models, tried in order, each failure deciding what comes next.

| failure | next step |
|---|---|
| `connect`, `reset`, `timeout`, `server_error`, `protocol` | this model, up to `retries` times more, then the next |
| `overloaded` | likewise, but only where the model has another replica |
| `rate_limited`, `refused`, `no_capacity` | the next model |
| `context_length` | the next model with a larger context window |
| `bad_request`, `client_cancelled`, `deadline` | give up |

When the chain is used up and a model has said when it can be called again (the newest such word of each model counts),
the soonest one is called once more with `wait_s`, if that fits; up to `retries` waits.

Time: a plan has no clock. It knows the seconds left when it was made and the waits that it asked for itself, and never
asks for a wait that those rule out. The driver has the clock: before each call, and before each wait with the wait
added, it compares with the request's deadline and sends `Failure.DEADLINE` instead of calling; the plan then gives up.
So a retry after a time-out happens only if time is left, with the real time.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llmrouter.protocols import Candidate
from llmrouter.types import Bound, BoundedCall, Decision, Failure, Outcome, Target

__all__ = ["REACTIONS", "FallbackPlan", "Reaction", "another_call_may_mend"]

_Walk = Generator[Target, Outcome, None]

Reaction = Literal["retry", "next", "larger", "give_up"]

REACTIONS: Mapping[Failure, Reaction] = {
    Failure.CONNECT: "retry",
    Failure.RESET: "retry",
    Failure.TIMEOUT: "retry",
    Failure.SERVER: "retry",
    Failure.OVERLOADED: "retry",
    Failure.PROTOCOL: "retry",
    Failure.RATE_LIMITED: "next",
    Failure.REFUSED: "next",
    Failure.NO_CAPACITY: "next",
    Failure.CONTEXT: "larger",
    Failure.BAD_REQUEST: "give_up",
    Failure.CANCELLED: "give_up",
    Failure.DEADLINE: "give_up",
}
"""What a plan does after each failure; complete, so that a new failure must be decided here."""

_PASSES_WITH_TIME = frozenset({Failure.RATE_LIMITED, Failure.OVERLOADED, Failure.NO_CAPACITY})


@dataclass(slots=True)
class _Busy:
    """A model that can be called again later."""

    candidate: Candidate
    failure: Failure
    ready_s: float
    """When, in seconds of this plan's own waiting; calls in between only make it readier."""


class FallbackPlan:
    """Tries a chain of models in order; the plan of plain rules, and the tail of richer ones.

    `chain` starts with the chosen model and holds every model once. `decision.reason` is the reason of the first call.
    `tried` of the first model's calls have been made already; the first of them was no retry.
    """

    def __init__(
        self,
        decision: Decision,
        chain: Sequence[Candidate],
        *,
        retries: int,
        max_wait_s: float,
        deadline_s: float,
        tried: int = 0,
    ) -> None:
        self._decision = decision
        self._chain = tuple(chain)
        self._tried = tried
        self._retries = retries
        self._max_wait_s = max_wait_s
        self._deadline_s = deadline_s

    @property
    def decision(self) -> Decision:
        return self._decision

    @property
    def chain(self) -> tuple[Candidate, ...]:
        """The models in the order in which they are tried."""
        return self._chain

    def steps(self) -> _Walk:
        busy: dict[str, _Busy] = {}
        too_small = 0
        reason = self._decision.reason
        for position, candidate in enumerate(self._chain):
            if not _may_fit(candidate, too_small):
                continue
            outcome = yield from self._try(candidate, reason, self._retries - (self._tried if position == 0 else 0))
            if outcome.failure is None or REACTIONS[outcome.failure] == "give_up":
                return
            too_small = _too_small(candidate, outcome.failure, too_small)
            _note(busy, candidate, outcome, waited_s=0.0)
            reason = f"fallback:{outcome.failure}"
        yield from self._wait(busy, too_small)

    def bound(self) -> Bound:
        """Every model with all its retries, and every wait spent on any one of them."""
        return Bound(
            calls=tuple(
                BoundedCall(each.model_id, 1 + self._retries, each.input_tokens, each.output_tokens)
                for each in self._chain
            ),
            repeats=self._retries,
        )

    def _try(self, candidate: Candidate, reason: str, retries: int) -> Generator[Target, Outcome, Outcome]:
        """Call one model, and again after what another call may mend; return the last outcome."""
        outcome = yield Target(candidate.model_id, candidate.role, reason)
        for _ in range(retries):
            if outcome.failure is None or not another_call_may_mend(outcome.failure, candidate):
                break
            outcome = yield Target(candidate.model_id, candidate.role, f"retry:{outcome.failure}")
        return outcome

    def _wait(self, busy: dict[str, _Busy], too_small: int) -> _Walk:
        """Call the model that is ready soonest, after its wait, while waits are left and fit."""
        waited_s = 0.0
        for _ in range(self._retries):
            able = [each for each in busy.values() if _may_fit(each.candidate, too_small)]
            if not able:
                return
            soonest = min(able, key=lambda each: each.ready_s)
            wait_s = max(0.0, soonest.ready_s - waited_s)
            if wait_s > self._max_wait_s or waited_s + wait_s >= self._deadline_s:
                return
            candidate = soonest.candidate
            outcome = yield Target(candidate.model_id, candidate.role, f"wait:{soonest.failure}", wait_s)
            if outcome.failure is None or REACTIONS[outcome.failure] == "give_up":
                return
            waited_s += wait_s
            too_small = _too_small(candidate, outcome.failure, too_small)
            _note(busy, candidate, outcome, waited_s)


def another_call_may_mend(failure: Failure, candidate: Candidate) -> bool:
    """Whether the same model may answer where it has just failed."""
    return REACTIONS[failure] == "retry" and (failure != Failure.OVERLOADED or candidate.replicas > 1)


def _note(busy: dict[str, _Busy], candidate: Candidate, outcome: Outcome, waited_s: float) -> None:
    """Keep a model's newest word on when it can be called again; an older word never outlives it."""
    busy.pop(candidate.model_id, None)
    after_s = outcome.retry_after_s
    if outcome.failure in _PASSES_WITH_TIME and after_s is not None and after_s == after_s:  # a NaN is no time
        busy[candidate.model_id] = _Busy(candidate, outcome.failure, waited_s + max(0.0, after_s))


def _may_fit(candidate: Candidate, too_small: int) -> bool:
    """Whether a model's window may hold what a window of `too_small` tokens did not; an unknown window may."""
    return candidate.context_window is None or candidate.context_window > too_small


def _too_small(candidate: Candidate, failure: Failure, so_far: int) -> int:
    if failure != Failure.CONTEXT or candidate.context_window is None:
        return so_far
    return max(so_far, candidate.context_window)
