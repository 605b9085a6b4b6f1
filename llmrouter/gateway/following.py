"""Follows a plan: makes the calls that it asks for, and keeps their answers until it has accepted one."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from llmrouter.gateway import refuse
from llmrouter.gateway.answer import Answer
from llmrouter.gateway.attempt import attempt
from llmrouter.gateway.run import Run, Trial
from llmrouter.gateway.state import State
from llmrouter.protocols import Plan
from llmrouter.routing.verifier import verdict
from llmrouter.types import Accepted, Failure, Outcome, Target

__all__ = ["PlanBroken", "follow"]


class PlanBroken(Exception):
    """A plan accepted what is not there to be given: a defect of its strategy."""


async def follow(state: State, run: Run, plan: Plan, *, now: Callable[[], float]) -> Answer:
    """Give the plan each outcome until it ends; returns the answer that it accepts, which the caller delivers.

    Whole answers are kept until then; a stream is ended as soon as the plan goes on. Whatever is not accepted is ended,
    also when this is cancelled.

    Raises:
        RouterError: the plan gave up; this is what the client is told.
        PlanBroken: it accepted a failure, or an answer of nobody.
    """
    calls = _Calls(state, run, now)
    steps = plan.steps()
    try:
        target = next(steps)
        while True:
            outcome = await calls.make(target)
            try:
                target = steps.send(outcome)
            except StopIteration as end:
                return calls.accept(outcome, end.value)
            calls.go_on()
    except BaseException as error:
        # A plan that breaks its word must not cost its answers' slots.
        calls.end(Failure.CANCELLED if isinstance(error, asyncio.CancelledError) else None)
        raise
    finally:
        steps.close()


def _or_late(task: asyncio.Task[Outcome], trial: Trial) -> Outcome:
    """What came of a call; one that was cut for being late has timed out."""
    if not task.cancelled():
        return task.result()
    trial.failure = Failure.TIMEOUT
    return Outcome(trial.target, failure=Failure.TIMEOUT, message="slower than the answer it was to be compared with")


class _Calls:
    """The calls of one plan, and the answers that they brought."""

    __slots__ = ("_answers", "_now", "_run", "_state")

    def __init__(self, state: State, run: Run, now: Callable[[], float]) -> None:
        self._state = state
        self._run = run
        self._now = now
        self._answers: dict[int, tuple[Outcome, Answer]] = {}
        """By the identity of their outcomes, which are held here, so that no other can have it."""

    def make(self, target: Target) -> Awaitable[Outcome]:
        """Make the call, and those beside it at the same time."""
        together = target.beside or target.paced
        return self._make_together(target) if together else self._make(self._run.begin(target, self._now()))

    async def _make_together(self, target: Target) -> Outcome:
        now = self._now()
        longest_s = self._longest_s() + (target.linger_s or 0.0)
        trials = [
            self._run.begin(target, now),
            *(self._run.begin(each, now, whole=True) for each in target.beside),
        ]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._make(trial)) for trial in trials]
                if target.paced:
                    self._cut_later(tasks, longest_s)
                elif target.linger_s is not None:
                    tasks[0].add_done_callback(lambda _: self._cut_later(tasks[1:], target.linger_s or 0.0))
        except BaseException:
            for trial in trials:
                if trial.ended is None and not trial.replica:
                    # It was cancelled before its task had begun.
                    trial.failure, trial.ended = Failure.CANCELLED, self._now()
            raise
        first, *others = (_or_late(task, trial) for task, trial in zip(tasks, trials, strict=True))
        return self._instead(first, beside=tuple(others))

    def _longest_s(self) -> float:
        """What the slowest call took that has been answered."""
        answered = (trial for trial in self._run.trials if trial.failure is None and trial.ended is not None)
        return max((trial.ended - trial.started for trial in answered if trial.ended is not None), default=0.0)

    def _cut_later(self, tasks: Sequence[asyncio.Task[Outcome]], after_s: float) -> None:
        """Cancel those that have not ended by then."""
        asyncio.get_running_loop().call_later(after_s, lambda: [task.cancel() for task in tasks])

    async def _make(self, trial: Trial) -> Outcome:
        state = self._state
        route = state.routes[trial.target.model_id]
        salt = state.cache_salt(self._run.principal)
        outcome, answer = await attempt(self._run, trial, route, cache_salt=salt, now=self._now)
        if answer is not None:
            self._answers[id(outcome)] = outcome, answer
            if trial.target.verifier is not None and outcome.seen is not None and outcome.seen.whole:
                score = await self._verdict(trial.target.verifier, outcome.seen.texts[0])
                outcome = self._instead(outcome, seen=dataclasses.replace(outcome.seen, verdict=score))
        return outcome

    async def _verdict(self, name: str, text: str) -> float | None:
        """A verifier's score; it has half of the time that is left, so that another model can still be asked."""
        left_s = max(self._run.deadline - self._now(), 0.0)
        return await verdict(self._state.verifiers[name], self._run.request, text, timeout_s=left_s / 2)

    def _instead(self, outcome: Outcome, **changes: Any) -> Outcome:
        """The outcome with more said in it; an answer that it brought belongs to this one then."""
        changed = dataclasses.replace(outcome, **changes)
        _, answer = self._answers.pop(id(outcome), (None, None))
        if answer is not None:
            self._answers[id(changed)] = changed, answer
        return changed

    def accept(self, last: Outcome, accepted: Accepted | None) -> Answer:
        """The answer that the plan's word gives; all others are ended."""
        outcome = last if accepted is None else accepted.outcome
        _, answer = self._answers.pop(id(outcome), (None, None))
        if answer is None:
            if accepted is None:
                raise refuse.after(self._run, last)
            whose = outcome.target.model_id
            raise PlanBroken(f"the plan accepted an answer of {whose} that is not there (failure: {outcome.failure})")
        if accepted is not None:
            answer.choose(accepted.choice)
        self._run.accepted = accepted
        self._run.answering = answer.trial
        if self._answers:
            self.end()
        return answer

    def go_on(self) -> None:
        """End the streams: they live only until the plan goes on."""
        if self._answers:
            for key, (_, answer) in list(self._answers.items()):
                if not answer.lasts:
                    answer.discard()
                    del self._answers[key]

    def end(self, failure: Failure | None = None) -> None:
        """End all answers that are left."""
        for _, answer in self._answers.values():
            answer.discard(failure)
        self._answers.clear()
