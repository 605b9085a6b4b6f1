"""Whether predicted scores are what comes of it: predicted against observed, in bins of equal size."""

from __future__ import annotations

import numpy as np

from llmrouter.offline.labels import Floats
from llmrouter.types import value

__all__ = ["CalibrationBin", "Reliability", "reliability"]

_BINS = 10


@value
class CalibrationBin:
    """Rows with similar predictions."""

    predicted: float
    observed: float
    weight: float
    """Share of all rows."""


@value
class Reliability:
    """How far the predictions for one role can be taken at their word."""

    bins: tuple[CalibrationBin, ...]
    error: float
    """Mean distance between predicted and observed over the bins; 0 is perfect."""
    brier: float
    """Mean squared distance of each prediction from its score; lower is better."""
    constant_brier: float
    """That of always predicting the mean, for comparison."""


def reliability(predicted: Floats, observed: Floats, weights: Floats | None = None) -> Reliability | None:
    """Compare them on the rows that have a score; None where no row has."""
    known = np.isfinite(observed) & np.isfinite(predicted)
    predicted, observed = predicted[known], observed[known]
    weights = np.ones(len(observed)) if weights is None else weights[known]
    if not weights.sum() > 0:
        return None
    weights = weights / weights.sum()
    edges = np.unique(np.quantile(predicted, np.linspace(0.0, 1.0, _BINS + 1)[1:-1]))
    inside = np.searchsorted(edges, predicted, side="right")
    bins = []
    for number in range(len(edges) + 1):
        rows = inside == number
        share = float(weights[rows].sum())
        if share > 0:
            mean_predicted = float(weights[rows] @ predicted[rows] / share)
            bins.append(CalibrationBin(mean_predicted, float(weights[rows] @ observed[rows] / share), share))
    mean = float(weights @ observed)
    return Reliability(
        bins=tuple(bins),
        error=sum(each.weight * abs(each.predicted - each.observed) for each in bins),
        brier=float(weights @ (predicted - observed) ** 2),
        constant_brier=float(weights @ (mean - observed) ** 2),
    )
