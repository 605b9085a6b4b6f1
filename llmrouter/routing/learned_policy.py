"""The learned policy over routes and agreement checks: predicted quality less what the calls cost, at every step.

It knows a ladder of stages. Before any call there are the direct routes and the checks that ask the small model with
some peers beside it. After a check there are the answers so far, more peers, the large model's vote, and the reference.
Linear tables, fitted on labels, say how likely each answer is right and what each way on is worth.

A policy is one of a sequence of operating points. The first always calls the reference; after it come those that leave
the reference only with a margin of quality, then those that take ever less quality for what is saved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from llmrouter.errors import ArtefactError
from llmrouter.routing.evidence import Evidence, Move, Offers, Prediction
from llmrouter.routing.policy_features import (
    Slots,
    prompt_features,
    slots_of,
    stage_features,
    supporters,
    value_basis,
)

__all__ = ["POLICY_VERSION", "LearnedPolicy", "Trained", "giver", "ladder", "stage_name"]

POLICY_VERSION = 1
"""Of the meaning of the arrays and parameters."""
_Array: TypeAlias = NDArray[np.float64]


class Trained(Protocol):
    """The part of an artefact that a policy is read from."""

    @property
    def manifest(self) -> Mapping[str, Any]: ...

    @property
    def arrays(self) -> Mapping[str, NDArray[Any]]: ...


def stage_name(peers: int, *, large: bool = False) -> str:
    """Under which name the tables of a stage are kept: so many peers have been asked, and perhaps the large model."""
    return f"peers{peers}_large" if large else f"peers{peers}"


def ladder(peers: int) -> tuple[int, ...]:
    """How many peers may have been asked after each check, when there are so many in all."""
    return tuple(sorted({1, peers})) if peers else ()


@dataclass(frozen=True, slots=True)
class _Table:
    """Several linear scores of the same features, one set of weights for each kind of answer."""

    means: _Array
    """Shape (features,): what stands for a feature that is not known."""
    weights: _Array
    """Shape (heads, kinds + 1, features + 1): for each kind in order, then for any other; the intercept comes last."""

    def probabilities(self, features: Sequence[float], kind: int) -> list[float]:
        found = np.array(features)
        found = np.where(np.isnan(found), self.means, found)
        scores = self.weights[:, kind, :-1] @ found + self.weights[:, kind, -1]
        return [_expit(each) for each in scores.tolist()]


@dataclass(frozen=True, slots=True)
class _Standing:
    """What is known after a check."""

    choice: int
    """Position of the best answer's vote, and"""
    quality: float
    """how likely it is right;"""
    supporting: int
    """votes for it,"""
    votes: int
    """of so many that were answered."""
    ahead: Mapping[str, float]
    """Role → how likely its answer would be right."""
    basis: _Array


