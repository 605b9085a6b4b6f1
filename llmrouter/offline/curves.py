"""What a score is worth that decides between a weak and a strong model: the curve of quality by strong calls.

The figures are those of RouteLLM (Ong et al., "RouteLLM: Learning to Route LLMs with Preference Data", arXiv
2406.18665, section 4.1):

- PGR, the performance gap recovered: of the quality between all-weak (0) and all-strong (1), how much is reached. It
  can pass 1, where the weak model is right and the strong one wrong.
- APGR, its average over all shares of strong calls, here the exact area under the curve; a random router has 0.5.
- CPT(x), the call-performance threshold: the smallest share of strong calls at which PGR reaches x.

Rows with equal scores are called strong or weak together or by lot, so the curve is straight between the ends of such a
run. CPT's first crossing flatters a noisy curve, so `Crossing.lasting` stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmrouter.offline.bootstrap import Bootstrap, Interval, Progress, interval_of
from llmrouter.offline.labels import Floats
from llmrouter.types import value

__all__ = ["CPT_LEVELS", "PGR_SHARES", "Crossing", "Curve", "Measures", "Pair", "chance_band", "curve_of", "measure"]

PGR_SHARES = (0.2, 0.5, 0.8)
CPT_LEVELS = (0.5, 0.8, 0.95)


@dataclass(frozen=True, slots=True)
class Pair:
    """Scores of a weak and a strong model on the same rows, each from 0 to 1, and what a call of either costs."""

    weak: Floats
    strong: Floats
    weak_cost: float = 0.0
    strong_cost: float = 1.0

    def __post_init__(self) -> None:
        if self.weak.shape != self.strong.shape or self.weak.ndim != 1:
            raise ValueError("a pair needs two arrays of one length")
        if not (np.isfinite(self.weak).all() and np.isfinite(self.strong).all()):
            raise ValueError("a pair needs a score of both models on every row")

    def oracle(self) -> Floats:
        """The score of a router that knows both answers: what the strong model gains."""
        return self.strong - self.weak


@value
class Crossing:
    """A share of strong calls at which PGR reaches a level."""

    first: float
    """The smallest such share: CPT as RouteLLM defines it."""
    lasting: float
    """The smallest share from which on PGR never falls below the level again; equal to `first` on a smooth curve."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Quality by the share of strong calls, straight between its points."""

    share: Floats
    """Shape (m,): rises from 0 to 1."""
    quality: Floats
    """Shape (m,): weighted mean score at that share."""
    threshold: Floats
    """Shape (m,): rows with at least this score are called strong; infinite at share 0."""
    cost: Floats
    """Shape (m,): mean cost of a call."""

    def pgr(self) -> Floats | None:
        """PGR at each point; None without a gap to recover."""
        gap = self.quality[-1] - self.quality[0]
        return (self.quality - self.quality[0]) / gap if gap > 0 else None

    def thinned(self, points: int = 201) -> Curve:
        """The curve read off at that many evenly spaced shares, for a plot or a file."""
        at = np.linspace(0.0, 1.0, points)
        last = np.clip(np.searchsorted(self.share, at), 0, len(self.share) - 1)
        return Curve(
            share=at,
            quality=np.interp(at, self.share, self.quality),
            threshold=self.threshold[last],
            cost=np.interp(at, self.share, self.cost),
        )


@dataclass(frozen=True, slots=True)
class Measures:
    """The figures of one score on one pair."""

    n: int
    weak_quality: float
    strong_quality: float
    apgr: float | None
    pgr: Mapping[float, float]
    """By share of strong calls; empty without a gap."""
    cpt: Mapping[float, Crossing]
    """By level; empty without a gap."""
    intervals: Mapping[str, Interval]
    """Of `apgr`, `pgr20`…, `cpt50`…, `weak_quality`, `strong_quality` and `gap`; only what could be computed."""
    saving: Mapping[float, float]
    """By level: the fraction of the all-strong cost that is saved at that CPT, at the costs of the pair."""
    reason: str | None = None
    """Why there are no figures, in one sentence."""

    @property
    def gap(self) -> float:
        return self.strong_quality - self.weak_quality

    def crossing(self, percent: int) -> float | None:
        """CPT by its usual name: 50, 80 or 95."""
        found = self.cpt.get(percent / 100)
        return None if found is None else found.first


