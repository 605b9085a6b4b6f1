"""Fits the learned policy: tables of what answers are worth, and operating points from all-reference to cheapest.

Everything that the figures of an operating point rest on is cross-fitted by group, and nested: the rows of one fold are
decided by tables that were fitted on the other folds, and what going on is worth there was learned from predictions
that those folds made of one another. `routing.learned_policy` takes the same decisions one request at a time.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from llmrouter.errors import UsageError
from llmrouter.offline.frontier import Spending
from llmrouter.offline.labels import Floats, LabelSet
from llmrouter.offline.logistic import KindTable, fit_kind_table, fit_linear
from llmrouter.offline.policy_rows import PolicyRows
from llmrouter.offline.policy_tables import StageTables, arrays_of, standings_of
from llmrouter.offline.policy_walk import Standings, values_of, walk
from llmrouter.offline.replay import Replays
from llmrouter.offline.roles import MAIN_ROLES
from llmrouter.offline.weights import row_weights
from llmrouter.routing.learned_policy import POLICY_VERSION

__all__ = ["FittedPolicy", "fit_policy"]

Progress: TypeAlias = Callable[[str, int, int], None]
"""Told what is being done, how much is done and how much there is to do."""

_FOLDS = 5
_LEAST_PENALTY, _MOST_PENALTY, _ROWS_A_PENALTY = 5.0, 150.0, 70.0
"""The penalty grows by 1 with so many rows: many labels are of many sources, whose differences the kinds share."""
_PROMPT_PENALTY_SHARE = 0.2
"""The table of the prompt has few features, and a source without answers has nothing but that."""
_VALUE_PENALTY = 3.0
_LEAST_WEIGHT = 0.1
"""Of a row that the mix does not count: what it shows of its kind of prompt is better than nothing."""
_MOST_PEERS = 4
_FEWEST_COMPARED = 30
"""Rows of one kind of answer with agreement, below which answers of that kind are never compared."""
_NOVELTY_LIMIT = 0.995
_SURE = 0.9
"""Confidence, for one point looked at alone, with which the chosen point's loss is below the limit. Half, that is the
estimate itself, would break the promise every second time; more would give away saving that is probably there."""
_MARGINS = (0.1, 0.05, 0.03, 0.02, 0.01, 0.0)
_TRADEOFFS = tuple(float(each) for each in np.geomspace(0.015, 1.3, 26))
_LEAST_TRADEOFF = 0.01


@dataclass(frozen=True, slots=True)
class FittedPolicy:
    """A policy as arrays and parameters, and what each of its operating points did on rows it had not seen."""

    arrays: Mapping[str, Floats]
    """By name; all names begin with `policy_`."""
    parameters: Mapping[str, Any]
    """JSON values, for the manifest's `policy_parameters`."""
    spending: Spending
    """Cross-fitted: each operating point on each row, cost as in `costs`."""
    reference_quality: Floats
    """Shape (n,): of the reference's answer, the best that the row's source has."""
    reference_cost: Floats
    """Shape (n,)."""
    weights: Floats
    """Shape (n,): what each row counts for."""


