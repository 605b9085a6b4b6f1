"""Tells when requests no longer look like those that a router was calibrated on.

What is counted is cheap: for each request, the bin in which each role's predicted score falls, and the route that was
chosen. What is tested is whether the shares of these cells still lie within a tolerance of those on the calibration
rows. For each cell and each side, a gambler bets against "the share lies within"; the mean capital of all of them may
be looked at any time, and as long as the claim holds it passes 1/alpha with probability alpha at most (Ville). Counts
start anew with every window, so that a long quiet time does not hide a change, and the k-th window is given
alpha / (k (k + 1)): over all windows together, an artefact is called drifted wrongly with probability `alpha` at most,
however long it serves and however often it is looked at.

That holds for requests that are independent draws with shares inside the tolerances. Bursts of one and the same request
are a change of traffic, and are told as one. Shares that moved by less than the tolerance are never told.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrouter.routing.evidence import Move, Prediction
from llmrouter.types import value

__all__ = [
    "Channel",
    "Counts",
    "DriftCounter",
    "DriftReference",
    "DriftState",
    "DriftTest",
    "DriftVerdict",
    "statistics_of",
]

Counts = tuple[int, ...]
"""One count a cell, channel by channel as the reference has them; those of several workers are added cell by cell."""

_BINS = 10
_ROUTES = "routes"


@value
class Channel:
    """One thing that is counted: its cells and the share of calibration rows in each."""

    name: str
    """The role whose predicted score it is, or `routes`."""
    shares: tuple[float, ...]
    edges: tuple[float, ...] = ()
    """Of scores: where each bin but the first begins."""
    routes: tuple[str, ...] = ()
    """Of routes: the name of each cell; the last cell is for every other route."""

    def cell(self, position: int) -> str:
        """What a cell holds, in words."""
        if self.routes:
            return f"routed to {self.routes[position]}"
        low = f"from {self.edges[position - 1]:.2f}" if position else ""
        high = f"below {self.edges[position]:.2f}" if position < len(self.edges) else ""
        return f"predicted score of {self.name} {' '.join(part for part in (low, high) if part)}"


@value
class DriftReference:
    """What an artefact's calibration rows looked like."""

    rows: int
    channels: tuple[Channel, ...]

    @classmethod
    def of(cls, calibration: Mapping[str, Any]) -> DriftReference | None:
        """Read the statistics in an artefact's manifest, as `statistics_of` makes them; None where there are none."""
        channels = [
            Channel(role, tuple(given["shares"]), edges=tuple(given["edges"]))
            for role, given in calibration.get("scores", {}).items()
        ]
        routes = calibration.get(_ROUTES) or {}
        if routes:
            channels.append(Channel(_ROUTES, (*routes.values(), 0.0), routes=(*routes, "another role")))
        rows = int(calibration.get("rows", 0))
        return cls(rows, tuple(channels)) if channels and rows else None

    @property
    def cells(self) -> int:
        return sum(len(channel.shares) for channel in self.channels)


@value
class DriftVerdict:
    """What the counts say."""

    drifted: bool
    what: str
    """The cell that speaks most, with its share and the one expected; empty while steady."""
    n: int
    """Requests of the window."""
    evidence: float
    """Natural logarithm of the capital; drifted from `needed` on."""
    needed: float
    psi: Mapping[str, float]
    """Channel → population stability index of the window, a size and no test: 0 is no change, 0.25 a large one."""


@value
class DriftState:
    """What is kept between looks; plain numbers, to be stored as JSON."""

    window: int = 1
    begun: Counts = ()
    """The counts when the window began."""
    drifted: str = ""
    """What was found; it stays until the artefact is replaced."""

    def as_json(self) -> dict[str, Any]:
        return {"window": self.window, "begun": list(self.begun), "drifted": self.drifted}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> DriftState:
        return cls(int(given["window"]), tuple(int(each) for each in given["begun"]), str(given["drifted"]))


class DriftCounter:
    """Counts one worker's decisions; about a microsecond each, and never a wait."""

    def __init__(self, reference: DriftReference) -> None:
        self._scores: list[tuple[str, tuple[float, ...], int]] = []
        self._routes: dict[str, int] = {}
        self._other: int | None = None
        offset = 0
        for channel in reference.channels:
            if channel.routes:
                self._routes = {route: offset + index for index, route in enumerate(channel.routes[:-1])}
                self._other = offset + len(channel.routes) - 1
            else:
                self._scores.append((channel.name, channel.edges, offset))
            offset += len(channel.shares)
        self._cells = [0] * offset

    def observe(self, prediction: Prediction, move: Move) -> None:
        """Count one decision before any call."""
        cells, quality = self._cells, prediction.quality
        for role, edges, offset in self._scores:
            score = quality.get(role)
            if score is not None:
                cells[offset + bisect_right(edges, score)] += 1
        if self._other is not None:
            route = "cascade" if move.action == "check" else move.role
            cells[self._routes.get(route, self._other)] += 1

    def counts(self) -> Counts:
        """All that was counted so far; it only grows."""
        return tuple(self._cells)


