"""Logistic regression with a penalty, for tables of a few hundred weights; deterministic and without libraries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmrouter.offline.labels import Floats

__all__ = ["KindTable", "fit_kind_table", "fit_linear", "predict_kind_table"]

_ROUNDS = 25
_CLOSE = 1e-7
_EDGE = 1e-3


class KindTable:
    """Linear scores of the same features, one set of weights for each kind and one for any other."""

    __slots__ = ("means", "weights")

    def __init__(self, means: Floats, weights: Floats) -> None:
        self.means = means
        """Shape (features,): what stands for a feature that is not known."""
        self.weights = weights
        """Shape (heads, kinds + 1, features + 1); the intercept comes last."""


def fit_kind_table(
    features: Floats, kinds: NDArray[np.intp], kind_count: int, targets: Floats, weights: Floats, *, penalty: float
) -> KindTable:
    """Fit one head for each column of `targets`; what kinds have in common is learned from all of them.

    Args:
        features: shape (n, features); NaN is not known.
        kinds: position of each row's kind.
        targets: shape (n, heads): from 0 to 1, NaN where not known.
        penalty: of the squared weights of standardised features, against the weighted log loss.
    """
    known = ~np.isnan(features)
    mass = weights[:, None] * known
    total = mass.sum(axis=0)
    filled = np.where(known, features, 0.0)
    means = np.divide((mass * filled).sum(axis=0), total, out=np.zeros(features.shape[1]), where=total > 0)
    centred = np.where(known, features - means, 0.0)
    scale = np.sqrt((weights[:, None] * centred**2).sum(axis=0) / max(weights.sum(), 1e-12))
    scale = np.where(scale > 1e-9, scale, np.inf)
    design = np.column_stack([centred / scale, np.ones(len(features))])
    heads = []
    for column in targets.T:
        rows = ~np.isnan(column) & (weights > 0)
        parts = [
            _Part(design[rows & (kinds == kind)], column[rows & (kinds == kind)], weights[rows & (kinds == kind)])
            for kind in range(kind_count)
        ]
        heads.append(_fit_parts(parts, penalty))
    table = np.stack(heads)
    slopes = table[:, :, :-1] / scale
    return KindTable(means, np.concatenate([slopes, table[:, :, -1:] - slopes @ means[:, None]], axis=2))


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of one kind; the last column of the design is ones."""

    design: Floats
    target: Floats
    weights: Floats


def predict_kind_table(table: KindTable, features: Floats, kinds: NDArray[np.intp]) -> Floats:
    """Shape (n, heads): probabilities."""
    filled = np.where(np.isnan(features), table.means, features)
    found = np.empty((len(features), len(table.weights)))
    for kind in np.unique(kinds).tolist():
        rows = kinds == kind
        found[rows] = filled[rows] @ table.weights[:, kind, :-1].T + table.weights[:, kind, -1]
    return _expit(found)


def fit_linear(basis: Floats, targets: Floats, weights: Floats, *, penalty: float) -> Floats:
    """Least squares of each column of `targets`; shape (targets, basis). The first column of `basis` is all ones."""
    total = max(weights.sum(), 1e-12)
    means = weights @ basis / total
    scale = np.sqrt(weights @ (basis - means) ** 2 / total)
    scale[0] = np.inf
    scale = np.where(scale > 1e-9, scale, np.inf)
    design = (basis - means) / scale
    middle = weights @ targets / total
    gram = (design * weights[:, None]).T @ design
    gram[np.diag_indices_from(gram)] += penalty
    slopes = np.linalg.solve(gram, (design * weights[:, None]).T @ (targets - middle)) / scale[:, None]
    slopes[0] += middle - means @ slopes
    return np.ascontiguousarray(slopes.T)


def _fit_parts(parts: Sequence[_Part], penalty: float) -> Floats:
    """Newton's method for weights in common and each kind's own on top of them; shape (kinds + 1, features + 1).

    All are penalised but the intercept in common. The curvature is put together from one block a kind, since a row
    touches only its own kind's weights and those in common.
    """
    width, count = parts[0].design.shape[1], len(parts)
    shared = np.zeros(width)
    own = np.zeros((count, width))
    total = sum(part.weights.sum() for part in parts)
    if total <= 0:
        return np.zeros((count + 1, width))
    base = min(max(sum(float(part.weights @ part.target) for part in parts) / total, _EDGE), 1.0 - _EDGE)
    shared[-1] = np.log(base / (1.0 - base))
    ridge = np.full((count + 1, width), penalty)
    ridge[0, -1] = 1e-6
    for _ in range(_ROUNDS):
        gradient = ridge * np.vstack([shared[None], own])
        hessian = np.zeros((count + 1, width, count + 1, width))
        for number, part in enumerate(parts):
            probability = _expit(part.design @ (shared + own[number]))
            slope = part.design.T @ (part.weights * (probability - part.target))
            curvature = part.weights * np.maximum(probability * (1.0 - probability), 1e-6)
            block = (part.design * curvature[:, None]).T @ part.design
            gradient[0] += slope
            gradient[number + 1] += slope
            hessian[0, :, 0] += block
            hessian[0, :, number + 1] = block
            hessian[number + 1, :, 0] = block
            hessian[number + 1, :, number + 1] = block
        square = hessian.reshape((count + 1) * width, -1)
        square[np.diag_indices_from(square)] += ridge.ravel()
        step = np.linalg.solve(square, gradient.ravel()).reshape(count + 1, width)
        shared -= step[0]
        own -= step[1:]
        if np.abs(step).max() < _CLOSE:
            break
    return np.vstack([own + shared, shared[None]])


def _expit(scores: Floats) -> Floats:
    found: Floats = 1.0 / (1.0 + np.exp(-np.clip(scores, -40.0, 40.0)))
    return found
