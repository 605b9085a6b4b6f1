"""The project's targets for the gateway, and whether a run meets them.

Limits were set on one machine, where the same nginx proxy was measured too. Elsewhere, or at another hour, a CPU limit
is worth what it is in relation to that: it is scaled by nginx of the same run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.gateway.figures import Figures

__all__ = ["GOALS", "Goal", "Verdict", "verdicts"]


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit for one row of one target."""

    words: str
    row: str
    target: str
    limit: float
    nginx: float | None = None
    """What nginx took where the limit was set; None for a limit that is not scaled."""
    at_least: bool = False
    """The limit is a lower one, met in every round."""


@dataclass(frozen=True, slots=True)
class Verdict:
    goal: Goal
    limit: float
    """As it applies to this run."""
    measured: float
    met: bool


GOALS = (
    Goal("forwarding only, CPU s/1K at 16 connections", "json-16.cpu", "floor", 0.18, nginx=0.045),
    Goal("whole answers, everything on, CPU s/1K at 16 connections", "json-16.cpu", "gateway", 0.42, nginx=0.045),
    Goal("zero-delay streams, everything on, CPU s/1K", "stream-16.cpu", "gateway", 4.5, nginx=3.3),
    Goal("paced streams at 20/s, everything on, CPU s/1K", "paced-20.cpu", "gateway", 40.0, nginx=20.0),
    Goal("added TTFT at 20/s, p50 ms", "paced-20.ttft_p50", "gateway", 2.0),
    Goal("added TTFT at 20/s, p99 ms", "paced-20.ttft_p99", "gateway", 10.0),
    Goal("60 streams started a second held on one core", "paced-60.held", "gateway", 1.0, at_least=True),
    Goal("120 streams started a second held by two workers", "paced-120.held", "gateway-2", 1.0, at_least=True),
    Goal("RSS of a worker at 900 open streams, MB", "open-900.largest", "gateway", 150.0),
)


def verdicts(figures: Figures, goals: Iterable[Goal] = GOALS) -> list[Verdict]:
    """A verdict on each goal that the run measured; a scaled one needs nginx in the same run."""
    found = []
    for goal in goals:
        row = figures.get(goal.row, {})
        if goal.target not in row or (goal.nginx is not None and "nginx" not in row):
            continue
        limit = goal.limit if goal.nginx is None else goal.limit * row["nginx"].median / goal.nginx
        figure = row[goal.target]
        met = figure.least >= limit if goal.at_least else figure.median <= limit
        found.append(Verdict(goal, limit, figure.least if goal.at_least else figure.median, met))
    return found
