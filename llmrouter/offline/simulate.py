"""What a policy would have cost and been worth on labelled prompts, against always calling the reference.

The operating point that is asked for is replayed through the very plans that serve, row by row; the curve over all
points goes through `policy_walk`, which decides the same for many rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrouter.errors import UsageError
from llmrouter.offline.bootstrap import Bootstrap
from llmrouter.offline.frontier import PolicyPoint, Spending, points_of
from llmrouter.offline.labels import Floats, LabelSet
from llmrouter.offline.policy_rows import PolicyRows
from llmrouter.offline.policy_tables import standings_of, tables_of
from llmrouter.offline.policy_walk import walk
from llmrouter.offline.replay import Replays
from llmrouter.offline.weights import row_weights
from llmrouter.routing.evidence import Prediction
from llmrouter.routing.learned_policy import LearnedPolicy, Trained
from llmrouter.types import value

__all__ = ["Simulation", "SliceResult", "as_json", "simulate"]


@value
class SliceResult:
    """One source alone."""

    n: int
    weight: float
    """Its part of the mix."""
    point: PolicyPoint
    extra_calls: float
    """Calls a request beyond the first."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What came out."""

    n: int
    index: int
    """The operating point."""
    certified: int | None
    reference: str
    point: PolicyPoint
    calls: Mapping[str, float]
    """Role → calls a request."""
    extra_calls: float
    slices: Mapping[str, SliceResult]
    curve: Sequence[PolicyPoint]
    """Every operating point, from always the reference to the cheapest."""
    unweighted: Mapping[str, int]
    """Source → rows that the mix does not count."""


