"""From scores to expected qualities: a monotone curve a role, read off evenly spaced points.

With few labels the curve is a straight line or a logistic one (Platt), which two numbers describe; with many it is
isotonic, smoothed by its own pooling into blocks, which follows whatever shape the labels have.
"""

from __future__ import annotations

import numpy as np

from llmrouter.offline.labels import Floats

__all__ = ["POINTS", "fit_curve", "read_curve"]

POINTS = 65
"""Points of a curve."""
_ISOTONIC_FROM = 1500
"""Labels from which on a curve is isotonic."""
_LEAST_BLOCK = 50
"""Labels that a step of an isotonic curve stands on, at least."""
_EDGE = 1e-3


def fit_curve(scores: Floats, quality: Floats) -> Floats:
    """The curve of one role: where it begins, where it ends, and its value at `POINTS` places from one to the other.

    Args:
        scores: predicted, out of fold.
        quality: what was scored, from 0 to 1; rows with NaN do not count.
    """
    known = np.isfinite(quality)
    scores, quality = scores[known], quality[known]
    low, high = (float(scores.min()), float(scores.max())) if len(scores) else (0.0, 1.0)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    places = np.linspace(low, high, POINTS)
    if len(scores) >= _ISOTONIC_FROM:
        values = _isotonic(scores, quality, places)
    elif len(scores):
        values = _platt(scores, quality, places)
    else:
        values = np.full(POINTS, 0.5)
    return np.concatenate(([low, high], np.clip(values, _EDGE, 1.0 - _EDGE)))


def read_curve(curve: Floats, scores: Floats) -> Floats:
    """What a curve makes of scores; the same as the serving code does one by one."""
    return np.asarray(np.interp(scores, np.linspace(curve[0], curve[1], len(curve) - 2), curve[2:]))


def _platt(scores: Floats, quality: Floats, places: Floats) -> Floats:
    """A logistic curve with a slight pull towards the mean, by Newton's method; it never falls."""
    spread = max(float(scores.std()), 1e-9)
    centre = float(scores.mean())
    inputs = np.column_stack([(scores - centre) / spread, np.ones(len(scores))])
    weights = np.zeros(2)
    penalty = np.diag([1.0, 1e-6])
    for _ in range(50):
        expected = _expit(inputs @ weights)
        slope = inputs.T @ (expected - quality) + penalty @ weights
        curvature = (inputs * (expected * (1.0 - expected))[:, None]).T @ inputs + penalty + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature, slope)
        weights = np.clip(weights - step, -30.0, 30.0)
        if float(np.abs(step).max()) < 1e-10:
            break
    return _expit(max(weights[0], 0.0) * (places - centre) / spread + weights[1])


def _isotonic(scores: Floats, quality: Floats, places: Floats) -> Floats:
    """Blocks of rising means (pool adjacent violators), joined by straight lines between their middles."""
    order = np.argsort(scores, kind="stable")
    parts = np.array_split(order, max(len(order) // _LEAST_BLOCK, 1))
    blocks: list[tuple[float, float, float]] = []
    for part in parts:
        block = (float(len(part)), float(scores[part].sum()), float(quality[part].sum()))
        while blocks and blocks[-1][2] / blocks[-1][0] >= block[2] / block[0]:
            last = blocks.pop()
            block = (last[0] + block[0], last[1] + block[1], last[2] + block[2])
        blocks.append(block)
    table = np.array(blocks)
    return np.asarray(np.interp(places, table[:, 1] / table[:, 0], table[:, 2] / table[:, 0]))


def _expit(values: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(values, -40.0, 40.0))))