def fit_policy(
    labels: LabelSet,
    predictions: Mapping[str, Floats],
    *,
    policy: str = "auto",
    costs: Mapping[str, float],
    weights: Mapping[str, float] | None = None,
    max_quality_loss: float = 1.0,
    novelty: Floats | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> FittedPolicy:
    """Fit on labels and on cross-fitted predictions of them.

    The same labels, predictions and seed give the same arrays, bit for bit, on one machine.

    Args:
        predictions: role → shape (n,), the quality that the prompt alone promises; made without the row's own group.
        policy: `route` never checks, `cascade` checks wherever answers can be compared, `auto` does what pays.
        costs: of one call of each role, in any unit; a peer that is not named costs what the small model does.
        weights: the mix of sources that the policy is made for; None takes the rows as they are.
        novelty: shape (n,): how unlike the others each row is, made without its own group; None takes none for novel.
        max_quality_loss: points against the reference that the chosen operating point should stay within.

    Raises:
        UsageError: a cost is missing or not above 0, or there are no predictions of a role.
    """
    rows = _rows_of(labels, predictions, policy)
    roles = rows.roles
    unit = _unit_costs(costs, roles, rows.peer_count)
    counted = row_weights(labels.sources, labels.inclusion, weights)
    learning = np.maximum(np.sqrt(counted / counted[counted > 0].mean()), _LEAST_WEIGHT)
    folds = _folds(labels.groups, seed)
    points = _points()
    novel = None if novelty is None else novelty > _NOVELTY_LIMIT
    penalty = min(_MOST_PENALTY, _LEAST_PENALTY + len(labels) / _ROWS_A_PENALTY)
    fitting = _Fitting(rows, learning, unit, points, penalty)
    shape = (len(points), len(labels))
    quality, cost, ended = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.intp)
    held = np.unique(folds)
    for number, fold in enumerate(held.tolist()):
        if progress is not None:
            progress("cross-fitting the policy", number, len(held) + 1)
        apart = folds == fold
        tables, values = fitting.fit(~apart, folds)
        standings = standings_of(rows, tables, apart)
        walked = walk(rows, standings, values, points, unit, apart, policy, novel)
        quality[:, apart], cost[:, apart], ended[:, apart] = walked.quality, walked.cost(unit), walked.role
    if progress is not None:
        progress("cross-fitting the policy", len(held), len(held) + 1)
    tables, values = fitting.fit(np.ones(len(labels), dtype=bool), folds)
    reference = roles[-1]
    reference_cost = np.array([costs[roles[each]] for each in rows.best.tolist()], dtype=np.float64)
    spending = Spending(quality, cost * costs[reference], _shares(ended, rows))
    losses = rows.reference_quality - quality
    chosen = _choose(losses, spending.cost, counted, labels.groups, max_quality_loss / 100.0)
    return FittedPolicy(
        arrays=arrays_of(tables, values),
        parameters={
            "version": POLICY_VERSION,
            "policy": policy,
            "reference": reference,
            "roles": list(roles),
            "prompt_roles": list(rows.prompt_roles),
            "kinds": list(rows.kinds),
            "compared_kinds": list(rows.compared),
            "peers": rows.peer_count,
            "costs": unit,
            "novelty_limit": _NOVELTY_LIMIT,
            "stages": [name for name in tables if name != "prompt"],
            "values": list(values),
            "points": [
                {
                    "margin": margin,
                    "tradeoff": tradeoff,
                    "loss": 100.0 * float(counted @ losses[index] / counted.sum()),
                    "cost_saving": 1.0 - float(counted @ spending.cost[index] / (counted @ reference_cost)),
                }
                for index, (margin, tradeoff) in enumerate(points)
            ],
            "chosen": chosen,
            "certified": None,
            "max_quality_loss": max_quality_loss,
        },
        spending=spending,
        reference_quality=rows.reference_quality,
        reference_cost=reference_cost,
        weights=counted,
    )


@dataclass(frozen=True, slots=True)
class _Fitting:
    rows: PolicyRows
    weights: Floats
    costs: Mapping[str, float]
    points: Sequence[tuple[float, float]]
    penalty: float

    def fit(
        self, chosen: NDArray[np.bool_], folds: NDArray[np.intp]
    ) -> tuple[dict[str, StageTables], dict[str, Floats]]:
        """Tables from the chosen rows, and values from predictions that their folds made of one another."""
        standings: Standings | None = None
        for fold in np.unique(folds[chosen]).tolist():
            apart = chosen & (folds == fold)
            part = standings_of(self.rows, self.tables(chosen & ~apart), apart)
            standings = part if standings is None else standings.filled(part, apart)
        assert standings is not None
        values = values_of(self.rows, standings, self.points, self.costs, chosen, self.weights, self._linear)
        return self.tables(chosen), values

    def tables(self, chosen: NDArray[np.bool_]) -> dict[str, StageTables]:
        rows, used = self.rows, chosen
        light = _PROMPT_PENALTY_SHARE * self.penalty
        prompt = self._table(rows.prompt[used], rows.kind[used], rows.targets[used], used, light)
        found = {"prompt": StageTables(prompt)}
        for name, stage in rows.stages.items():
            there = used & stage.rows
            answers = there[stage.answer_row]
            targets = stage.targets(rows)[there]
            ahead = self._table(stage.features[there], rows.kind[there], targets, there, self.penalty)
            answer = fit_kind_table(
                stage.answer_features[answers],
                rows.kind[stage.answer_row[answers]],
                len(rows.kinds),
                stage.answer_quality[answers, None],
                self.weights[stage.answer_row[answers]],
                penalty=self.penalty,
            )
            found[name] = StageTables(ahead, answer)
        return found

    def _table(
        self, features: Floats, kinds: NDArray[np.intp], targets: Floats, rows: NDArray[np.bool_], penalty: float
    ) -> KindTable:
        count = len(self.rows.kinds)
        return fit_kind_table(features, kinds, count, targets, self.weights[rows], penalty=penalty)

    def _linear(self, basis: Floats, targets: Floats, weights: Floats) -> Floats:
        return fit_linear(basis, targets, weights, penalty=_VALUE_PENALTY)