def curve_of(score: Floats, pair: Pair, weights: Floats | None = None) -> Curve:
    """The whole curve of a score; a higher one means that the strong model is more needed."""
    order, ends = _blocks(score)
    weights = np.ones(len(score)) if weights is None else weights
    share, quality = _running(weights[order][None], pair.weak[order], pair.strong[order], ends)
    spread = pair.strong_cost - pair.weak_cost
    threshold = np.concatenate(([np.inf], score[order][ends]))
    return Curve(share[0], quality[0], threshold, pair.weak_cost + spread * share[0])


def measure(
    score: Floats,
    pair: Pair,
    *,
    weights: Floats | None = None,
    bootstrap: Bootstrap | None = None,
    rows: NDArray[np.bool_] | None = None,
    progress: Progress | None = None,
) -> Measures:
    """The figures of a score, with intervals where a bootstrap is given.

    The intervals say how the figures of this very score would move with other prompts, not with another training.

    Args:
        rows: of these rows only (a slice); every array has an entry for all rows.
    """
    chosen = np.ones(len(score), dtype=bool) if rows is None else rows
    weights = (np.ones(len(score)) if weights is None else weights)[chosen]
    score = score[chosen]
    order, ends = _blocks(score)
    weak, strong = pair.weak[chosen][order], pair.strong[chosen][order]
    if not len(score) or not weights.sum() > 0:
        return Measures(0, np.nan, np.nan, None, {}, {}, {}, {}, reason="there are no rows that count")
    share, quality = _running(weights[order][None], weak, strong, ends)
    found = _figures(share, quality)
    reason = _reason(quality[0])
    intervals: dict[str, Interval] = {}
    if bootstrap is not None:
        replicates: dict[str, list[Floats]] = {}
        for drawn in bootstrap.multiplicities(chosen, progress):
            weighted = (drawn * weights)[:, order]
            for name, values in _figures(*_running(weighted, weak, strong, ends)).items():
                replicates.setdefault(name, []).append(values)
        for name, parts in replicates.items():
            interval = interval_of(np.concatenate(parts))
            if interval is not None and (reason is None or name in _ALWAYS):
                intervals[name] = interval
    return _measures(len(score), {name: float(values[0]) for name, values in found.items()}, intervals, reason, pair)


def chance_band(pair: Pair, *, weights: Floats | None = None, replicates: int = 400, seed: int = 0) -> Interval | None:
    """Where the APGR of a score that knows nothing lies in 95 % of cases, on these very rows."""
    n = len(pair.weak)
    weights = np.ones(n) if weights is None else weights
    rng = np.random.default_rng(seed)
    ends = np.arange(n)
    values = np.empty(replicates)
    for index in range(replicates):
        order = rng.permutation(n)
        running = _running(weights[order][None], pair.weak[order], pair.strong[order], ends)
        values[index] = _figures(*running)["apgr"][0]
    return interval_of(values)


_ALWAYS = frozenset({"weak_quality", "strong_quality", "gap"})


