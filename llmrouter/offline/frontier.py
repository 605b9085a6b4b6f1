"""Cost and quality of policies over any number of roles, against always calling the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmrouter.offline.bootstrap import Bootstrap, Interval, Progress, interval_of
from llmrouter.offline.labels import Floats
from llmrouter.types import value

__all__ = ["PolicyPoint", "Spending", "points_of", "routed", "sweep"]


@dataclass(frozen=True, slots=True)
class Spending:
    """What each of several policies did on the same rows."""

    quality: Floats
    """Shape (policies, n): score of the answer that was given."""
    cost: Floats
    """Shape (policies, n): of all calls of the row together."""
    share: Mapping[str, Floats]
    """Role → shape (policies, n): 1 where that role's answer was given, else 0; empty where nobody asks."""


@value
class PolicyPoint:
    """One policy against always calling the reference."""

    cost: float
    quality: float
    cost_saving: float
    """Fraction of the reference's cost; below 0 where the policy is dearer."""
    quality_delta: float
    """Points, that is a score times 100; below 0 where the policy is worse."""
    cost_saving_ci: Interval | None
    quality_delta_ci: Interval | None
    shares: Mapping[str, float]


def routed(
    roles: Sequence[str], choice: NDArray[np.intp], actual: Mapping[str, Floats], cost: Mapping[str, float]
) -> Spending:
    """What direct routing does: `choice` has shape (policies, n) and holds positions in `roles`."""
    table = np.stack([actual[role] for role in roles])
    prices = np.array([cost[role] for role in roles])
    rows = np.arange(table.shape[1])
    return Spending(
        quality=table[choice, rows],
        cost=prices[choice],
        share={role: (choice == index).astype(np.float64) for index, role in enumerate(roles)},
    )


def sweep(
    predicted: Mapping[str, Floats], actual: Mapping[str, Floats], cost: Mapping[str, float], points: int = 60
) -> Spending:
    """Policies that call the role with the best predicted quality minus lambda times cost, from dear to cheap.

    The first policy looks at quality alone, the last one always calls the cheapest role.
    """
    roles = sorted(predicted, key=lambda role: cost[role])
    quality = np.stack([predicted[role] for role in roles])
    prices = np.array([cost[role] for role in roles])
    steps = np.diff(np.unique(prices))
    if not len(steps):
        return routed(roles, np.argmax(quality, axis=0)[None], actual, cost)
    # A full point of quality at the smallest step of cost is more than any prediction can outweigh.
    lambdas = np.concatenate(([0.0], np.geomspace(1e-4 / steps.max(), 1.01 / steps.min(), points - 1)))
    choice = np.stack([np.argmax(quality - each * prices[:, None], axis=0) for each in lambdas])
    return routed(roles, choice, actual, cost)


def points_of(
    policies: Spending,
    reference_quality: Floats,
    reference_cost: float | Floats,
    *,
    weights: Floats | None = None,
    bootstrap: Bootstrap | None = None,
    rows: NDArray[np.bool_] | None = None,
    progress: Progress | None = None,
) -> tuple[PolicyPoint, ...]:
    """Each policy's cost and quality, with intervals where a bootstrap is given.

    Args:
        rows: of these rows only (a slice); every array has an entry for all rows.
    """
    n = policies.quality.shape[1]
    chosen = np.ones(n, dtype=bool) if rows is None else rows
    weights = (np.ones(n) if weights is None else weights)[chosen]
    quality, cost = policies.quality[:, chosen].T, policies.cost[:, chosen].T
    delta = 100.0 * (quality - reference_quality[chosen, None])
    reference = np.broadcast_to(np.asarray(reference_cost, dtype=np.float64), n)[chosen]
    total = weights.sum()
    savings: list[Floats] = []
    deltas: list[Floats] = []
    for drawn in bootstrap.multiplicities(chosen, progress) if bootstrap is not None else ():
        weighted = drawn * weights
        savings.append(1.0 - (weighted @ cost) / (weighted @ reference)[:, None])
        deltas.append((weighted @ delta) / weighted.sum(axis=1)[:, None])
    saving_cis, delta_cis = _intervals(savings, quality.shape[1]), _intervals(deltas, quality.shape[1])
    return tuple(
        PolicyPoint(
            cost=float(weights @ cost[:, index] / total),
            quality=float(weights @ quality[:, index] / total),
            cost_saving=float(1.0 - (weights @ cost[:, index]) / (weights @ reference)),
            quality_delta=float(weights @ delta[:, index] / total),
            cost_saving_ci=saving_cis[index],
            quality_delta_ci=delta_cis[index],
            shares={role: float(weights @ given[index][chosen] / total) for role, given in policies.share.items()},
        )
        for index in range(quality.shape[1])
    )


def _intervals(parts: Sequence[Floats], policies: int) -> list[Interval | None]:
    if not parts:
        return [None] * policies
    replicates = np.concatenate(parts)
    return [interval_of(replicates[:, index]) for index in range(policies)]
