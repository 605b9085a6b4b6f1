"""A run as Markdown, for the terminal and for `docs/performance.md`, and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.stores.turns import Part, Result

__all__ = ["BEGIN", "END", "Run", "Table", "as_json", "as_markdown"]

BEGIN = "<!-- benchmark of stores: begin -->"
END = "<!-- benchmark of stores: end -->"


@dataclass(frozen=True, slots=True)
class Table:
    """What came of one part."""

    part: Part
    results: Sequence[Result]


@dataclass(slots=True)
class Run:
    """All that was measured at one time."""

    date: str
    machine: str
    rounds: int
    loads: list[float] = field(default_factory=list)
    """The load average of a minute, before each part and after the last."""
    sync_ms: float = 0.0
    """What it takes the disk to sync a page."""
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def as_markdown(run: Run) -> str:
    """Heading, tables, notes."""
    load = f"{min(run.loads):.1f} to {max(run.loads):.1f} (the run's own load included)"
    sync = f"a sync of the disk took {run.sync_ms:.1f} ms"
    parts = [f"{run.date}, {run.machine}. Load average {load}; {sync}. Medians of {run.rounds} rounds."]
    parts += [f"NOTE: {note}." for note in run.notes]
    for table in run.tables:
        parts += [f"**{table.part.title}**", _piped(_lines(table))]
    return "\n\n".join(parts)


def as_json(run: Run) -> dict[str, Any]:
    """Every turn, so that other figures can be worked out."""
    return {
        "date": run.date,
        "machine": run.machine,
        "loads": run.loads,
        "sync_ms": run.sync_ms,
        "notes": run.notes,
        "parts": {table.part.name: [asdict(result) for result in table.results] for table in run.tables},
    }


def _lines(table: Table) -> list[list[str]]:
    part = table.part
    # A dictionary for a set that keeps its order.
    more = list(dict.fromkeys(name for result in table.results for name in result.turns[0].figures))
    ratios = [f"x {loop}" for loop in part.loops]
    head = [f"each {part.unit}", "a second", *ratios, "CPU µs", *ratios, *more]
    return [head, *(_line(result, part, more) for result in table.results)]


def _line(result: Result, part: Part, more: Sequence[str]) -> list[str]:
    return [
        result.name,
        f"{result.median(lambda turn: turn.rate):,.0f}",
        *_ratios(result.rates, part),
        f"{result.median(lambda turn: turn.cpu_us):.0f}",
        *_ratios(result.costs, part),
        *(_figure(result, name) for name in more),
    ]


def _ratios(values: Sequence[float], part: Part) -> list[str]:
    return [_short(value) for value in values] or [""] * len(part.loops)


def _figure(result: Result, name: str) -> str:
    values = [turn.figures[name] for turn in result.turns if name in turn.figures]
    return _short(statistics.median(values)) if values else ""


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.2g}"


def _piped(lines: Sequence[Sequence[str]]) -> str:
    head, *rest = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([head, "|---" + "|--:" * (len(lines[0]) - 1) + "|", *rest])
