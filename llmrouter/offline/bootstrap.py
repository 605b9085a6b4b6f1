"""Resampling of labels: how far a figure would move if other prompts had been labelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from llmrouter.offline.labels import Floats
from llmrouter.types import value

__all__ = ["Bootstrap", "Interval", "Progress", "interval_of"]

Progress: TypeAlias = Callable[[int, int], None]
"""Called with how much is done and how much there is to do."""

_CELLS = 2_000_000
"""Rows times replicates that are held at once: 16 MB an array."""

_DEGENERATE_SHARE = 0.025
"""Replicates without a figure up to which the others still make an interval."""


@value
class Interval:
    """Where 95 % of the replicates lie."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Draws whole groups with replacement, within strata, so that the mix of sources stays.

    Rows of a group are never apart, because they are the same or nearly the same question. A group that lies in several
    sources is a stratum with others that lie in the same ones.
    """

    groups: Sequence[str]
    strata: Sequence[str]
    replicates: int = 1000
    seed: int = 0

    def multiplicities(
        self, rows: NDArray[np.bool_] | None = None, progress: Progress | None = None
    ) -> Iterator[Floats]:
        """How often each row is drawn, as arrays of shape (some replicates, n); the same ones at every call.

        Args:
            rows: of these rows only; n is then their count.
        """
        rng = np.random.default_rng(self.seed)
        kept = range(len(self.groups)) if rows is None else np.flatnonzero(rows).tolist()
        row_group, members = self._strata(kept)
        step = max(1, min(self.replicates, _CELLS // max(len(kept), 1)))
        for begin in range(0, self.replicates, step):
            count = min(step, self.replicates - begin)
            drawn = np.zeros((count, len(row_group) and int(row_group.max()) + 1))
            for positions in members:
                drawn[:, positions] = _draw(rng, count, len(positions))
            yield drawn[:, row_group]
            if progress is not None:
                progress(begin + count, self.replicates)

    def _strata(self, kept: Sequence[int]) -> tuple[NDArray[np.intp], list[NDArray[np.intp]]]:
        """The number of each row's group, and the numbers of the groups of each stratum."""
        numbers: dict[str, int] = {}
        lies_in: list[set[str]] = []
        row_group = np.zeros(len(kept), dtype=np.intp)
        for position, row in enumerate(kept):
            number = numbers.setdefault(self.groups[row], len(numbers))
            if number == len(lies_in):
                lies_in.append(set())
            lies_in[number].add(self.strata[row])
            row_group[position] = number
        by_stratum: dict[frozenset[str], list[int]] = {}
        for number, names in enumerate(lies_in):
            by_stratum.setdefault(frozenset(names), []).append(number)
        return row_group, [np.array(each, dtype=np.intp) for each in by_stratum.values()]


def interval_of(replicates: Floats) -> Interval | None:
    """The middle 95 % of a figure's replicates; None where too many have no figure (NaN)."""
    known = replicates[np.isfinite(replicates)]
    if len(known) < (1.0 - _DEGENERATE_SHARE) * len(replicates) or not len(known):
        return None
    low, high = np.quantile(known, (0.025, 0.975))
    return Interval(float(low), float(high))


def _draw(rng: np.random.Generator, replicates: int, groups: int) -> Floats:
    """How often each of the groups is drawn in each replicate, as many draws as groups."""
    drawn = rng.integers(0, groups, (replicates, groups)) + groups * np.arange(replicates)[:, None]
    return np.bincount(drawn.ravel(), minlength=replicates * groups).reshape(replicates, groups).astype(np.float64)