class LearnedPolicy:
    """One operating point of what was learned; implements `evidence.Policy`."""

    def __init__(self, parameters: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], point: int | None) -> None:
        points = parameters["points"]
        self.point = int(parameters["chosen"]) if point is None else point
        if not 0 <= self.point < len(points):
            raise ArtefactError(f"the policy has the operating points 0 to {len(points) - 1}, not {self.point}")
        chosen = points[self.point]
        self._always_reference = self.point == 0
        self._margin = float(chosen["margin"])
        self._tradeoff = float(chosen["tradeoff"])
        self._reference = str(parameters["reference"])
        self._roles = tuple(parameters["roles"])
        self._prompt_roles = tuple(parameters["prompt_roles"])
        self._kinds = {kind: index for index, kind in enumerate(parameters["kinds"])}
        self._compared = frozenset(parameters["compared_kinds"])
        self._peers = int(parameters["peers"])
        self._costs = {role: float(cost) for role, cost in parameters["costs"].items()}
        self._novelty_limit = float(parameters["novelty_limit"])
        self._may_check = parameters["policy"] != "route"
        self._may_route = parameters["policy"] != "cascade"
        self._prompt = _table(arrays, "policy_prompt")
        self._stages = {
            name: (_table(arrays, f"policy_{name}"), _table(arrays, f"policy_{name}_answer"))
            for name in parameters["stages"]
        }
        self._tables = {name: arrays[f"policy_{name}"] for name in parameters["values"]}
        self._values = {name: table[self.point] for name, table in self._tables.items()}

    @classmethod
    def of(cls, artefact: Trained, point: int | None = None) -> Self:
        """Read it from an artefact.

        Args:
            point: instead of the artefact's chosen operating point.

        Raises:
            ArtefactError: the policy is of another version, its parts do not fit together, or there is no such point.
        """
        parameters = artefact.manifest["policy_parameters"]
        version = parameters.get("version")
        if version != POLICY_VERSION:
            raise ArtefactError(
                f"the artefact's policy has version {version!r}, this llmrouter reads {POLICY_VERSION}; "
                "train the artefact again"
            )
        try:
            policy = cls(parameters, artefact.arrays, point)
            policy._check(len(parameters["points"]))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ArtefactError(f"the artefact's policy is not whole: {error}; train the artefact again") from error
        return policy

    def _check(self, points: int) -> None:
        """Raises `ValueError` where an array is not of the shape that it is used in."""
        kinds, prompt = len(self._kinds) + 1, [0.0] * len(self._prompt_roles)
        if self._reference != self._roles[-1] or self._roles[0] != "small":
            raise ValueError(f"the roles are {', '.join(self._roles)} and the reference is {self._reference}")
        _fit("prompt", self._prompt, len(self._roles), kinds, len(prompt))
        widths = {"first": len(value_basis([0.5] * len(self._roles))) + len(self._kinds)}
        for peers in range(1, self._peers + 1):
            for large in (False, True) if len(self._roles) > 2 else (False,):
                name, slots = stage_name(peers, large=large), Slots(*[(0,) * (peers + 1 + large)] * 3)
                stage, answer = self._stages[name]
                heads = 1 if large else len(self._roles) - 1
                _fit(name, stage, heads, kinds, len(stage_features(slots, prompt)))
                _fit(f"{name}_answer", answer, 1, kinds, len(supporters(slots, 0, slots.sizes, prompt)))
                widths[name] = len(value_basis([0.5] * (heads + 1)))
        for name, table in self._tables.items():
            wanted = (points, widths[name.partition("_to_")[0]])
            if table.shape != wanted:
                raise ValueError(f"policy_{name} has the shape {table.shape}, not {wanted}")

    def first(self, prediction: Prediction, offers: Offers) -> Move:
        roles = [role for role in self._roles if role in offers.roles]
        if not roles:
            return Move("route", min(offers.roles, default=self._reference), reason="unknown roles")
        safe = self._reference if self._reference in roles else roles[-1]
        if self._always_reference:
            return Move("route", safe, score=prediction.quality.get(safe), reason=f"always:{safe}")
        if prediction.novelty > self._novelty_limit:
            reason = f"novel:{safe} {prediction.novelty:.3f} > {self._novelty_limit:.3f}"
            return Move("route", safe, score=prediction.quality.get(safe), reason=reason)
        quality, basis = self._from_prompt(prediction, offers)
        role = max(roles, key=lambda each: self._worth(each, quality[each], safe))
        direct = self._worth(role, quality[role], safe)
        peers, tried = self._best_check(basis, offers)
        if peers and (tried > direct or not self._may_route):
            small = quality["small"]
            reason = f"try:small+{peers} {tried:.2f} > {direct:.2f}"
            return Move("check", "small", "agreement", peers=peers, score=small, reason=reason)
        return Move("route", role, score=quality[role], reason=f"predicted:{role} {quality[role]:.2f}")

    def following(self, prediction: Prediction, offers: Offers, evidence: Sequence[Evidence]) -> Move:
        newest = evidence[-1]
        roles = [role for role in self._roles if role in offers.roles]
        safe = self._reference if self._reference in roles else roles[-1]
        large = newest.role == "large"
        asked = self._asked(evidence, offers)
        name = stage_name(asked, large=large)
        if name not in self._stages:
            return Move("route", safe, score=prediction.quality.get(safe), reason=f"no table:{name}")
        now = self._standing(prediction, newest, name, asked, large=large)
        accepted = f"agreement:{now.supporting}/{now.votes} {now.quality:.2f}"
        best, move = now.quality, Move("accept", newest.role, choice=now.choice, score=now.quality, reason=accepted)
        for worth, other in self._ways_on(now, offers, evidence, asked, safe, large=large):
            if worth > best:
                best, move = worth, other
        return move

    def _ways_on(
        self, now: _Standing, offers: Offers, evidence: Sequence[Evidence], asked: int, safe: str, *, large: bool
    ) -> list[tuple[float, Move]]:
        """What else could be done after a check, with what it is worth."""
        votes = f"agreement:{now.supporting}/{now.votes} {now.quality:.2f}"
        ways = []
        if safe != "small" and not (large and safe == "large"):
            quality = now.ahead.get(safe, now.ahead.get(self._reference, 0.0))
            reason = f"{votes} < {safe} {quality:.2f}"
            ways.append((self._worth(safe, quality, safe), Move("route", safe, score=quality, reason=reason)))
        if large:
            return ways
        limit = self._limit(offers)
        if len(evidence) == 1 and asked < limit:
            worth = self._value(f"{stage_name(asked)}_to_{limit}_of_{limit}", now.basis)
            cost = sum(self._cost(f"peer{number}") for number in range(asked + 1, limit + 1))
            move = Move("check", "small", "agreement", peers=limit, score=now.quality, reason=f"{votes} ask peers")
            ways.append((worth - self._tradeoff * cost, move))
        if "large" in offers.roles and "large" in self._roles and safe != "large":
            worth = self._value(f"{stage_name(asked)}_to_large", now.basis)
            move = Move("check", "large", "none", score=now.ahead["large"], reason=f"{votes} ask large")
            ways.append((worth - self._tradeoff * self._cost("large"), move))
        return ways

    def _from_prompt(self, prediction: Prediction, offers: Offers) -> tuple[dict[str, float], _Array]:
        features = prompt_features(prediction.quality, self._prompt_roles)
        found = self._prompt.probabilities(features, self._kind(offers.kind))
        kinds = [1.0 if self._kind(offers.kind) == index else 0.0 for index in range(len(self._kinds))]
        return dict(zip(self._roles, found, strict=True)), np.array([*value_basis(found), *kinds])

    def _best_check(self, basis: _Array, offers: Offers) -> tuple[int, float]:
        """How many peers to ask first, and what that is worth; 0 where agreement cannot be used or nobody is better."""
        limit = self._limit(offers) if offers.roles.intersection(self._roles[1:]) else 0
        best = (0, -math.inf)
        for peers in ladder(limit):
            cost = self._cost("small") + sum(self._cost(f"peer{number}") for number in range(1, peers + 1))
            worth = self._value(f"first_to_{peers}_of_{limit}", basis) - self._tradeoff * cost
            if worth > best[1]:
                best = (peers, worth)
        return best

    def _limit(self, offers: Offers) -> int:
        """Peers that may be asked in all."""
        usable = self._may_check and "agreement" in offers.checks and "small" in offers.roles
        return min(offers.peers, self._peers) if usable and offers.kind in self._compared else 0

    def _asked(self, evidence: Sequence[Evidence], offers: Offers) -> int:
        """How many peers have been asked, whether they answered or not."""
        checks = [each for each in evidence if each.role == "small"]
        if len(checks) > 1:
            return self._limit(offers)
        voters = evidence[-1].voters
        return max((number for number in range(1, self._peers + 1) if f"peer{number}" in voters), default=1)

    def _standing(self, prediction: Prediction, newest: Evidence, name: str, asked: int, *, large: bool) -> _Standing:
        roles = ("small", *(f"peer{number}" for number in range(1, asked + 1)), *(("large",) if large else ()))
        slots = slots_of(newest, roles)
        kind = self._kind(newest.kind)
        prompt = prompt_features(prediction.quality, self._prompt_roles)
        trust = prompt_features(prediction.quality, roles)
        stage, answer = self._stages[name]
        ahead = stage.probabilities(stage_features(slots, prompt), kind)
        groups = sorted({vote for vote in slots.votes if vote >= 0})
        right = [answer.probabilities(supporters(slots, group, trust, prompt), kind)[0] for group in groups]
        quality = max(right, default=0.0)
        group = groups[right.index(quality)] if groups else -1
        above = self._roles[1:] if not large else self._roles[1:][-1:]
        return _Standing(
            choice=max(slots.positions[giver(slots, group, roles)], 0),
            quality=quality,
            supporting=sum(vote == group for vote in slots.votes) if groups else 0,
            votes=len(newest.votes),
            ahead=dict(zip(above, ahead, strict=True)),
            basis=np.array(value_basis([quality, *ahead])),
        )

    def _kind(self, kind: str) -> int:
        return self._kinds.get(kind, len(self._kinds))

    def _worth(self, role: str, quality: float, safe: str) -> float:
        return quality + (self._margin if role == safe else 0.0) - self._tradeoff * self._cost(role)

    def _cost(self, role: str) -> float:
        """Of one call, the reference's being 1."""
        return self._costs.get(role, self._costs["small"])

    def _value(self, name: str, basis: _Array) -> float:
        weights = self._values.get(name)
        return -math.inf if weights is None else float(weights @ basis)


def giver(slots: Slots, group: int, roles: Sequence[str]) -> int:
    """The slot whose answer is given for a group: the large model's, then the small one's, then a peer's."""
    members = [at for at, vote in enumerate(slots.votes) if vote == group and slots.positions[at] >= 0]
    if not members or group < 0:
        return 0
    return members[-1] if roles[members[-1]] == "large" else members[0]


def _table(arrays: Mapping[str, NDArray[Any]], name: str) -> _Table:
    return _Table(arrays[f"{name}_means"], arrays[name])


def _fit(name: str, table: _Table, heads: int, kinds: int, features: int) -> None:
    wanted = (heads, kinds, features + 1)
    if table.weights.shape != wanted or table.means.shape != (features,):
        raise ValueError(f"policy_{name} has the shape {table.weights.shape}, not {wanted}")


def _expit(score: float) -> float:
    return 1.0 / (1.0 + math.exp(-min(max(score, -40.0), 40.0)))
