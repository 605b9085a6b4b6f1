"""Tests that a mean loss lies below a bound, valid at every number of rows.

A loss is the reference's score minus the policy's on one row, so it lies between -1 and 1 and its mean is what a policy
loses. Both tests ask whether the mean is at least `eps`; a p-value of at most `delta` refutes that, and does so wrongly
with probability `delta` at most, whatever the distribution. Rows must be independent draws.

- `ExactTest`, for losses that are all -1, 0 or 1 (scores of right and wrong): the unconditional exact test of paired
  proportions, ordered by the score statistic of Tango ("Equivalence test and confidence interval for the difference in
  proportions for the paired-sample design", Statistics in Medicine 1998), its size taken at the worst share of
  discordant rows (Hsueh, Liu and Chen, Biometrics 2001). It needs about 1.66 standard errors at 5 %.
- `BettingTest`, for every other loss and for weighted rows: the capital of a gambler who bets against the claim, by the
  predictable plug-in bets of Waudby-Smith and Ramdas ("Estimating means of bounded random variables by betting", JRSS-B
  2024). It needs about 2.4 standard errors, without any assumption on the losses but their bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llmrouter.errors import UsageError
from llmrouter.offline.labels import Floats

__all__ = ["BettingTest", "ExactTest", "PairedTest", "is_three_valued"]


class PairedTest(Protocol):
    """Whether a mean loss is shown to lie below a bound."""

    @property
    def deviations(self) -> float:
        """Standard errors below the bound at which about half of all tests pass, for plans of how many labels."""

    def passes(self, losses: Floats) -> NDArray[np.bool_]:
        """For losses of shape (points, n), which points are shown to lose less than the bound on average."""

    def p_value(self, losses: Floats) -> float:
        """For losses of shape (n,), the smallest `delta` at which it passes."""


def is_three_valued(losses: Floats) -> bool:
    """Whether every loss is -1, 0 or 1."""
    return bool(np.isin(losses, (-1.0, 0.0, 1.0)).all())


class ExactTest:
    """The exact test for losses of -1, 0 and 1; made once for a number of rows, then cheap."""

    def __init__(self, n: int, eps: float, delta: float) -> None:
        if n < 1:
            raise ValueError("a test needs at least one row")
        self._n = n
        self._eps = eps
        self._limit = self._critical(delta)

    @property
    def deviations(self) -> float:
        return -self._limit

    def passes(self, losses: Floats) -> NDArray[np.bool_]:
        return self.passes_counts((losses == 1.0).sum(axis=-1), (losses == -1.0).sum(axis=-1))

    def passes_counts(self, lost: Floats | NDArray[np.intp], won: Floats | NDArray[np.intp]) -> NDArray[np.bool_]:
        """Like `passes`, from the numbers of rows with a loss of 1 and of -1."""
        return np.asarray(self._statistic(np.asarray(lost, float), np.asarray(won, float)) <= self._limit)

    def p_value(self, losses: Floats) -> float:
        lost, won = np.array([(losses == 1.0).sum()], float), np.array([(losses == -1.0).sum()], float)
        return min(self._size(float(self._statistic(lost, won)[0])), 1.0)

    def _statistic(self, lost: Floats, won: Floats) -> Floats:
        """Standard errors between the mean and `eps`, at the likeliest distribution with a mean of `eps`."""
        n, eps = self._n, self._eps
        slope = (lost + won) * (1.0 - eps) - 2.0 * eps * (n - lost)
        winning = (slope + np.sqrt(slope**2 + 8.0 * n * won * eps * (1.0 - eps))) / (4.0 * n)
        return np.asarray((lost - won - n * eps) / np.sqrt(n * (2.0 * winning + eps * (1.0 - eps))))

    def _critical(self, delta: float) -> float:
        """The largest value of the statistic at which the test's size is at most delta, to 2e-3 from below."""
        low = high = NormalDist().inv_cdf(delta)
        while self._size(low, finer=1.0) > delta:
            low, high = low - 0.1, low
        while high - low > 1e-3:
            middle = (low + high) / 2.0
            low, high = (middle, high) if self._size(middle, finer=1.0) <= delta else (low, middle)
        while self._size(low) > delta:
            low -= 1e-3
        return low

    def _size(self, limit: float, finer: float = 4.0) -> float:
        """The largest probability, over all distributions with a mean of at least `eps`, to be at or below the limit.

        Fewer lost rows lower the statistic, so the largest is found where the mean is `eps`; there it is sought over
        the share of won rows, on a grid that is so many times finer than the standard error of that share.
        """
        bdtr = _special().bdtr
        n, eps = self._n, self._eps
        most = self._most_lost(limit)
        widest = math.asin(math.sqrt((1.0 - eps) / 2.0))
        largest = 0.0
        for winning in np.sin(np.linspace(0.0, widest, max(round(finer * math.sqrt(n) * widest), 16))) ** 2:
            won, chance = _likely(n, float(winning))
            lost = most[won]
            below = bdtr(np.maximum(lost, 0), n - won, min((winning + eps) / (1.0 - winning), 1.0))
            largest = max(largest, float(chance @ np.where(lost >= 0, below, 0.0)))
        return largest

    def _most_lost(self, limit: float) -> NDArray[np.intp]:
        """For each number of won rows, the most lost rows that still lie at or below the limit; -1 for none."""
        won = np.arange(self._n + 1)
        low, high = np.full(self._n + 1, -1), self._n - won
        while (low < high).any():
            middle = (low + high + 1) // 2
            inside = self._statistic(middle.astype(float), won.astype(float)) <= limit + 1e-12
            low, high = np.where(inside, middle, low), np.where(inside, high, middle - 1)
        return low


