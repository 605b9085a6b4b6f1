"""What a learned policy reads from answers that can be compared: numbers for its linear tables, the same when it is
fitted and when it serves.

A stage is a set of roles that have been asked, in slots: `small`, `peer1`, … and, at the end, `large`. A slot whose
call failed or gave no usable answer holds the vote -1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from llmrouter.routing.evidence import Evidence
from llmrouter.types import value

__all__ = ["Slots", "logit", "prompt_features", "slots_of", "stage_features", "supporters", "value_basis"]

_EDGE = 0.01
"""Predictions closer to 0 or 1 than this are taken to be no surer."""
_NAN = math.nan


@value
class Slots:
    """The answers of one stage, slot by slot."""

    votes: tuple[int, ...]
    """Group of each slot's answer; -1 for none that is usable."""
    sizes: tuple[float, ...]
    """Log of each answer's length; NaN where there is no answer or no length."""
    positions: tuple[int, ...]
    """Where each slot's vote stands in the evidence; -1 for none."""


def logit(probability: float) -> float:
    """Log-odds, bounded."""
    bounded = min(max(probability, _EDGE), 1.0 - _EDGE)
    return math.log(bounded / (1.0 - bounded))


def prompt_features(quality: Mapping[str, float], roles: Sequence[str]) -> list[float]:
    """The log-odds of each role's predicted quality; NaN for a role that is not predicted."""
    return [logit(quality[role]) if role in quality else _NAN for role in roles]


def slots_of(evidence: Evidence, roles: Sequence[str]) -> Slots:
    """The first answer of each of the roles."""
    votes, sizes, positions = [], [], []
    for role in roles:
        at = evidence.voters.index(role) if role in evidence.voters else -1
        characters = evidence.characters[at] if at >= 0 else -1
        votes.append(evidence.votes[at] if at >= 0 else -1)
        sizes.append(math.log1p(characters) if characters >= 0 else _NAN)
        positions.append(at)
    return Slots(tuple(votes), tuple(sizes), tuple(positions))


def stage_features(slots: Slots, prompt: Sequence[float]) -> list[float]:
    """Of the stage as a whole: how the votes fell, who agrees with whom, how long the answers are, and the prompt."""
    votes = slots.votes
    usable = [vote for vote in votes if vote >= 0]
    counts = sorted((usable.count(group) for group in set(usable)), reverse=True)
    own = usable.count(votes[0]) if votes[0] >= 0 else 0
    found = [
        float(counts[0]) if counts else 0.0,
        float(counts[1]) if len(counts) > 1 else 0.0,
        float(len(counts)),
        float(len(votes) - len(usable)),
        float(own),
    ]
    for at, vote in enumerate(votes):
        found += [1.0 if vote == other and vote >= 0 else 0.0 for other in votes[at + 1 :]]
    found += [1.0 if vote < 0 else 0.0 for vote in votes]
    return [*found, *slots.sizes, *prompt]


def supporters(slots: Slots, group: int, trust: Sequence[float], prompt: Sequence[float]) -> list[float]:
    """Of one answer of the stage: who gave it, how sure they were expected to be, against the others.

    Args:
        trust: of each slot, the log-odds that its model is right, from the prompt alone; NaN counts as even.
    """
    votes = slots.votes
    usable = [vote for vote in votes if vote >= 0]
    trusted = [0.0 if each != each else each for each in trust]
    rivals = {vote for vote in usable if vote != group}
    support = {each: sum(t for t, v in zip(trusted, votes, strict=True) if v == each) for each in (*rivals, group)}
    lengths = [size for size, vote in zip(slots.sizes, votes, strict=True) if vote == group and size == size]
    found = [
        float(usable.count(group)),
        float(max((usable.count(rival) for rival in rivals), default=0)),
        float(len(rivals) + 1),
        float(len(votes) - len(usable)),
    ]
    found += [1.0 if vote == group else 0.0 for vote in votes]
    found += [
        support[group],
        max((support[rival] for rival in rivals), default=-3.0),
        slots.sizes[0],
        sum(lengths) / len(lengths) if lengths else _NAN,
        slots.sizes[-1],
    ]
    return [*found, *prompt]


def value_basis(probabilities: Sequence[float]) -> list[float]:
    """What the value of going on is linear in: probabilities, their log-odds, and products of either."""
    logits = [logit(each) for each in probabilities]
    found = [1.0, *probabilities, *logits]
    for at, probability in enumerate(probabilities):
        for other in range(at, len(probabilities)):
            found.append(probability * probabilities[other])
            found.append(logits[at] * logits[other])
    return found
