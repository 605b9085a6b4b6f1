"""How far a policy may save and still keep its promise on quality, shown on labels.

The policies stand in one sequence from the reference itself to the cheapest. Learn-then-Test (Angelopoulos et al.,
arXiv 2110.01052) with a fixed sequence tests them in that order, each at the full `delta`, and stops at the first that
is not shown to lose less than `eps`. The sequence, the policies and their thresholds must have been chosen without the
rows given here. The probability that the chosen policy really loses `eps` or more is then at most `delta`, over draws
of the rows: the first such policy of the sequence would have to pass its test. Rows must be independent draws; of
rows that are rewordings of one question, `weights.one_per_group` keeps one.

Weights of rows (a mix of sources, inverse probabilities of having been labelled) keep that guarantee for the weighted
mean, in one of two ways. Where losses are -1, 0 and 1 and enough rows remain, each row is kept with a probability
proportional to its weight, which makes the rows plain draws from the mix, and the exact test applies. Otherwise the
bets are weighted. Which of the two depends on the weights and the kind of scores alone, never on how the policies did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from llmrouter.offline.bootstrap import Progress
from llmrouter.offline.labels import Floats
from llmrouter.offline.paired_test import BettingTest, ExactTest, PairedTest, is_three_valued
from llmrouter.types import value

__all__ = ["BrokenPromise", "Certificate", "Method", "SliceLoss", "broken_promise_estimate", "certify", "naive"]

Method = Literal["auto", "exact", "betting"]


@value
class SliceLoss:
    """What the certified policy does on one slice."""

    name: str
    n: int
    loss: float
    """Observed mean."""
    p_value: float


_MOST_LABELS = 1e9
"""More than anybody will have; what needs more cannot be shown by labels."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The cheapest policy of a sequence that is shown to keep its promise."""

    eps: float
    """The promise: mean loss in scores, 0.01 is one point."""
    delta: float
    n: int
    """Rows that were looked at."""
    used: int
    """Rows that remained for the tests after the weights were made up for."""
    method: Literal["exact", "betting"]
    index: int
    """Position in the sequence; 0, the reference itself, where nothing else could be shown."""
    loss: float
    """Observed mean loss there, which may be below 0."""
    p_value: float
    """Of its test, the largest of its slices' where there are some; 0 for the reference itself."""
    naive_index: int
    """What one would choose who takes observed losses for true ones; it breaks the promise about every second time."""
    labels_needed: int | None
    """Rows with which half of the naive choice's saving would probably be certified: 0 where it is; None where more
    labels like these would not do it."""
    reason: str
    """Why the sequence ends here, in one sentence."""
    slices: tuple[SliceLoss, ...] = ()


def certify(
    losses: Floats,
    eps: float,
    delta: float,
    *,
    weights: Floats | None = None,
    savings: Floats | None = None,
    slices: Sequence[str] | None = None,
    method: Method = "auto",
    seed: int = 0,
) -> Certificate:
    """The furthest policy whose mean loss is below `eps` with confidence 1 - `delta`.

    Args:
        losses: shape (policies, n), each from -1 to 1: the reference's score minus the policy's. The first policy is
            the reference itself, with losses of 0, and needs no test.
        weights: shape (n,): what each row counts for; None for all alike.
        savings: shape (policies,): what each policy saves, to judge how many labels are needed; None takes positions.
        slices: name of each row's slice. The promise must then hold for every slice as well as overall: a policy passes
            where all of its tests do, which needs no correction for their number, since one policy serves them all.

    Raises:
        ValueError: the arrays do not fit, a loss is out of range, or the first policy is not the reference.
    """
    _check(losses, eps, delta)
    how, rows, weights = _plan(losses, weights, method, seed)
    parts = _parts(rows, slices)
    tests = [_test(how, int(part.sum()), eps, delta, _of(weights, part), seed) for _, part in parts]
    passed = np.ones(len(losses), dtype=bool)
    for (_, part), test in zip(parts, tests, strict=True):
        reach = _furthest(passed) + 1
        passed[1:reach] &= test.passes(losses[1:reach, part])
        passed[reach:] = False
    index = _furthest(passed)
    found = [
        SliceLoss(
            name,
            int(part.sum()),
            _mean(losses[index, part], _of(weights, part)),
            test.p_value(losses[index, part]) if index else 0.0,
        )
        for (name, part), test in zip(parts, tests, strict=True)
    ]
    savings = np.arange(len(losses), dtype=np.float64) if savings is None else savings
    choice = naive(losses[:, rows], eps, savings=savings, weights=_of(weights, rows))
    goal = _goal(savings, choice)
    needed = 0
    if index < goal:
        needs = [
            _labels(eps - losses[1 : goal + 1, part], _of(weights, part), test, eps, delta)
            * losses.shape[1]
            / part.sum()
            for (_, part), test in zip(parts, tests, strict=True)
        ]
        needed = max(*needs, 1.1 * losses.shape[1])
    return Certificate(
        eps=eps,
        delta=delta,
        n=losses.shape[1],
        used=int(rows.sum()),
        method=how,
        index=index,
        loss=found[0].loss,
        p_value=max(each.p_value for each in found),
        naive_index=choice,
        labels_needed=math.ceil(needed) if choice and needed <= _MOST_LABELS else None,
        reason=_reason(losses[:, rows], _of(weights, rows), eps, index, choice),
        slices=tuple(found[1:]),
    )