def _rows_of(labels: LabelSet, predictions: Mapping[str, Floats], policy: str) -> PolicyRows:
    roles = tuple(role for role in MAIN_ROLES if role in labels.roles)
    for role in roles:
        if role not in predictions:
            raise UsageError(f"there are no predictions of the role {role}, which the labels have")
    replays = Replays(labels)
    most = min(int(replays.peers.max(initial=0)), _MOST_PEERS) if policy != "route" else 0
    comparable = Counter(kind for kind, peers in zip(replays.kinds, replays.peers.tolist(), strict=True) if peers)
    columns = {role: values.tolist() for role, values in predictions.items()}
    return PolicyRows.of(
        replays,
        [
            {role: values[row] for role, values in columns.items() if values[row] == values[row]}
            for row in range(len(labels))
        ],
        roles=roles,
        prompt_roles=tuple(r for r in (*MAIN_ROLES, *(f"peer{n}" for n in range(1, most + 1))) if r in predictions),
        kinds=tuple(sorted(set(replays.kinds))),
        compared=tuple(sorted(kind for kind, rows in comparable.items() if rows >= _FEWEST_COMPARED)),
        most_peers=most,
    )


def _unit_costs(costs: Mapping[str, float], roles: Sequence[str], peers: int) -> dict[str, float]:
    """Cost of a call of each role, the reference's being 1."""
    for role in roles:
        if not costs.get(role, 0.0) > 0:
            raise UsageError(f"--costs must give {role} a number above 0")
    names = [*roles, *(f"peer{number}" for number in range(1, peers + 1))]
    return {role: float(costs.get(role, costs["small"])) / float(costs[roles[-1]]) for role in names}


def _folds(groups: Sequence[str], seed: int) -> NDArray[np.intp]:
    """A fold for each row, the same for all of a group; as even as a shuffle of the groups makes them."""
    names = sorted(set(groups), key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
    of = {name: position % _FOLDS for position, name in enumerate(names)}
    if len(names) < _FOLDS:
        raise UsageError(f"the labels are of {len(names)} different questions; a policy needs at least {_FOLDS}")
    return np.array([of[group] for group in groups], dtype=np.intp)


def _points() -> tuple[tuple[float, float], ...]:
    """Margin and tradeoff of each operating point; the first stands for the reference and is never computed with."""
    leaving = [(margin, _LEAST_TRADEOFF) for margin in _MARGINS]
    return ((1.0, 0.0), *leaving, *((0.0, tradeoff) for tradeoff in _TRADEOFFS))


def _shares(ended: NDArray[np.intp], rows: PolicyRows) -> dict[str, Floats]:
    return {role: (ended == number).astype(np.float64) for number, role in enumerate(rows.givers)}


def _choose(losses: Floats, cost: Floats, weights: Floats, groups: Sequence[str], limit: float) -> int:
    """The cheapest point that seems to lose less than the limit even after bad luck; it is no guarantee."""
    numbers = np.unique(np.array(groups, dtype=object).astype(str), return_inverse=True)[1]
    total = weights.sum()
    best, least = 0, np.inf
    for point, loss in enumerate(losses):
        mean = weights @ loss / total
        by_group = np.bincount(numbers, weights=weights * (loss - mean))
        error = np.sqrt((by_group**2).sum()) / total
        price = weights @ cost[point]
        if mean + NormalDist().inv_cdf(_SURE) * error <= limit and price < least:
            best, least = point, price
    return best
