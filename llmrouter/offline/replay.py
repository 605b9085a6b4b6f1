"""Labels in place of models: what a row's models would have answered, for the very plans that serve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from llmrouter.offline.labels import LabelSet
from llmrouter.offline.roles import MAIN_ROLES
from llmrouter.protocols import Candidate
from llmrouter.routing.agreement import vote
from llmrouter.routing.answer_kind import kind_of_answers
from llmrouter.routing.cascade import CascadeOptions, CascadePlan
from llmrouter.routing.evidence import AnswerKind, Evidence, Move, Offers, Policy, Prediction
from llmrouter.routing.normalise import canonical
from llmrouter.types import ChatRequest, Decision, Failure, Hold, Observation, Outcome, Target, value

__all__ = ["Replayed", "Replays"]


@value
class Replayed:
    """What a plan did with one row."""

    role: str
    """Whose answer was given."""
    calls: tuple[str, ...]
    """Roles that were called, in order."""
    reason: str


@dataclass(frozen=True)
class Replays:
    """The rows of a set of labels as requests whose answers are known."""

    labels: LabelSet

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def kinds(self) -> tuple[AnswerKind, ...]:
        """How each row's answers are compared."""
        roles = self.labels.roles.values()
        return tuple(
            kind_of_answers(ask, [each for role in roles if (each := role.answers[row]) is not None])
            for row, ask in enumerate(self.labels.asks)
        )

    @cached_property
    def known(self) -> Mapping[str, NDArray[np.bool_]]:
        """Role → whether its answers can be compared: it has a score there, and its source publishes its answers."""
        sources = np.array(self.labels.sources, dtype=object)
        found = {}
        for role, column in self.labels.roles.items():
            answered = np.array([each is not None for each in column.answers], dtype=bool)
            published = set(sources[answered].tolist())
            in_source = np.array([source in published for source in self.labels.sources], dtype=bool)
            found[role] = in_source & ~np.isnan(column.quality)
        return found

    @cached_property
    def peers(self) -> NDArray[np.intp]:
        """How many peers can be asked about each row, `peer1` first; 0 where the small answer cannot be compared."""
        count = np.zeros(len(self), dtype=np.intp)
        going = self.known.get("small", np.zeros(len(self), dtype=bool)).copy()
        for number in range(1, len(self.labels.roles) + 1):
            going &= self.known.get(f"peer{number}", np.zeros(len(self), dtype=bool))
            count += going
        return count

    @cached_property
    def canonicals(self) -> Mapping[str, tuple[str | None, ...]]:
        """Role → what each row's answer comes to."""
        return {
            role: tuple(
                None if text is None else canonical(kind, text)
                for kind, text in zip(self.kinds, column.answers, strict=True)
            )
            for role, column in self.labels.roles.items()
        }

    def characters(self, role: str, row: int) -> int:
        """Length of an answer as it was written; -1 where the labels do not say."""
        length = self.labels.roles[role].out_chars[row]
        return -1 if math.isnan(length) else int(length)

    def quality(self, role: str, row: int) -> float:
        """The score of a role's answer."""
        return float(self.labels.roles[role].quality[row])

    def offers(self, row: int) -> Offers:
        """What can be done about a row: route it to any main role, and compare answers where they are known."""
        columns = self.labels.roles
        peers = int(self.peers[row])
        return Offers(
            roles=frozenset(r for r in MAIN_ROLES if r in columns and not math.isnan(columns[r].quality[row])),
            checks=frozenset({"agreement"}) if peers else frozenset(),
            peers=peers,
            kind=self.kinds[row],
        )

    def evidence(self, row: int, voters: Sequence[str]) -> Evidence:
        """What a check of these roles' answers shows; the last is the examined one where it is `large`."""
        return Evidence(
            check="none" if voters[-1] == "large" else "agreement",
            role="large" if voters[-1] == "large" else "small",
            kind=self.kinds[row],
            votes=vote([self.canonicals[role][row] for role in voters], self.kinds[row]),
            voters=tuple(voters),
            characters=tuple(self.characters(role, row) for role in voters),
        )

    def run(self, row: int, policy: Policy, prediction: Prediction) -> Replayed:
        """Drive the plan that serves through one row."""
        offers = self.offers(row)
        followed = _AsWritten(policy, self, row)
        first = followed.first(prediction, offers)
        calls: list[str] = []
        plan = self._plan(row, followed, prediction, offers, first)
        steps = plan.steps()
        last: Outcome | None = None
        try:
            target = next(steps)
            while True:
                last = self._answered(target, row, calls, shown=followed.checking)
                target = steps.send(last)
        except StopIteration as stop:
            accepted = stop.value
        finally:
            steps.close()
        outcome = accepted.outcome if accepted is not None else last
        assert outcome is not None
        reason = accepted.reason if accepted is not None else first.reason
        return Replayed(outcome.target.role, tuple(calls), reason)

    def _plan(self, row: int, policy: Policy, prediction: Prediction, offers: Offers, first: Move) -> CascadePlan:
        ask = self.labels.asks[row]
        request = ChatRequest("chat", "replay", {"messages": [{"role": "user", "content": ask.text}]})
        peers = [f"peer{number}" for number in range(1, offers.peers + 1)]
        return CascadePlan(
            Decision("cascade", first.reason, score=first.score),
            policy,
            prediction,
            offers,
            request=request,
            chain=[_candidate(role) for role in MAIN_ROLES if role in offers.roles],
            peers=[_candidate(role) for role in peers],
            first=first,
            options=_OPTIONS,
            deadline_s=600.0,
        )

    def _answered(self, target: Target, row: int, calls: list[str], *, shown: bool) -> Outcome:
        """The outcome of a call; the calls beside it come with it.

        Args:
            shown: the plan gets to see the short answer. The answer of a direct route is not shown: its format cannot
                be checked without the whole of it.
        """
        calls.append(target.role)
        beside = tuple(self._answered(each, row, calls, shown=shown) for each in target.beside)
        column = self.labels.roles[target.role]
        if math.isnan(column.quality[row]):
            return Outcome(target, failure=Failure.NO_CAPACITY, status=503, beside=beside)
        # In its canonical form, since an answer such as the empty string is not an empty answer.
        answer = self.canonicals[target.role][row] if shown else None
        seen = Observation((answer or "",), ("stop",)) if shown and target.observe else None
        return Outcome(target, status=200, seen=seen, beside=beside)


class _AsWritten:
    """A policy that is told the lengths of the whole answers, of which labels hold only what they come to."""

    def __init__(self, inner: Policy, replays: Replays, row: int) -> None:
        self._inner = inner
        self._replays = replays
        self._row = row
        self.checking = False
        """The last move was a check."""

    def first(self, prediction: Prediction, offers: Offers) -> Move:
        return self._noted(self._inner.first(prediction, offers))

    def following(self, prediction: Prediction, offers: Offers, evidence: Sequence[Evidence]) -> Move:
        written = [
            replace(each, characters=tuple(self._replays.characters(role, self._row) for role in each.voters))
            for each in evidence
        ]
        return self._noted(self._inner.following(prediction, offers, written))

    def _noted(self, move: Move) -> Move:
        self.checking = move.action == "check"
        return move


def _candidate(role: str) -> Candidate:
    return Candidate(model_id=role, role=role, replicas=1, input_tokens=1, output_tokens=1)


_OPTIONS = CascadeOptions(hold=Hold(tokens=1, deadline_s=1.0))