def _blocks(score: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows by falling score, and where each run of equal scores ends in that order."""
    if np.isnan(score).any():
        raise ValueError("a score is not a number")
    order = np.argsort(-score, kind="stable")
    ordered = score[order]
    return order, np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True)) if len(score) else order


def _running(weights: Floats, weak: Floats, strong: Floats, ends: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Share and quality at share 0 and at each end, for each row of weights: two arrays of shape (b, ends + 1)."""
    total = weights.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = _from_zero(np.cumsum(weights, axis=1)[:, ends] / total)
        base = (weights @ weak)[:, None] / total
        quality = base + _from_zero(np.cumsum(weights * (strong - weak), axis=1)[:, ends] / total)
    return share, quality


def _from_zero(values: Floats) -> Floats:
    return np.concatenate((np.zeros((len(values), 1)), values), axis=1)


def _figures(share: Floats, quality: Floats) -> dict[str, Floats]:
    """Every figure of each curve, by name; NaN where there is no gap."""
    weak, strong = quality[:, 0], quality[:, -1]
    gap = strong - weak
    usable = np.where(gap > _LEAST_GAP, gap, np.nan)
    pgr = (quality - weak[:, None]) / usable[:, None]
    area = ((share[:, 1:] - share[:, :-1]) * (pgr[:, 1:] + pgr[:, :-1])).sum(axis=1) / 2
    found = {"weak_quality": weak, "strong_quality": strong, "gap": gap, "apgr": area}
    for at in PGR_SHARES:
        found[f"pgr{round(100 * at)}"] = _read_off(share, pgr, at)
    for level in CPT_LEVELS:
        found[f"cpt{round(100 * level)}"] = _crossing(share, pgr, _first(pgr, level), level)
        found[f"lasting{round(100 * level)}"] = _crossing(share, pgr, _lasting(pgr, level), level)
    return found


_LEAST_GAP = 1e-9
"""Sums of scores differ by rounding; a gap below this is none."""


def _read_off(share: Floats, pgr: Floats, at: float) -> Floats:
    """PGR of each curve at one share."""
    return _between(pgr, share, np.argmax(share >= at - 1e-12, axis=1), at)


def _crossing(share: Floats, pgr: Floats, index: NDArray[np.intp], level: float) -> Floats:
    """The share at which each curve reaches a level, on the way to its point `index`."""
    return np.where(np.isnan(pgr[:, -1]), np.nan, _between(share, pgr, index, level))


def _between(wanted: Floats, given: Floats, index: NDArray[np.intp], at: float) -> Floats:
    """`wanted` where `given` is `at`, on the straight line that ends at the point `index` of each curve."""
    rows = np.arange(len(given))
    before = np.maximum(index - 1, 0)
    rise = given[rows, index] - given[rows, before]
    step = np.where(rise > 0, (at - given[rows, before]) / np.where(rise > 0, rise, 1.0), 1.0)
    return np.asarray(wanted[rows, before] + np.clip(step, 0.0, 1.0) * (wanted[rows, index] - wanted[rows, before]))


def _first(pgr: Floats, level: float) -> NDArray[np.intp]:
    return np.asarray(np.argmax(pgr >= level, axis=1), dtype=np.intp)


def _lasting(pgr: Floats, level: float) -> NDArray[np.intp]:
    """The point after the last one that lies below the level; the end of a curve lies at 1."""
    below = pgr < level
    after = pgr.shape[1] - np.argmax(below[:, ::-1], axis=1)
    index = np.where(below.any(axis=1), after, 0)
    return np.asarray(np.minimum(index, pgr.shape[1] - 1), dtype=np.intp)


def _reason(quality: Floats) -> str | None:
    weak, strong = float(quality[0]), float(quality[-1])
    if strong - weak > _LEAST_GAP:
        return None
    return (
        f"the strong model is not better here ({strong:.3f} against {weak:.3f}), so there is no gap to recover; "
        "all calls can go to the weak one"
    )


def _measures(
    n: int, found: Mapping[str, float], intervals: Mapping[str, Interval], reason: str | None, pair: Pair
) -> Measures:
    cpt: dict[float, Crossing] = {}
    pgr: dict[float, float] = {}
    saving: dict[float, float] = {}
    if reason is None:
        pgr = {at: found[f"pgr{round(100 * at)}"] for at in PGR_SHARES}
        for level in CPT_LEVELS:
            name = f"{round(100 * level)}"
            cpt[level] = Crossing(found[f"cpt{name}"], found[f"lasting{name}"])
        if pair.strong_cost > 0:
            spread = 1.0 - pair.weak_cost / pair.strong_cost
            saving = {level: spread * (1.0 - crossing.first) for level, crossing in cpt.items()}
    return Measures(
        n=n,
        weak_quality=found["weak_quality"],
        strong_quality=found["strong_quality"],
        apgr=found["apgr"] if reason is None else None,
        pgr=pgr,
        cpt=cpt,
        intervals={name: interval for name, interval in intervals.items() if not name.startswith("lasting")},
        saving=saving,
        reason=reason,
    )
