"""What a policy decides on and what it decides: predictions and evidence in, moves out. All plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from llmrouter.types import TokenSignals, value

__all__ = ["AnswerKind", "Check", "Evidence", "Move", "Offers", "Policy", "Prediction"]

Check = Literal["none", "logprobs", "self_check", "agreement", "verifier"]
"""How an answer is examined before it is accepted. `none` still runs the format checks."""

AnswerKind = Literal["number", "choice", "label", "json", "tool_call", "code", "text"]
"""How two answers are compared."""


@value
class Prediction:
    """What the prompt alone says."""

    quality: Mapping[str, float]
    """Role → calibrated expectation of its model's score on this request, from 0 to 1; `peer1`, `peer2`… likewise."""
    novelty: float = 0.0
    """How unlike the training prompts it is: the share of them that were less unlike, from 0 to 1."""


@value
class Evidence:
    """What the answers of one stage look like, taken together."""

    check: Check
    role: str
    """Whose answer was examined: `small` or `large`."""
    kind: AnswerKind
    votes: tuple[int, ...]
    """Group of each answer of this stage and all before it: equal numbers agree, -1 is no usable answer. Numbers are
    given in order of appearance, so earlier evidence's votes are a prefix of later evidence's."""
    voters: tuple[str, ...]
    """Role that gave each vote: `small`, `peer1`, …, `large`. A further sample of the small model has a peer's role."""
    characters: tuple[int, ...]
    """Length of each answer as it was written."""
    signals: TokenSignals | None = None
    """Of the first answer of `role`."""
    p_true: float | None = None
    """Self-check: normalised probability of "yes, it is right"; not calibrated."""
    verdict: float | None = None
    """A verifier plug-in's own score, from 0 to 1; not calibrated."""
    faults: tuple[str, ...] = ()
    """Format checks that the first answer of `role` fails, e.g. `truncated`, `refusal`, `schema`, `empty`."""


@value
class Offers:
    """What can be done for this request."""

    roles: frozenset[str]
    """Roles that have a model which can take it: of `small`, `large`, `frontier`."""
    checks: frozenset[Check]
    """Checks that may be run on the small model's answer."""
    peers: int = 0
    """Further cheap answers that can be had for agreement: other models', or more samples of the small one's."""
    kind: AnswerKind = "text"
    held: bool = False
    """The answer is streamed: a check sees no more than the beginning that is held back."""


@value
class Move:
    """What to do next."""

    action: Literal["route", "check", "accept"]
    """`route`: call `role`, accept its answer. `check`: call `role` and, as `check` says, others beside; ask again with
    the evidence. `accept`: take the answer with the vote `choice`."""
    role: str
    check: Check = "none"
    peers: int = 0
    """Agreement: how many peers shall have answered after this move, `peer1` first; those that have are not asked
    again, and neither is `role` once it has answered."""
    choice: int = 0
    """Position in the evidence's `votes`."""
    score: float | None = None
    """Predicted quality of what the move leads to."""
    reason: str = ""
    """Short, for the ledger: letters, digits, `.:/%>-_` and spaces."""


class Policy(Protocol):
    """Chooses between direct routes and checks; pure, and the same object in the gateway and in simulations."""

    def first(self, prediction: Prediction, offers: Offers) -> Move:
        """The move before any call: `route` or `check`."""

    def following(self, prediction: Prediction, offers: Offers, evidence: Sequence[Evidence]) -> Move:
        """The move after a check; the last of `evidence` is the newest."""