class DriftTest:
    """Judges counts against a reference; pure, so that any process may ask it.

    Args:
        tolerance: how far a cell's share may move and still count as the same traffic. The error of the calibration
            rows' own shares comes on top.
        alpha: probability of ever calling the same traffic drifted.
        window: requests after which counts start anew.
        least: requests below which nothing is judged.
    """

    def __init__(
        self,
        reference: DriftReference,
        *,
        tolerance: float = 0.05,
        alpha: float = 0.01,
        window: int = 4000,
        least: int = 200,
    ) -> None:
        self._reference = reference
        self._alpha = alpha
        self._window = window
        self._least = least
        shares = np.array([share for channel in reference.channels for share in channel.shares])
        error = _ERRORS * np.sqrt(np.maximum(shares * (1.0 - shares), 1.0 / reference.rows) / reference.rows)
        self._high = np.minimum(shares + tolerance + error, 1.0)
        self._low = np.maximum(shares - tolerance - error, 0.0)

    def advance(self, state: DriftState, totals: Counts) -> tuple[DriftState, DriftVerdict]:
        """Judge the running window by all counts so far, and begin the next one where it is full.

        Totals that fell, because a worker that counted is gone, begin the window anew.
        """
        if len(totals) != self._reference.cells:
            raise ValueError(f"{len(totals)} counts do not fit a reference with {self._reference.cells} cells")
        begun = state.begun or (0,) * len(totals)
        counted = tuple(now - then for now, then in zip(totals, begun, strict=True))
        if min(counted) < 0:
            state, counted = replace(state, begun=totals), (0,) * len(totals)
        verdict = self.judge(counted, state.window)
        if state.drifted:
            return state, replace(verdict, drifted=True, what=state.drifted)
        if verdict.drifted:
            return replace(state, drifted=verdict.what), verdict
        if verdict.n >= self._window:
            return DriftState(state.window + 1, totals), verdict
        return state, verdict

    def judge(self, counted: Counts, window: int = 1) -> DriftVerdict:
        """What the counts of one window say, at the error that is its part of `alpha`."""
        sizes = [len(channel.shares) for channel in self._reference.channels]
        inside = np.array(counted, dtype=np.float64)
        # A channel's own total: a prediction may lack a role.
        totals = np.repeat([part.sum() for part in np.split(inside, np.cumsum(sizes)[:-1])], sizes)
        n = int(totals.max(initial=0.0))
        needed = math.log(window * (window + 1) / self._alpha)
        above = _log_capital(inside, totals, self._high)
        below = _log_capital(totals - inside, totals, 1.0 - self._low)
        evidence = _log_mean(np.concatenate((above, below)))
        drifted = n >= self._least and evidence >= needed
        what = self._told(inside, totals, int(np.argmax(np.maximum(above, below)))) if drifted else ""
        return DriftVerdict(drifted, what, n, evidence, needed, self._psi(inside, totals))

    def _told(self, inside: NDArray[np.float64], totals: NDArray[np.float64], cell: int) -> str:
        position = cell
        for channel in self._reference.channels:
            if position < len(channel.shares):
                share = inside[cell] / totals[cell]
                return f"{channel.cell(position)}: {share:.0%} of requests, {channel.shares[position]:.0%} expected"
            position -= len(channel.shares)
        raise AssertionError(cell)

    def _psi(self, inside: NDArray[np.float64], totals: NDArray[np.float64]) -> dict[str, float]:
        found, begin = {}, 0
        for channel in self._reference.channels:
            end = begin + len(channel.shares)
            expected = np.maximum(np.array(channel.shares), 1.0 / self._reference.rows)
            total = totals[begin] if end > begin else 0.0
            seen = np.maximum(inside[begin:end] / total, 0.5 / total) if total else expected
            found[channel.name] = float(((seen - expected) * np.log(seen / expected)).sum())
            begin = end
        return found


def statistics_of(
    scores: Mapping[str, NDArray[np.float64]], routes: Mapping[str, float] | None = None, bins: int = _BINS
) -> dict[str, Any]:
    """What an artefact's manifest keeps of its calibration rows, for `DriftReference.of`.

    Args:
        scores: role → predicted score of each calibration row; not those of rows that the prediction was fitted on.
        routes: route → share of the rows that the policy sends there; `cascade` for all that begins with a check.
    """
    channels = {}
    for role, values in scores.items():
        edges = np.unique(np.quantile(values, np.linspace(0.0, 1.0, bins + 1)[1:-1]))
        inside = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)
        channels[role] = {"edges": edges.tolist(), "shares": (inside / len(values)).tolist()}
    rows = max((len(values) for values in scores.values()), default=0)
    return {"rows": rows, "scores": channels, _ROUTES: dict(routes or {})}


_ERRORS = 3.0
"""Standard errors of a calibration share that its tolerance is widened by."""

_STEPS = 2.0 ** -np.arange(1, 8)
"""Shares that the gamblers bet on: so far of the way from the tolerance to 1."""


def _log_capital(
    inside: NDArray[np.float64], totals: NDArray[np.float64], most: NDArray[np.float64]
) -> NDArray[np.float64]:
    """For each cell, what bets that its share is above `most` have come to; 0 where no share can be."""
    possible = most < 1.0
    bound = np.where(possible, most, 0.5)[:, None]
    bets = bound + (1.0 - bound) * _STEPS
    won = inside[:, None] * np.log(bets / bound) + (totals - inside)[:, None] * np.log((1.0 - bets) / (1.0 - bound))
    capital = won.max(axis=1) + np.log(np.exp(won - won.max(axis=1, keepdims=True)).mean(axis=1))
    return np.asarray(np.where(possible, capital, 0.0))


def _log_mean(values: NDArray[np.float64]) -> float:
    top = float(values.max(initial=0.0))
    return top + math.log(float(np.exp(values - top).mean())) if len(values) else 0.0