def simulate(
    artefact: Trained,
    labels: LabelSet,
    predict: Callable[[LabelSet], Sequence[Prediction]],
    *,
    costs: Mapping[str, float],
    weights: Mapping[str, float] | None = None,
    point: int | None = None,
    replicates: int = 1000,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Simulation:
    """Replay labels.

    Args:
        predict: the artefact's predictions of the rows, in order.
        costs: of one call of each role; a peer that is not named costs what the small model does.
        weights: the mix of sources; one that it does not name counts nothing. None takes the rows as they are.
        point: instead of the artefact's chosen operating point.

    Raises:
        UsageError: a cost is missing, there is no such point, or no row counts.
    """
    unweighted = {} if weights is None else _outside(labels, weights)
    row_weights(labels.sources, labels.inclusion, weights)
    if unweighted:
        labels = labels.take(np.flatnonzero([source in (weights or {}) for source in labels.sources]))
    counted = row_weights(labels.sources, labels.inclusion, weights)
    parameters = artefact.manifest["policy_parameters"]
    index = int(parameters["chosen"]) if point is None else point
    if not 0 <= index < len(parameters["points"]):
        raise UsageError(f"--point {index}: there are the operating points 0 to {len(parameters['points']) - 1}")
    prices = _prices(costs, parameters, labels)
    predictions = predict(labels)
    replays = Replays(labels)
    played, calls = _played(replays, LearnedPolicy.of(artefact, index), predictions, prices, progress)
    curve, reference_quality, reference_cost = _curve(artefact, replays, predictions, prices)
    bootstrap = Bootstrap(labels.groups, labels.sources, replicates, seed)
    (found,) = points_of(played, reference_quality, reference_cost, weights=counted, bootstrap=bootstrap)
    all_calls = np.sum(list(calls.values()), axis=0)
    total = counted.sum()
    return Simulation(
        n=len(labels),
        index=index,
        certified=parameters.get("certified"),
        reference=str(parameters["reference"]),
        point=found,
        calls={role: float(counted @ each / total) for role, each in calls.items()},
        extra_calls=float(counted @ all_calls / total) - 1.0,
        slices=_slices(labels, played, all_calls, reference_quality, reference_cost, counted, bootstrap),
        curve=points_of(curve, reference_quality, reference_cost, weights=counted),
        unweighted=unweighted,
    )


def as_json(found: Simulation) -> dict[str, Any]:
    """All figures, for machines."""
    return {
        "cost_saving": found.point.cost_saving,
        "cost_saving_ci": _interval(found.point.cost_saving_ci),
        "quality_delta": found.point.quality_delta,
        "quality_delta_ci": _interval(found.point.quality_delta_ci),
        "shares": found.point.shares,
        "calls": found.calls,
        "extra_calls": found.extra_calls,
        "n": found.n,
        "point": found.index,
        "certified": found.certified,
        "reference": found.reference,
        "slices": {
            name: {
                "n": each.n,
                "weight": each.weight,
                "cost_saving": each.point.cost_saving,
                "cost_saving_ci": _interval(each.point.cost_saving_ci),
                "quality_delta": each.point.quality_delta,
                "quality_delta_ci": _interval(each.point.quality_delta_ci),
                "shares": each.point.shares,
                "extra_calls": each.extra_calls,
            }
            for name, each in found.slices.items()
        },
        "curve": [
            {
                "point": index,
                "cost_saving": each.cost_saving,
                "quality_delta": each.quality_delta,
                "shares": each.shares,
            }
            for index, each in enumerate(found.curve)
        ],
        "unweighted": found.unweighted,
    }


def _outside(labels: LabelSet, weights: Mapping[str, float]) -> dict[str, int]:
    return {each: labels.sources.count(each) for each in sorted(set(labels.sources) - set(weights))}


def _prices(costs: Mapping[str, float], parameters: Mapping[str, Any], labels: LabelSet) -> dict[str, float]:
    """Of every role that may be called."""
    for role in parameters["roles"]:
        if role in labels.roles and not costs.get(role, 0.0) > 0:
            raise UsageError(f"--costs must give {role} a number above 0, e.g. --costs small=1,large=10,frontier=100")
    return {role: float(costs.get(role, costs["small"])) for role in (*parameters["roles"], *labels.roles)}


def _played(
    replays: Replays,
    policy: LearnedPolicy,
    predictions: Sequence[Prediction],
    prices: Mapping[str, float],
    progress: Callable[[str, int, int], None] | None,
) -> tuple[Spending, dict[str, Floats]]:
    """Each row through its plan, and how often each role was called for it."""
    count = len(replays)
    quality, cost = np.zeros((1, count)), np.zeros((1, count))
    share: dict[str, Floats] = {}
    calls: dict[str, Floats] = {}
    for row, prediction in enumerate(predictions):
        done = replays.run(row, policy, prediction)
        quality[0, row] = replays.quality(done.role, row)
        share.setdefault(done.role, np.zeros((1, count)))[0, row] = 1.0
        for role in done.calls:
            cost[0, row] += prices[role]
            calls.setdefault(role, np.zeros(count))[row] += 1.0
        if progress is not None and row % 100 == 99:
            progress("replaying", row + 1, count)
    return Spending(quality, cost, share), calls


def _curve(
    artefact: Trained, replays: Replays, predictions: Sequence[Prediction], prices: Mapping[str, float]
) -> tuple[Spending, Floats, Floats]:
    """Every operating point on every row; then quality and cost of the reference."""
    parameters = artefact.manifest["policy_parameters"]
    tables, values = tables_of(parameters, artefact.arrays)
    rows = PolicyRows.of(
        replays,
        [each.quality for each in predictions],
        roles=tuple(parameters["roles"]),
        prompt_roles=tuple(parameters["prompt_roles"]),
        kinds=tuple(parameters["kinds"]),
        compared=tuple(parameters["compared_kinds"]),
        most_peers=parameters["peers"] if parameters["policy"] != "route" else 0,
    )
    everything = np.ones(len(rows), dtype=bool)
    points = [(each["margin"], each["tradeoff"]) for each in parameters["points"]]
    novel = np.array([each.novelty > parameters["novelty_limit"] for each in predictions], dtype=bool)
    walked = walk(
        rows,
        standings_of(rows, tables, everything),
        values,
        points,
        parameters["costs"],
        everything,
        parameters["policy"],
        novel,
    )
    share = {role: (walked.role == number).astype(np.float64) for number, role in enumerate(rows.givers)}
    reference = np.array([prices[rows.roles[each]] for each in rows.best.tolist()])
    return Spending(walked.quality, walked.cost(prices), share), rows.reference_quality, reference


def _slices(
    labels: LabelSet,
    played: Spending,
    calls: Floats,
    reference_quality: Floats,
    reference_cost: Floats,
    weights: Floats,
    bootstrap: Bootstrap,
) -> dict[str, SliceResult]:
    sources = np.array(labels.sources, dtype=object)
    found = {}
    for source in dict.fromkeys(labels.sources):
        rows = sources == source
        (point,) = points_of(played, reference_quality, reference_cost, weights=weights, bootstrap=bootstrap, rows=rows)
        part = weights[rows]
        found[source] = SliceResult(
            n=int(rows.sum()),
            weight=float(part.sum() / weights.sum()),
            point=point,
            extra_calls=float(part @ calls[rows] / part.sum()) - 1.0,
        )
    return found


def _interval(given: Any) -> list[float] | None:
    return None if given is None else [given.low, given.high]
