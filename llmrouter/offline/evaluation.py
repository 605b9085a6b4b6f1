"""Everything that is said of a router on labels, next to what chance, simple rules and other routers do there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from llmrouter.errors import UsageError
from llmrouter.offline.baselines import BASELINES, baseline_scores
from llmrouter.offline.bootstrap import Bootstrap, Interval
from llmrouter.offline.calibrated import Reliability, reliability
from llmrouter.offline.curves import Curve, Measures, Pair, chance_band, curve_of, measure
from llmrouter.offline.external import External
from llmrouter.offline.frontier import PolicyPoint, points_of, routed, sweep
from llmrouter.offline.labels import Floats, LabelSet
from llmrouter.offline.weights import row_weights

__all__ = ["ROUTER", "Contender", "Evaluation", "Options", "PairResult", "Stage", "evaluate"]

ROUTER = "router"
"""The name of what is evaluated, among those it is compared with."""
_ROLES = ("small", "large", "frontier")

Stage: TypeAlias = Callable[[str, int, int], None]
"""Told what is being measured, how much of it is done and how much there is."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to measure."""

    costs: Mapping[str, float]
    """Role → relative cost of a call."""
    mix: Mapping[str, float] | None = None
    """Source → weight; None counts rows alike."""
    replicates: int = 1000
    seed: int = 0


@dataclass(frozen=True, slots=True)
class PairResult:
    """One pair of roles."""

    weak: str
    strong: str
    measures: Mapping[str, Measures]
    """By contender: `router`, the baselines, and other routers whose scores are known."""
    curves: Mapping[str, Curve]
    slices: Mapping[str, Measures]
    """Source → the router's figures there."""
    chance: Interval | None
    """Where the APGR of a router that knows nothing lies on as many rows."""

    @property
    def name(self) -> str:
        return f"{self.weak}>{self.strong}"

    @property
    def router(self) -> Measures:
        return self.measures[ROUTER]


@dataclass(frozen=True, slots=True)
class Contender:
    """Decisions, not scores: one point of cost and quality."""

    name: str
    n: int
    """Rows it decided on that have all the scores needed."""
    point: PolicyPoint
    router_delta: float | None
    """Quality that the router's own curve has over it at the same cost on the same rows, in points."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The whole comparison."""

    main: PairResult
    pairs: Mapping[str, PairResult]
    """Every pair, the main one among them."""
    frontier: tuple[PolicyPoint, ...]
    """The router over all roles at once, from dear to cheap, against always calling the reference."""
    oracle_frontier: tuple[PolicyPoint, ...]
    contenders: tuple[Contender, ...]
    reliability: Mapping[str, Reliability]
    """By role."""
    reference: str
    """Role against which savings and losses are stated."""
    n: int
    costs: Mapping[str, float]

    @property
    def compared(self) -> tuple[str, ...]:
        """Everything that stands beside the router."""
        return (*(name for name in self.main.measures if name != ROUTER), *(each.name for each in self.contenders))


def evaluate(
    labels: LabelSet,
    predicted: Mapping[str, Floats],
    options: Options,
    *,
    decisions: Sequence[External] = (),
    stage: Stage = lambda _what, _done, _of: None,
) -> Evaluation:
    """Measure predictions of each role's score, and compare them.

    Args:
        predicted: role → predicted score of each row, from 0 to 1, by a model that has not seen the row.
        decisions: of other routers, or of rules, on these labels.

    Raises:
        UsageError: fewer than two roles have both predictions and scores, a cost is missing, two routers have one name,
            or one has no decision that can be measured.
    """
    roles = [role for role in _ROLES if role in labels.roles and role in predicted]
    if len(roles) < 2:
        raise UsageError(f"two of the roles {', '.join(_ROLES)} need scores and predictions; there are {roles}")
    for role in roles:
        if role not in options.costs:
            raise UsageError(f"no cost is known of {role}; name it with --costs {role}=NUMBER")
    names = [each.name for each in decisions]
    for name in names:
        if name in (ROUTER, *BASELINES) or names.count(name) > 1:
            raise UsageError(f"{name!r} stands for another router already; give each a name of its own")
    pairs = {}
    for weak, strong in combinations(roles, 2):
        rows = _known(labels, (weak, strong))
        main = (weak, strong) == (roles[0], roles[-1])
        if main or len(rows):
            found = _pair(labels, predicted, options, weak, strong, decisions, stage, main=main)
            pairs[found.name] = found
    main_pair = pairs[f"{roles[0]}>{roles[-1]}"]
    whole = _known(labels, roles)
    return Evaluation(
        main=main_pair,
        pairs=pairs,
        frontier=_frontier(labels, predicted, options, roles, whole, stage),
        oracle_frontier=_frontier(labels, {role: labels.roles[role].quality for role in roles}, options, roles, whole),
        contenders=tuple(_contender(labels, predicted, options, roles, each) for each in decisions if each.roles),
        reliability={
            role: comparison
            for role in roles
            if (comparison := reliability(predicted[role], labels.roles[role].quality, _weights(labels, options)))
        },
        reference=roles[-1],
        n=main_pair.router.n,
        costs={role: options.costs[role] for role in roles},
    )