def naive(losses: Floats, eps: float, *, savings: Floats | None = None, weights: Floats | None = None) -> int:
    """The policy that saves most of those whose observed mean loss is at most `eps`: no promise, for comparison."""
    savings = np.arange(len(losses), dtype=np.float64) if savings is None else savings
    observed = np.average(losses, axis=1, weights=weights)
    return int(np.argmax(np.where(observed <= eps, savings, -np.inf)))


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """How certificates fare when the experiment is repeated, with all rows taken for the truth."""

    draws: int
    n: int
    """Rows of each draw."""
    broken: float
    """Share of draws whose certified policy loses more than the promise on all rows."""
    naive_broken: float
    saving: float
    """Mean saving of the certified policies."""
    naive_saving: float

    @property
    def kept(self) -> float | None:
        """Part of the naive choice's saving that the certificate keeps; None where that saves nothing."""
        return self.saving / self.naive_saving if self.naive_saving > 0 else None


def broken_promise_estimate(
    losses: Floats,
    eps: float,
    delta: float,
    *,
    n: int | None = None,
    weights: Floats | None = None,
    savings: Floats | None = None,
    method: Method = "auto",
    draws: int = 200,
    replace: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> BrokenPromise:
    """Certify on many samples of the rows, and count how often the promise is broken on all of them.

    Args:
        losses, weights, savings, method: as `certify` takes them.
        n: rows of each sample; None for as many as there are.
        replace: whether a row may be drawn again, as it may when the rows stand for all traffic. Without, a sample that
            is a large part of the rows breaks the promise more seldom than it would out there.
    """
    _check(losses, eps, delta)
    count = losses.shape[1] if n is None else n
    if count < 1 or (not replace and count > losses.shape[1]):
        raise ValueError(f"{count} rows cannot be drawn from {losses.shape[1]}")
    savings = np.arange(len(losses), dtype=np.float64) if savings is None else savings
    how, rows, left = _plan(losses, weights, method, seed)
    truth = np.average(losses, axis=1, weights=weights)
    rng = np.random.default_rng(seed)
    chances = None
    if weights is not None and left is None:
        # Rows that remain after their weights are made up for are plain draws from the mix.
        count = max(round(count * rows.mean()), 1)
        chances = weights / weights.sum()
    exact = ExactTest(count, eps, delta) if how == "exact" else None
    certified, chosen = np.zeros(draws, dtype=np.intp), np.zeros(draws, dtype=np.intp)
    for draw in range(draws):
        drawn = rng.choice(losses.shape[1], count, replace=replace, p=chances)
        sample, weighing = losses[:, drawn], _of(left, drawn)
        test = exact or _test(how, count, eps, delta, weighing, seed)
        certified[draw] = _furthest(np.append([True], test.passes(sample[1:])))
        chosen[draw] = naive(sample, eps, savings=savings, weights=weighing)
        if progress is not None:
            progress(draw + 1, draws)
    return BrokenPromise(
        draws=draws,
        n=count,
        broken=float((truth[certified] > eps).mean()),
        naive_broken=float((truth[chosen] > eps).mean()),
        saving=float(savings[certified].mean()),
        naive_saving=float(savings[chosen].mean()),
    )


_WORTH_BETTING = 0.6
"""Part of the rows' worth that must be left after making plain draws of them; below, weighted bets go further. Measured
on MMLU with weights of many shapes; standard errors alone, 1.66 + 0.84 against 2.45 + 0.84, would say 0.58."""

_POWER = NormalDist().inv_cdf(0.8)


def _check(losses: Floats, eps: float, delta: float) -> None:
    if losses.ndim != 2 or losses.size == 0:
        raise ValueError("losses need policies and rows")
    if not (np.isfinite(losses).all() and losses.min() >= -1.0 and losses.max() <= 1.0):
        raise ValueError("a loss does not lie between -1 and 1")
    if losses[0].any():
        raise ValueError("the first policy is not the reference: it has losses other than 0")
    if not (0.0 < eps < 1.0 and 0.0 < delta < 0.5):
        raise ValueError("the promise must lie between 0 and 1, and delta between 0 and 0.5")


def _plan(
    losses: Floats, weights: Floats | None, method: Method, seed: int
) -> tuple[Literal["exact", "betting"], NDArray[np.bool_], Floats | None]:
    """The test, the rows it sees, and their weights where these still count."""
    three = is_three_valued(losses)
    if method == "exact" and not three:
        raise ValueError("the exact test needs losses of -1, 0 and 1")
    rows = np.ones(losses.shape[1], dtype=bool) if weights is None else weights > 0
    if not rows.any():
        raise ValueError("no row counts")
    betting = method == "betting" or not three
    if weights is None or np.ptp(weights[rows]) == 0:
        return ("betting" if betting else "exact"), rows, None
    counting = weights[rows]
    kept = counting.mean() / counting.max()
    worth = counting.mean() ** 2 / np.mean(counting**2)
    if betting or (method == "auto" and kept < _WORTH_BETTING * worth):
        return "betting", rows, weights
    drawn = np.random.default_rng(seed).random(len(weights)) < weights / counting.max()
    return "exact", rows & drawn, None


def _parts(rows: NDArray[np.bool_], slices: Sequence[str] | None) -> list[tuple[str, NDArray[np.bool_]]]:
    """The whole and each slice of it, by name."""
    parts = [("", rows)]
    if slices is not None:
        of = np.array(slices, dtype=object)
        parts += [(name, rows & (of == name)) for name in sorted(set(of[rows].tolist()))]
    return parts


def _test(
    how: Literal["exact", "betting"], n: int, eps: float, delta: float, weights: Floats | None, seed: int
) -> PairedTest:
    return ExactTest(n, eps, delta) if how == "exact" else BettingTest(eps, delta, weights, seed)


def _of(weights: Floats | None, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Floats | None:
    return None if weights is None else weights[rows]


def _mean(losses: Floats, weights: Floats | None) -> float:
    return float(np.average(losses, weights=weights))


def _furthest(passed: NDArray[np.bool_]) -> int:
    """The last position before the first that did not pass."""
    return len(passed) - 1 if passed.all() else int(np.argmin(passed)) - 1


def _goal(savings: Floats, choice: int) -> int:
    """The first policy that saves at least half of what the naive choice does."""
    return int(np.argmax(savings >= savings[choice] / 2.0)) if choice else 0


def _labels(gains: Floats, weights: Floats | None, test: PairedTest, eps: float, delta: float) -> float:
    """Rows with which four of five tests of the hardest of these policies pass, if the observed gains are true ones.

    By the normal approximation: the mean must lie `deviations` standard errors below the promise, and 0.84 more for the
    power. Even a policy that never loses needs the rows that exclude a loss of `eps` in rows that were not seen.
    """
    weighted = gains if weights is None else gains * (weights / weights.mean())
    mean = weighted.mean(axis=1)
    least = math.log(delta) / math.log1p(-eps)
    if not len(mean) or mean.min() <= 0:
        return math.inf
    return max(least, float(np.max(weighted.var(axis=1) * ((test.deviations + _POWER) / mean) ** 2)))


def _reason(losses: Floats, weights: Floats | None, eps: float, index: int, choice: int) -> str:
    if index == len(losses) - 1:
        return "every policy of the sequence keeps the promise"
    observed = 100.0 * float(np.average(losses[index + 1], weights=weights))
    stopped = f"the next policy, number {index + 1}, loses {observed:.2f} points on these labels"
    if not choice:
        return f"{stopped}; no policy is seen to lose less than {100.0 * eps:g}"
    if observed > 100.0 * eps:
        return f"{stopped}, more than the promised {100.0 * eps:g}"
    return f"{stopped}, too near to the promised {100.0 * eps:g} for so many labels to tell"
