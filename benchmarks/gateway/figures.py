"""From what was measured to figures: medians and spreads of each row of the table, for each target."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.gateway.cases import FULL, PACE, Case
from benchmarks.gateway.measure import Idle, Measured
from benchmarks.gateway.targets import Start

__all__ = ["Figure", "Figures", "Row", "figures", "is_held", "rows"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One value a round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def least(self) -> float:
        return min(self.values)

    @property
    def most(self) -> float:
        return max(self.values)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    `digits` is None for a row that tells in how many rounds something held.
    """

    key: str
    words: str
    digits: int | None
    ratio: bool = False
    """Whether a ratio to nginx means something."""


Figures = dict[str, dict[str, Figure]]
"""By row, then by target."""


def rows() -> list[Row]:
    """All rows that a run may fill, in the order of the table."""
    listed = []
    for case in FULL.cases:
        listed += [
            Row(f"{case.name}.{name}", f"{case.words}: {words}", digits, ratio)
            for name, words, digits, ratio in _rows_of(case)
        ]
    return [
        *listed,
        Row("idle.cpu", "asked nothing: CPU ms a second", 1),
        Row("idle.resident", "asked nothing, after all the above: RSS MB", 0),
        Row("start.wall", "cold start: s to the first answer", 2),
        Row("start.cpu", "cold start: CPU s", 2),
    ]


def _rows_of(case: Case) -> Iterable[tuple[str, str, int | None, bool]]:
    if case.requests is not None:
        yield "open", "open at once", 0, False
        yield "resident", "RSS MB", 0, False
        yield "largest", "RSS MB of the largest process", 0, False
        return
    if not case.stream:
        yield "cpu", "CPU s/1K", 3, True
        yield "rate", "answers a second", 0, True
        if case.direct:
            yield "added_p50", "added ms p50", 3, True
            yield "added_p99", "added ms p99", 3, True
        if case.connections == 16:
            yield "root", "of it the first process, CPU s/1K", 4, False
        return
    yield "cpu", "CPU s/1K", 2, True
    if case.paced:
        yield "ttft_p50", "added TTFT ms p50", 2, False
        yield "ttft_p99", "added TTFT ms p99", 2, False
        yield "ttft_p999", "added TTFT ms p99.9", 2, False
        yield "delay_p50", "added ms a chunk p50", 3, False
        yield "delay_p99", "added ms a chunk p99", 3, False
        yield "gap_p50", "gap between chunks ms p50", 2, False
        yield "gap_p99", "gap between chunks ms p99", 2, False
        yield "held", "held", None, False
    yield "failed", "failed streams", 0, False
    if case.paced:
        yield "instruments", "cores busy with engine and client", 2, False


def is_held(case: Case, client: dict) -> bool:  # type: ignore[type-arg]
    """All streams finished, 95 % of them began within 350 ms and took no more than a tenth longer than they should."""
    if client["good"] < client["issued"] or not client["ttft_ms"]:
        return False
    return bool(client["ttft_ms"]["p95"] < 350 and client["answer_ms"]["p95"] < 1.1 * case.pace.duration_ms)


def figures(measured: Sequence[Measured], idle: Iterable[Idle], starts: dict[str, list[Start]]) -> Figures:
    """The table's values; rows and targets that were not measured are missing."""
    cases = {case.name: case for case in FULL.cases}
    base = _direct_p50(measured)
    found: dict[str, dict[str, list[float]]] = {}

    def note(key: str, target: str, value: float | None) -> None:
        if value is not None:
            found.setdefault(key, {}).setdefault(target, []).append(value)

    for one in measured:
        case = cases[one.case]
        for name, *_ in _rows_of(case):
            note(f"{one.case}.{name}", one.target, _value(name, case, one, base))
    for state in idle:
        note("idle.cpu", state.target, state.cpu_ms_per_s)
        note("idle.resident", state.target, state.resident_mb)
    for target, times in starts.items():
        for each in times:
            note("start.wall", target, each.wall_s)
            note("start.cpu", target, each.cpu_s)
    return {key: {target: Figure(tuple(v)) for target, v in by.items()} for key, by in found.items()}


def _direct_p50(measured: Iterable[Measured]) -> float | None:
    """What a whole answer takes without a target between, in ms."""
    values = [
        m.client["answer_ms"]["p50"]
        for m in measured
        if m.target == "direct" and m.case == "json-1" and m.client["good"]
    ]
    return statistics.median(values) if values else None


def _value(name: str, case: Case, one: Measured, base: float | None) -> float | None:
    client = one.client
    if name == "failed":
        return float(client["issued"] - client["good"])
    if name == "held":
        return float(is_held(case, client))
    if name == "instruments":
        return one.instruments_cpu_s / one.wall_s
    if not client["good"]:
        return None
    return _OF[name](one, base)


def _cpu(one: Measured, seconds: float) -> float | None:
    return None if one.target == "direct" else seconds / one.client["good"] * 1000


def _added(one: Measured, base: float | None, quantile: str) -> float | None:
    """Against the instruments' own median: a slow tail of theirs is counted as the target's, never the other way."""
    if base is None or one.target == "direct":
        return None
    return float(one.client["answer_ms"][quantile] - base)


def _ttft(one: Measured, quantile: str) -> float:
    return float(one.client["ttft_ms"][quantile] - PACE.ttft_ms)


_OF: dict[str, Callable[[Measured, float | None], float | None]] = {
    "cpu": lambda one, _: _cpu(one, one.cpu_s),
    # With one process there is no part to state.
    "root": lambda one, _: None if one.root_cpu_s == one.cpu_s else _cpu(one, one.root_cpu_s),
    "rate": lambda one, _: one.client["good"] / one.client["seconds"],
    "added_p50": lambda one, base: _added(one, base, "p50"),
    "added_p99": lambda one, base: _added(one, base, "p99"),
    "ttft_p50": lambda one, _: _ttft(one, "p50"),
    "ttft_p99": lambda one, _: _ttft(one, "p99"),
    "ttft_p999": lambda one, _: _ttft(one, "p999"),
    "delay_p50": lambda one, _: one.client["delay_ms"]["p50"],
    "delay_p99": lambda one, _: one.client["delay_ms"]["p99"],
    "gap_p50": lambda one, _: one.client["gap_ms"]["p50"],
    "gap_p99": lambda one, _: one.client["gap_ms"]["p99"],
    "open": lambda one, _: float(one.open_streams),
    "resident": lambda one, _: one.resident_mb,
    "largest": lambda one, _: one.largest_mb,
}
