"""Replays labels with one check at a time: try the small model, keep its answer or go on to the large one.

Decided by the policy that serves, from the prompt's source alone: its mean scores stand in for a prediction, so that
what is saved is saved by the check. Every row is decided by tables and means of other questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmrouter.errors import UsageError
from llmrouter.offline.check_fit import fit_checks
from llmrouter.offline.heads import folds_of
from llmrouter.offline.labels import Floats, LabelSet
from llmrouter.routing.checked import CheckedPolicy, CheckTable
from llmrouter.routing.evidence import Check, Evidence, Move, Offers, Prediction

__all__ = ["CHECKS", "Replay", "replay", "saving_at"]

CHECKS: Mapping[str, tuple[Check, bool]] = {
    "none": ("none", False),
    "logprobs": ("logprobs", False),
    "logprobs:held": ("logprobs", True),
    "self_check": ("self_check", False),
}
"""Name → check, and whether it sees the held-back beginning only. `none` chooses by the mean scores alone."""

_FOLDS = 5
_TRADEOFFS = tuple(float(each) for each in np.geomspace(0.005, 3.0, 40))


@dataclass(frozen=True, slots=True)
class Replay:
    """What each tradeoff did with each row; the first point sends everything to the large model, the last to the
    small one."""

    quality: Floats
    """Shape (points, n)."""
    cost: Floats
    """Shape (points, n): the large model's call being 1."""


class _Direct:
    """Routes to what is worth most, from the prediction alone."""

    def __init__(self, costs: Mapping[str, float], tradeoff: float) -> None:
        self._costs = costs
        self._tradeoff = tradeoff

    def first(self, prediction: Prediction, offers: Offers) -> Move:
        quality = prediction.quality
        role = max(sorted(offers.roles), key=lambda each: quality[each] - self._tradeoff * self._costs[each])
        return Move("route", role, score=quality[role])

    def following(self, _prediction: Prediction, _offers: Offers, _evidence: Sequence[Evidence]) -> Move:
        return Move("route", "large")


def replay(labels: LabelSet, names: Sequence[str], *, small_cost: float, seed: int) -> Mapping[str, Replay]:
    """Replay each check alone; a check that got no table on some fold is not used there.

    Args:
        small_cost: of a call of the small model, as a share of one of the large model.

    Raises:
        UsageError: too few questions, or a model is missing.
    """
    if not {"small", "large"} <= labels.roles.keys():
        raise UsageError("the labels must have scores of a small and a large model")
    n, points = len(labels), len(_TRADEOFFS) + 2
    costs = {"small": small_cost, "large": 1.0}
    score = {role: labels.roles[role].quality for role in costs}
    found = {name: Replay(np.empty((points, n)), np.empty((points, n))) for name in names}
    for each in found.values():
        each.quality[0], each.cost[0] = score["large"], 1.0
        each.quality[-1], each.cost[-1] = score["small"], small_cost
    folds = folds_of(labels.groups, _FOLDS, seed)
    for fold in range(_FOLDS):
        rest = labels.take(np.flatnonzero(folds != fold))
        tables = fit_checks(rest, seed=seed).tables
        means = _means(rest)
        for name in names:
            check, held = CHECKS[name]
            used = [table for table in tables if (table.check, table.held) == (check, held)]
            for point, tradeoff in enumerate(_TRADEOFFS, 1):
                policy = CheckedPolicy(_Direct(costs, tradeoff), used, costs=costs, tradeoff=tradeoff)
                for row in np.flatnonzero(folds == fold).tolist():
                    means_here = Prediction(means.get(labels.sources[row], means[""]))
                    role, spent = _one(policy, means_here, labels, row, check, held, used, costs)
                    found[name].quality[point, row] = score[role][row]
                    found[name].cost[point, row] = spent
    return found


def _means(labels: LabelSet) -> dict[str, dict[str, float]]:
    """Source → role → mean score; the empty source is all of them."""
    sources = np.array(labels.sources, dtype=object)
    chosen = {source: sources == source for source in set(labels.sources)} | {"": np.ones(len(labels), dtype=bool)}
    roles = ("small", "large")
    return {
        name: {role: float(labels.roles[role].quality[rows].mean()) for role in roles} for name, rows in chosen.items()
    }


def _one(
    policy: CheckedPolicy,
    prediction: Prediction,
    labels: LabelSet,
    row: int,
    check: Check,
    held: bool,
    tables: Sequence[CheckTable],
    costs: Mapping[str, float],
) -> tuple[str, float]:
    """Whose answer one row gets, and what that costs; a beginning that is not gone on with is counted as a whole
    answer."""
    offers = Offers(frozenset(costs), frozenset({check}), held=held)
    move = policy.first(prediction, offers)
    if move.action != "check":
        return move.role, costs[move.role]
    small = labels.roles["small"]
    signals = small.prefix_signals if held else small.signals
    seen = Evidence(
        check=check,
        role="small",
        kind="text",
        votes=(0,),
        voters=("small",),
        characters=(-1,),
        signals=signals[row] if signals else None,
        p_true=float(small.p_true[row]) if len(small.p_true) and np.isfinite(small.p_true[row]) else None,
    )
    spent = costs["small"] * (1 + tables[0].extra_cost)
    after = policy.following(prediction, offers, [seen])
    return ("small", spent) if after.action == "accept" else ("large", spent + costs["large"])


def saving_at(replayed: Replay, loss: float, rows: NDArray[np.intp] | None = None) -> float:
    """The share of cost that is saved where a mix of points loses so much quality (0 to 1) against the large model."""
    chosen = slice(None) if rows is None else rows
    lost = replayed.quality[0, chosen].mean() - replayed.quality[:, chosen].mean(axis=1)
    saved = 1.0 - replayed.cost[:, chosen].mean(axis=1)
    best = float(saved[lost <= loss].max(initial=0.0))
    for one in np.flatnonzero(lost <= loss).tolist():
        for other in np.flatnonzero(lost > loss).tolist():
            share = (loss - lost[one]) / (lost[other] - lost[one])
            best = max(best, float(saved[one] + share * (saved[other] - saved[one])))
    return best