@dataclass(frozen=True, slots=True)
class BettingTest:
    """The betting test for losses between -1 and 1.

    With weights it asks whether the weighted mean is at least `eps`: the sign of the mean of weight times (loss - eps)
    decides that, which needs no estimate of the weights' sum and is bounded by the largest weight. The rows' order is
    drawn once, independently of the losses.
    """

    eps: float
    delta: float
    weights: Floats | None = None
    """Shape (n,); None weighs all alike."""
    seed: int = 0
    deviations: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "deviations", math.sqrt(2.0 * math.log(1.0 / self.delta)))

    def passes(self, losses: Floats) -> NDArray[np.bool_]:
        """Points behind the first one that fails are not looked at and do not pass."""
        found = np.zeros(len(losses), dtype=bool)
        for begin in range(0, len(losses), _POINTS_AT_ONCE):
            part = self._log_capital(losses[begin : begin + _POINTS_AT_ONCE]) >= math.log(1.0 / self.delta)
            found[begin : begin + len(part)] = part
            if not part.all():
                break
        return found

    def p_value(self, losses: Floats) -> float:
        return float(min(1.0, math.exp(-float(self._log_capital(losses[None])[0]))))

    def _log_capital(self, losses: Floats) -> Floats:
        """The largest capital that each point's bets reach, as a logarithm."""
        n = losses.shape[1]
        order = np.random.default_rng(self.seed).permutation(n)
        gains = self.eps - losses[:, order]
        scaled = np.ones(n) if self.weights is None else self.weights[order] / self.weights.max()
        gains = gains * scaled
        # Half the range, squared: where the variance's estimate starts, as if one such row had been seen.
        spread = float(np.mean(scaled**2))
        count = np.arange(1, n + 1)
        mean = np.cumsum(gains, axis=1) / (count + 1)
        variance = (spread + np.cumsum((gains - mean) ** 2, axis=1)) / (count + 1)
        before = np.concatenate((np.full((len(gains), 1), spread), variance[:, :-1]), axis=1)
        bets = np.minimum(np.sqrt(2.0 * math.log(1.0 / self.delta) / (n * before)), _BOLDEST / (1.0 - self.eps))
        return np.asarray(np.cumsum(np.log1p(bets * gains), axis=1).max(axis=1))


_POINTS_AT_ONCE = 16
_BOLDEST = 0.75
"""The share of the capital that one bet may lose."""


def _likely(n: int, winning: float) -> tuple[NDArray[np.intp], Floats]:
    """The numbers of won rows that are not beyond eight standard errors, and the chance of each."""
    wide = 8.0 * math.sqrt(n * winning * (1.0 - winning)) + 8.0
    won = np.arange(max(0, math.floor(n * winning - wide)), min(n, math.ceil(n * winning + wide)) + 1)
    if winning == 0.0:
        return won, (won == 0).astype(np.float64)
    gammaln = _special().gammaln
    ways = gammaln(n + 1) - gammaln(won + 1) - gammaln(n - won + 1)
    return won, np.exp(ways + won * math.log(winning) + (n - won) * math.log1p(-winning))


def _special() -> Any:
    try:
        from scipy import special
    except ImportError as error:
        raise UsageError("certificates need the extra `train`: pip install 'llmrouter[train]'") from error
    return special
