"""Fits what log-probabilities are worth: from signals and scores of the same answers to a `Confidence`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from llmrouter.errors import UsageError
from llmrouter.routing.confidence import Confidence, confidence_features
from llmrouter.types import TokenSignals

__all__ = ["LEAST_ROWS", "fit_confidence", "read_signals"]

LEAST_ROWS = 50
"""Fewer labels say nothing about as many weights."""


def read_signals(row: Any) -> TokenSignals:
    """Signals from a label row's JSON object `signals`, with the names of `TokenSignals`.

    Raises:
        UsageError: a field is missing, unknown or no number.
    """
    if not isinstance(row, dict):
        raise UsageError(f"`signals` must be an object, not {row!r:.60}")
    optional = ("mean_margin", "mean_entropy")
    needed = ("tokens", "mean_logprob", "min_logprob", "first_logprob")
    unknown = sorted(row.keys() - {*needed, *optional})
    if unknown:
        raise UsageError(f"`signals` has the unknown field {unknown[0]!r}; known: {', '.join((*needed, *optional))}")
    for name in (*needed, *optional):
        given = row.get(name)
        if given is None and name in optional:
            continue
        if not isinstance(given, int | float) or isinstance(given, bool) or not np.isfinite(given):
            raise UsageError(f"`signals.{name}` must be a number, not {given!r:.60}")
    return TokenSignals(**{**row, "tokens": int(row["tokens"])})


def fit_confidence(
    signals: Sequence[TokenSignals],
    scores: Sequence[float],
    *,
    weights: Sequence[float] | None = None,
    penalty: float = 1.0,
) -> Confidence:
    """Logistic regression of scores from 0 to 1 on `confidence_features`; the same rows give the same weights.

    Args:
        weights: how much each row counts; None lets all count the same.
        penalty: the larger, the nearer to one probability for all.

    Raises:
        UsageError: too few rows, all of one score, a score outside 0 to 1, or the extra `train` is missing.
    """
    if len(signals) != len(scores) or (weights is not None and len(weights) != len(scores)):
        raise ValueError("signals, scores and weights must be of one length")
    if len(scores) < LEAST_ROWS:
        raise UsageError(f"{len(scores)} answers with log-probabilities are too few; at least {LEAST_ROWS} are needed")
    score = np.asarray(scores, dtype=np.float64)
    if not (np.isfinite(score).all() and (score >= 0).all() and (score <= 1).all()):
        raise UsageError("scores must be from 0 to 1")
    if not 0 < float(score.mean()) < 1:
        raise UsageError("all answers have the same score; a confidence can only be learned from right and wrong ones")
    try:
        linear = importlib.import_module("sklearn.linear_model")
    except ImportError as error:
        raise UsageError("fitting a confidence needs the extra `train`: pip install 'llmrouter[train]'") from error
    features = np.array([confidence_features(each) for each in signals], dtype=np.float64)
    mean, spread = features.mean(axis=0), features.std(axis=0)
    spread = np.where(spread > 1e-9, spread, np.inf)
    counts = np.ones_like(score) if weights is None else np.asarray(weights, dtype=np.float64)
    # A score of 0.7 is seven parts right and three parts wrong.
    design = np.vstack([(features - mean) / spread] * 2)
    right = np.concatenate([np.ones_like(score), np.zeros_like(score)])
    parts = np.concatenate([counts * score, counts * (1 - score)])
    model = linear.LogisticRegression(C=1.0 / penalty, max_iter=1000, tol=1e-8).fit(design, right, sample_weight=parts)
    slopes = model.coef_[0] / spread
    return Confidence(
        weights=tuple(float(each) for each in slopes),
        intercept=float(model.intercept_[0] - slopes @ mean),
        rows=len(scores),
    )