def _pair(
    labels: LabelSet,
    predicted: Mapping[str, Floats],
    options: Options,
    weak: str,
    strong: str,
    decisions: Sequence[External],
    stage: Stage,
    *,
    main: bool,
) -> PairResult:
    rows = _known(labels, (weak, strong))
    part = labels.take(rows)
    weights = _weights(part, options, lenient=not main)
    pair = Pair(part.roles[weak].quality, part.roles[strong].quality, options.costs[weak], options.costs[strong])
    scores = {ROUTER: (predicted[strong] - predicted[weak])[rows], **baseline_scores(part.asks, pair.oracle())}
    bootstrap = Bootstrap(part.groups, part.sources, options.replicates, options.seed)
    name = f"{weak}>{strong}"
    measures = {
        each: measure(
            score,
            pair,
            weights=weights,
            bootstrap=bootstrap if main or each == ROUTER else None,
            progress=lambda done, of, each=each: stage(f"{name} {each}", done, of),  # type: ignore[misc]
        )
        for each, score in scores.items()
    }
    for other in decisions:
        if other.score is not None:
            known = np.isfinite(other.score[rows])
            filled = np.where(known, other.score[rows], 0.0)
            measures[other.name] = measure(filled, pair, weights=weights, bootstrap=bootstrap, rows=known)
    sources = np.array(part.sources, dtype=object)
    slices = {
        source: measure(scores[ROUTER], pair, weights=weights, bootstrap=bootstrap, rows=sources == source)
        for source in sorted(set(part.sources))
        if main and weights[sources == source].any()
    }
    return PairResult(
        weak=weak,
        strong=strong,
        measures=measures,
        curves={each: curve_of(score, pair, weights).thinned() for each, score in scores.items()},
        slices=slices,
        chance=chance_band(pair, weights=weights, seed=options.seed) if main else None,
    )


def _frontier(
    labels: LabelSet,
    predicted: Mapping[str, Floats],
    options: Options,
    roles: Sequence[str],
    rows: NDArray[np.intp],
    stage: Stage | None = None,
) -> tuple[PolicyPoint, ...]:
    if not len(rows):
        return ()
    part = labels.take(rows)
    actual = {role: part.roles[role].quality for role in roles}
    policies = sweep({role: predicted[role][rows] for role in roles}, actual, options.costs)
    bootstrap = Bootstrap(part.groups, part.sources, options.replicates, options.seed) if stage is not None else None
    return points_of(
        policies,
        actual[roles[-1]],
        options.costs[roles[-1]],
        weights=_weights(part, options, lenient=True),
        bootstrap=bootstrap,
        progress=None if stage is None else lambda done, of: stage("frontier", done, of),
    )


def _contender(
    labels: LabelSet, predicted: Mapping[str, Floats], options: Options, roles: Sequence[str], given: External
) -> Contender:
    """What the decisions cost and bring, against the reference and against the router's curve at that cost."""
    needed = np.isfinite(np.stack([labels.roles[role].quality for role in roles])).all(axis=0)
    rows = np.flatnonzero(needed & given.decided)
    part = labels.take(rows)
    if not len(rows):
        raise UsageError(f"{given.name}: none of its decisions is on a label with scores of {', '.join(roles)}")
    actual = {role: part.roles[role].quality for role in roles}
    places = np.array([roles.index(role) if role in roles else -1 for role in given.roles])
    choice = places[given.choice[rows]]
    if (choice < 0).any():
        raise UsageError(f"{given.name}: sends rows to a role that has no scores here; roles are {', '.join(roles)}")
    weights = _weights(part, options, lenient=True)
    bootstrap = Bootstrap(part.groups, part.sources, options.replicates, options.seed)
    reference, cost = actual[roles[-1]], options.costs[roles[-1]]
    point = points_of(
        routed(roles, choice[None], actual, options.costs), reference, cost, weights=weights, bootstrap=bootstrap
    )[0]
    own = points_of(
        sweep({role: predicted[role][rows] for role in roles}, actual, options.costs, 400),
        reference,
        cost,
        weights=weights,
    )
    costs = np.array([each.cost for each in own][::-1])
    quality = np.array([each.quality for each in own][::-1])
    return Contender(
        name=given.name,
        n=len(rows),
        point=point,
        router_delta=float(100.0 * (np.interp(point.cost, costs, quality) - point.quality)),
        notes=tuple(given.notes()),
    )


def _known(labels: LabelSet, roles: Sequence[str]) -> NDArray[np.intp]:
    """Rows with a score of each of these roles."""
    return np.flatnonzero(np.isfinite(np.stack([labels.roles[role].quality for role in roles])).all(axis=0))


def _weights(labels: LabelSet, options: Options, *, lenient: bool = False) -> Floats:
    """Weights of these rows; `lenient` passes over sources of the mix that none of them is of."""
    mix = options.mix
    if mix is not None and lenient:
        mix = {name: weight for name, weight in mix.items() if name in labels.sources} or None
    return row_weights(labels.sources, labels.inclusion, mix)
