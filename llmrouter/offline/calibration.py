"""From scores to expected qualities, by monotone curves that are read off evenly spaced points.

The reference (the best role) has a curve from its score to its quality. Every other role has one from its *distance*
to the reference's score to what the reference gains over it; its quality is the reference's less that. So the order of
rows by predicted gain, which is what routing goes by, is the order of the scores.

With few labels a curve is straight, by least squares; with many it is isotonic, joined between blocks of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmrouter.offline.labels import Floats
from llmrouter.offline.roles import MAIN_ROLES

__all__ = ["POINTS", "calibrate", "fit_curves", "reference_of"]

POINTS = 65
"""Points of a curve."""
_ISOTONIC_FROM = 4000
"""Labels from which on a curve is isotonic."""
_BLOCKS = 30
"""Blocks of equally many labels that an isotonic curve is made of, before those that fall are joined."""
_PULL = 3.0
"""Rows' worth of evidence for a straight line of no slope."""
_TILT = 1e-4
"""Least rise of a curve over its whole length, so that no two scores are thrown together."""


def reference_of(roles: Sequence[str]) -> int:
    """Position of the role that others are compared with: the best of the main ones."""
    return max((MAIN_ROLES.index(role), at) for at, role in enumerate(roles) if role in MAIN_ROLES)[1]


def fit_curves(raw: Floats, targets: Floats, reference: int) -> Floats:
    """A curve for each role: where it begins, where it ends, and its value at `POINTS` places from one to the other.

    Args:
        raw: shape (n, roles): scores, out of fold.
        targets: shape (n, roles): what was scored, from 0 to 1; NaN does not count.
    """
    scores, quality = _apart(raw, reference), _apart(targets, reference)
    return np.stack([_curve(scores[:, at], quality[:, at]) for at in range(raw.shape[1])])


def calibrate(curves: Floats, raw: Floats, reference: int) -> Floats:
    """Qualities of many rows; the predictor computes the same one by one."""
    read = np.empty(raw.shape)
    for at, (curve, scores) in enumerate(zip(curves, _apart(raw, reference).T, strict=True)):
        read[:, at] = np.interp(scores, np.linspace(curve[0], curve[1], len(curve) - 2), curve[2:])
    best = read[:, reference]
    quality = best[:, None] - read
    quality[:, reference] = best
    return np.clip(quality, 0.0, 1.0)


def _apart(values: Floats, reference: int) -> Floats:
    """The reference's column as it is, every other one as its distance from that."""
    apart = values[:, reference, None] - values
    apart[:, reference] = values[:, reference]
    return apart


def _curve(scores: Floats, quality: Floats) -> Floats:
    known = np.isfinite(quality)
    scores, quality = scores[known], quality[known]
    low, high = (float(scores.min()), float(scores.max())) if len(scores) else (0.0, 1.0)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    places = np.linspace(low, high, POINTS)
    if not len(scores):
        values = np.zeros(POINTS)
    elif len(scores) >= _ISOTONIC_FROM:
        values = _isotonic(scores, quality, places)
    else:
        values = _straight(scores, quality, places)
    return np.concatenate(([low, high], values + np.linspace(-_TILT / 2, _TILT / 2, POINTS)))


def _straight(scores: Floats, quality: Floats, places: Floats) -> Floats:
    """A line that never falls."""
    middle = scores - scores.mean()
    spread = float(middle @ middle)
    pull = _PULL * spread / len(scores)
    slope = max(float(middle @ quality) / (spread + pull), 0.0) if spread > 0 else 0.0
    return np.asarray(quality.mean() + slope * (places - scores.mean()))


def _isotonic(scores: Floats, quality: Floats, places: Floats) -> Floats:
    """Blocks of rising means (pool adjacent violators), joined by straight lines between their middles."""
    order = np.argsort(scores, kind="stable")
    parts = np.array_split(order, _BLOCKS)
    blocks: list[tuple[float, float, float]] = []
    for part in parts:
        block = (float(len(part)), float(scores[part].sum()), float(quality[part].sum()))
        while blocks and blocks[-1][2] / blocks[-1][0] >= block[2] / block[0]:
            last = blocks.pop()
            block = (last[0] + block[0], last[1] + block[1], last[2] + block[2])
        blocks.append(block)
    table = np.array(blocks)
    return np.asarray(np.interp(places, table[:, 1] / table[:, 0], table[:, 2] / table[:, 0]))
