"""What each row counts for: the mix that a figure stands for, and how the rows came to be labelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from llmrouter.errors import UsageError
from llmrouter.offline.labels import Floats

__all__ = ["one_per_group", "parse_weights", "row_weights"]


def parse_weights(text: str) -> dict[str, float]:
    """Read `SOURCE=W,SOURCE=W`; the numbers need not add up to one.

    Raises:
        UsageError: naming the part that is no source and positive number, or a source that stands there twice.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = part.strip().rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = -1.0
        if not name or not 0 < weight < float("inf"):
            raise UsageError(f"--weights: {part.strip()!r} is not SOURCE=NUMBER with a number above 0")
        if name in found:
            raise UsageError(f"--weights names {name} twice")
        found[name] = weight
    return found


def row_weights(sources: Sequence[str], inclusion: Floats, mix: Mapping[str, float] | None = None) -> Floats:
    """One weight a row, with mean 1 over the rows that count.

    Without a mix, a row counts inversely to the probability with which it was chosen to be labelled. With one, each
    source counts in total as the mix says, and within it rows count in that way; sources that the mix does not name
    count nothing.

    Raises:
        UsageError: the mix names a source that no row is of, or leaves no row at all.
    """
    each = 1.0 / inclusion
    if mix is not None:
        of = np.array(sources, dtype=object)
        missing = sorted(set(mix) - set(sources))
        if missing:
            there = ", ".join(sorted(set(sources))) or "none"
            raise UsageError(f"--weights names {', '.join(missing)}, but no label is of it; sources here: {there}")
        scaled = np.zeros(len(of))
        for name, weight in mix.items():
            rows = of == name
            scaled[rows] = weight * each[rows] / each[rows].sum()
        each = scaled
    counting = np.count_nonzero(each)
    if not counting:
        raise UsageError("no label is left that counts")
    return np.asarray(each * (counting / each.sum()), dtype=np.float64)


def one_per_group(groups: Sequence[str], weights: Floats, seed: int = 0) -> tuple[NDArray[np.intp], Floats]:
    """Independent rows for a certificate: one of each group, drawn by weight, with the weight of its whole group.

    The weighted mean of any loss over these rows estimates that over all rows, without counting rewordings of one
    question as so many questions.

    Returns:
        Positions of the rows, rising, and their weights. Groups that count nothing are left out.
    """
    rng = np.random.default_rng(seed)
    number: dict[str, int] = {}
    of = np.array([number.setdefault(group, len(number)) for group in groups], dtype=np.intp)
    totals = np.bincount(of, weights, minlength=len(number))
    # The largest of Gumbel noise plus log weight is a draw by weight.
    with np.errstate(divide="ignore"):
        keys = np.log(weights) + rng.gumbel(size=len(of))
    order = np.lexsort((-keys, of))
    first = order[np.append([True], of[order][1:] != of[order][:-1])] if len(of) else order
    rows = np.sort(first[totals[of[first]] > 0])
    return rows, np.asarray(totals[of[rows]], dtype=np.float64)
