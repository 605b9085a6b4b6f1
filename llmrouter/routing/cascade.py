"""The cascade plan: ask cheaply, look at the answers, accept one or go on to a better model.

A policy says what to do next; this plan does it with calls, and turns what came of them into evidence. Two modes:

- whole: answers come whole, so every check can be run on them. A client that streams is answered whole only where its
  output cap is small enough that nobody notices.
- held: the small model streams into a hold-back window; what its first tokens say decides whether it goes on.

What goes wrong on the way never ends the request: a peer that fails is a vote that is missing, a small model that fails
is replaced as `routing.plan` replaces any model, and when every better model fails too, the best answer seen so far is
given with the reason `kept:<failure>`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from llmrouter.protocols import Candidate, Steps
from llmrouter.routing.agreement import vote
from llmrouter.routing.answer_kind import options_of
from llmrouter.routing.evidence import Evidence, Move, Offers, Policy, Prediction
from llmrouter.routing.formats import format_faults
from llmrouter.routing.normalise import canonical
from llmrouter.routing.plan import REACTIONS, FallbackPlan, another_call_may_mend
from llmrouter.routing.selfcheck import p_true, peer_request, sampled_request, self_check_request, with_logprobs
from llmrouter.types import Accepted, Bound, BoundedCall, ChatRequest, Decision, Failure, Hold, Outcome, Target, value

__all__ = ["CascadeOptions", "CascadePlan"]

_MOST_MOVES = 12
"""More than any sane policy makes; a policy that goes round in circles ends at its best answer."""
_UNFIT = frozenset(
    {"empty", "refusal", "schema", "json", "tool_arguments", "unknown_tool", "missing_tool", "repetition"}
    | {"control_tokens"}
)
"""Format faults that another model may not make; one that was cut off at the client's own cap would be cut again."""


@value
class CascadeOptions:
    """How a tier runs its checks."""

    hold: Hold
    retries: int = 1
    max_wait_s: float = 5.0
    verifier: str | None = None
    peer_wait_s: float = 1.0
    """How long peers that are slower than the examined model are waited for."""


@dataclass(slots=True)
class _Seen:
    """One answer that could be given to the client."""

    outcome: Outcome
    choice: int
    role: str
    canonical: str | None
    characters: int
    faults: tuple[str, ...]


class CascadePlan:
    """Follows a policy for one request; implements `protocols.Plan`.

    Args:
        chain: the models of the roles, `small`, `large`, `frontier`, as far as they can take the request; each once.
        peers: those that may be asked for agreement, `peer1` first; one with the examined model's id is a further
            sample of it.
        first: the policy's first move.
        at_once: the engine of the examined model gives several choices in one call; else they are asked side by side.
        held: the client streams and its answer is too long to wait for: checks look at a held-back prefix.
        may_escalate: asked before a better model is called because of a check; False keeps the answer there is.
        ended: told the role whose answer was accepted.
    """

    def __init__(
        self,
        decision: Decision,
        policy: Policy,
        prediction: Prediction,
        offers: Offers,
        *,
        request: ChatRequest,
        chain: Sequence[Candidate],
        peers: Sequence[Candidate],
        first: Move,
        options: CascadeOptions,
        deadline_s: float,
        at_once: bool = True,
        held: bool = False,
        may_escalate: Callable[[], bool] = lambda: True,
        ended: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._decision = decision
        self._policy = policy
        self._prediction = prediction
        self._offers = offers
        self._request = request
        self._whole = _unstreamed(request)
        self._chain = tuple(chain)
        self._peers = tuple(peers)
        self._first = first
        self._options = options
        self._deadline_s = deadline_s
        self._at_once = at_once
        self._held = held
        self._options_asked = options_of(request.last_user_text) if offers.kind == "choice" else None
        self._may_escalate = may_escalate
        self._ended = ended
        self._seen: list[_Seen] = []
        self._evidence: list[Evidence] = []
        self._asked_peers = 0
        self._choices: tuple[str, ...] = ()
        """Whose place each choice takes, where one call was asked for several."""
        self._self_check: float | None = None
        self._check = ""

    @property
    def decision(self) -> Decision:
        return self._decision

    @property
    def chain(self) -> tuple[Candidate, ...]:
        """The first model called and those that may replace it, in the order of trying."""
        return self._from(self._first.role)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """What the checks have shown so far."""
        return tuple(self._evidence)

    def steps(self) -> Steps:
        move = self._first
        for _ in range(_MOST_MOVES):
            if move.action == "accept":
                return self._accept(move.choice, move.reason)
            if move.action == "route":
                return (yield from self._route(move.role, move.reason))
            failure = yield from self._examine(move)
            if failure is not None:
                return (yield from self._replace(move.role, failure))
            move = self._next(move)
        return self._accept(self._best(), "undecided")

    def bound(self) -> Bound:
        """The worst case of all moves: every check that may be run, and then the whole chain with its retries."""
        fallback = FallbackPlan(
            self._decision,
            self._chain if self._first.action == "check" else self._from(self._first.role),
            retries=self._options.retries,
            max_wait_s=self._options.max_wait_s,
            deadline_s=self._deadline_s,
        ).bound()
        if self._first.action != "check":
            return fallback
        checks = [self._bounded(each) for each in self._chain[:-1]]
        if "agreement" in self._offers.checks:
            checks += [
                BoundedCall(each.model_id, 1, each.input_tokens, each.output_tokens)
                for each in self._peers[: self._offers.peers]
            ]
        if "self_check" in self._offers.checks:
            asked = self._chain[0]
            checks.append(BoundedCall(asked.model_id, 1, asked.input_tokens + asked.output_tokens, 1))
        return Bound((*checks, *fallback.calls), fallback.repeats)

    def _bounded(self, candidate: Candidate) -> BoundedCall:
        return BoundedCall(candidate.model_id, 1, candidate.input_tokens, candidate.output_tokens)

    def _examine(self, move: Move) -> Generator[Target, Outcome, Failure | None]:
        """Make the calls of a check; returns the failure that left nothing to judge."""
        targets = self._targets(move)
        if targets:
            # Peers alone have as long as those had that were asked together with the examined model.
            paced = targets[0].role != move.role
            linger_s = self._options.peer_wait_s if paced or targets[1:] else None
            outcome = yield dataclasses.replace(targets[0], beside=tuple(targets[1:]), linger_s=linger_s, paced=paced)
            for each in (outcome, *outcome.beside):
                if each.ok:
                    self._read(each)
            if outcome.failure is not None and outcome.target.role == move.role:
                return outcome.failure
        if move.check == "self_check" and self._self_check is None:
            yield from self._ask_itself(move.role)
        self._evidence.append(self._judge(move))
        return None

    def _targets(self, move: Move) -> list[Target]:
        """The calls that a check still needs: the examined model's unless it has answered, and the wanted peers'."""
        wanted = self._peers[self._asked_peers : move.peers] if move.check == "agreement" else ()
        self._asked_peers += len(wanted)
        if self._answered(move.role):
            return self._beside(wanted)
        return [self._own(move), *self._beside(wanted)]

    def _beside(self, wanted: Sequence[Candidate]) -> list[Target]:
        """Calls of the peers; further samples of the examined model come from one call where its engine can do that.

        Its own answer stays the one that the client would have had alone, at the client's temperature.
        """
        mine = [each for each in wanted if self._is_sample(each)]
        if not self._at_once or len(mine) < 2:
            return [self._peer(each) for each in wanted]
        self._choices = tuple(each.role for each in mine)
        ask = sampled_request(self._whole, len(mine))
        together = Target(mine[0].model_id, mine[0].role, "check:agreement", ask=ask, observe=True)
        return [together, *(self._peer(each) for each in wanted if not self._is_sample(each))]

    def _is_sample(self, peer: Candidate) -> bool:
        return peer.model_id == self._model(self._first.role).model_id

    def _peer(self, peer: Candidate) -> Target:
        ask = sampled_request(self._whole, 1) if self._is_sample(peer) else peer_request(self._whole)
        return Target(peer.model_id, peer.role, "check:agreement", ask=ask, observe=True)

    def _own(self, move: Move) -> Target:
        """The call of the model whose answer is examined."""
        model_id = self._model(move.role).model_id
        if self._held:
            ask = with_logprobs(self._request)
            return Target(model_id, move.role, move.reason, ask=ask, observe=True, hold=self._options.hold)
        ask = with_logprobs(self._whole) if move.check == "logprobs" else self._whole
        verifier = self._options.verifier if move.check == "verifier" else None
        return Target(model_id, move.role, move.reason, ask=ask, observe=True, verifier=verifier)

    def _ask_itself(self, role: str) -> Generator[Target, Outcome, None]:
        answer = next(each for each in self._seen if each.role == role)
        assert answer.outcome.seen is not None
        ask = self_check_request(self._whole, answer.outcome.seen.texts[answer.choice])
        model_id = self._model(role).model_id
        outcome = yield Target(model_id, role, "check:self_check", ask=ask, observe=True)
        if outcome.seen is not None:
            self._self_check = p_true(outcome.seen)

    def _read(self, outcome: Outcome) -> None:
        """Take the choices of an answer as votes."""
        seen = outcome.seen
        if seen is None:
            return
        kind = self._offers.kind
        role = outcome.target.role
        roles = self._choices if self._choices and role == self._choices[0] else (role,)
        for choice, (role, text) in enumerate(zip(roles, seen.texts, strict=False)):
            calls = seen.tool_calls[choice] if choice < len(seen.tool_calls) else ()
            faults = format_faults(self._request, seen, choice) if seen.whole else ()
            usable = None
            if seen.whole and not _UNFIT.intersection(faults):
                usable = canonical(kind, text, calls, options=self._options_asked)
            characters = len(text) + sum(len(name) + len(arguments) for name, arguments in calls)
            self._seen.append(_Seen(outcome, choice, role, usable, characters, faults))

    def _judge(self, move: Move) -> Evidence:
        first = next(each for each in self._seen if each.role == move.role)
        seen = first.outcome.seen
        assert seen is not None
        return Evidence(
            check=move.check,
            role=move.role,
            kind=self._offers.kind,
            votes=vote([each.canonical for each in self._seen], self._offers.kind),
            voters=tuple(each.role for each in self._seen),
            characters=tuple(each.characters for each in self._seen),
            signals=seen.signals[first.choice] if first.choice < len(seen.signals) else None,
            p_true=self._self_check,
            verdict=seen.verdict,
            faults=tuple(fault for fault in first.faults if fault in _UNFIT),
        )

    def _next(self, done: Move) -> Move:
        """What the policy wants after a check, within what the tenant may still escalate."""
        newest = self._evidence[-1]
        move = self._policy.following(self._prediction, self._offers, self._evidence)
        self._check = _summary(newest, move)
        if move.action != "accept" and not self._answered(move.role) and self._better(move.role, done.role):
            if not newest.faults and not self._may_escalate():
                return Move("accept", done.role, choice=self._best(), reason="capped:escalation_share")
            return dataclasses.replace(move, reason=move.reason or f"check:{done.check}")
        return move

    def _route(self, role: str, reason: str, tried: int = 0) -> Steps:
        """Call the role's model, then what may replace it; the format is checked where a better model is left."""
        chain: Sequence[Candidate] = self._from(role)
        while chain:
            outcome, unfit = yield from self._walk(chain, reason, tried)
            tried = 0
            if outcome is None:
                return self._keep(Failure.NO_CAPACITY)
            if outcome.failure is not None:
                return self._keep(outcome.failure)
            chain = [each for each in self._chain if self._better(each.role, outcome.target.role)]
            if not unfit or not chain:
                return self._settled(outcome)
            self._check = f"format {'+'.join(unfit)}"
            reason = f"check:{unfit[0]}"
            self._read(outcome)
        return None

    def _walk(
        self, chain: Sequence[Candidate], reason: str, tried: int
    ) -> Generator[Target, Outcome, tuple[Outcome | None, tuple[str, ...]]]:
        """Drive a fallback plan; returns its last outcome, and what is wrong with that answer's format."""
        plan = FallbackPlan(
            dataclasses.replace(self._decision, reason=reason),
            chain,
            retries=self._options.retries,
            max_wait_s=self._options.max_wait_s,
            deadline_s=self._deadline_s,
            tried=tried,
        )
        walk = plan.steps()
        outcome: Outcome | None = None
        try:
            target = next(walk)
            while True:
                judged = not self._request.stream and target.role != self._chain[-1].role
                outcome = yield dataclasses.replace(target, observe=True) if judged else target
                target = walk.send(outcome)
        except StopIteration:
            pass
        finally:
            walk.close()
        if outcome is None or outcome.seen is None:
            return outcome, ()
        return outcome, tuple(f for f in format_faults(self._request, outcome.seen, 0) if f in _UNFIT)

    def _replace(self, role: str, failure: Failure) -> Steps:
        """The model that was to be examined gave nothing: go on as after any failure."""
        if REACTIONS[failure] == "give_up":
            return self._keep(failure)
        later = self._from(role)
        if self._options.retries and another_call_may_mend(failure, later[0]):
            return (yield from self._route(role, f"retry:{failure}", tried=1))
        if len(later) == 1:
            return self._keep(failure)
        return (yield from self._route(later[1].role, f"fallback:{failure}"))

    def _accept(self, choice: int, reason: str) -> Accepted:
        taken = self._seen[choice if 0 <= choice < len(self._seen) else self._best()]
        self._ended(taken.role)
        return Accepted(taken.outcome, taken.choice, reason=reason, check=self._check)

    def _settled(self, outcome: Outcome) -> Accepted:
        self._ended(outcome.target.role)
        return Accepted(outcome, 0, reason=outcome.target.reason, check=self._check)

    def _keep(self, failure: Failure) -> Accepted | None:
        """Nothing better could be had: give the best answer there is, if there is one."""
        if not self._seen or self._held or failure is Failure.CANCELLED:
            return None
        return self._accept(self._best(), f"kept:{failure}")

    def _best(self) -> int:
        """The answer that most agree with; among equals a usable one, of the best role, the earliest."""
        votes = vote([each.canonical for each in self._seen], self._offers.kind)
        order = [each.role for each in self._chain]

        def worth(at: int) -> tuple[int, bool, int, int]:
            agreeing = votes.count(votes[at]) if votes[at] >= 0 else 0
            role = self._seen[at].role
            return agreeing, not self._seen[at].faults, order.index(role) if role in order else -1, -at

        return max(range(len(self._seen)), key=worth)

    def _answered(self, role: str) -> bool:
        return any(each.role == role for each in self._seen)

    def _model(self, role: str) -> Candidate:
        return next(each for each in self._chain if each.role == role)

    def _from(self, role: str) -> tuple[Candidate, ...]:
        """The role's model, then better ones, then the nearest lesser ones: a lesser answer is better than none."""
        at = next((i for i, each in enumerate(self._chain) if each.role == role), 0)
        # One that has answered is not asked again: its answer is kept, unless it was a stream that is gone.
        lesser = (each for each in reversed(self._chain[:at]) if self._held or not self._answered(each.role))
        return (*self._chain[at:], *lesser)

    def _better(self, role: str, than: str) -> bool:
        order = [each.role for each in self._chain]
        return role in order and (than not in order or order.index(role) > order.index(than))


def _unstreamed(request: ChatRequest) -> ChatRequest:
    if not request.stream:
        return request
    fields = {name: given for name, given in request.fields.items() if name not in ("stream", "stream_options")}
    return dataclasses.replace(request, fields=fields, stream=False, include_usage=False)


def _summary(evidence: Evidence, move: Move) -> str:
    """What a check said, in one short line."""
    votes = [each for each in evidence.votes if each >= 0]
    # Of a move that goes on, the score is another model's.
    score = f" {move.score:.2f}" if move.score is not None and move.action == "accept" else ""
    if evidence.faults:
        return f"format {'+'.join(evidence.faults)}"
    if votes and (evidence.check == "agreement" or len(evidence.votes) > 1):
        most = max(votes.count(each) for each in set(votes))
        return f"agreement {most}/{len(evidence.votes)}{score}"
    if evidence.check == "self_check" and evidence.p_true is not None:
        return f"self_check {evidence.p_true:.2f}{score}"
    if evidence.check == "verifier" and evidence.verdict is not None:
        return f"verifier {evidence.verdict:.2f}{score}"
    return f"{evidence.check}{score}"
