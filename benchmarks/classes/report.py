"""The figures of a run, the goals they are held against, and the table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.classes.traffic import Seen

__all__ = ["MOST_RATIO", "Goal", "Row", "as_json", "as_text", "goals", "quantile", "rows_of"]

MOST_RATIO = 1.2
"""Interactive p95 beside batch, over its value alone."""
_LEAST_FILL = 0.9
"""Of the slots that are left for batch, the part that it must use."""


@dataclass(frozen=True, slots=True)
class Row:
    phase: str
    latency_class: str
    calls: int
    refused: int
    p50_s: float
    p95_s: float
    slots: float | None
    """Mean slots in use; None where nothing was sent under the class's name."""


@dataclass(frozen=True, slots=True)
class Goal:
    what: str
    value: float
    met: bool


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all do not exceed; 0 of none."""
    return sorted(values)[math.ceil(share * len(values)) - 1] if values else 0.0


def rows_of(phase: str, seen: dict[str, Seen]) -> list[Row]:
    return [
        Row(
            phase,
            name,
            len(each.ttft_s),
            each.refused,
            quantile(each.ttft_s, 0.5),
            quantile(each.ttft_s, 0.95),
            statistics.fmean(each.slots) if each.slots else None,
        )
        for name, each in seen.items()
    ]


def goals(alone: Row, together: Sequence[Row], *, slots: int, batch_most: int) -> list[Goal]:
    """What the demonstration must show; `batch_most` is the batch class's share in slots."""
    by_class = {row.latency_class: row for row in together}
    interactive, standard, batch = (by_class[name] for name in ("interactive", "standard", "batch"))
    ratio = interactive.p95_s / alone.p95_s if alone.p95_s else math.inf
    rest = min(batch_most, slots - (interactive.slots or 0.0) - (standard.slots or 0.0))
    fill = (batch.slots or 0.0) / rest
    return [
        Goal("interactive TTFT p95 beside batch over alone, at most 1.2", ratio, ratio <= MOST_RATIO),
        Goal("part of the remaining slots that batch uses, at least 0.9", fill, fill >= _LEAST_FILL),
        Goal(
            "standard waits less than batch (its p95 over batch's)",
            standard.p95_s / batch.p95_s if batch.p95_s else math.inf,
            standard.p95_s < batch.p95_s,
        ),
    ]


def as_text(rows: Sequence[Row], found: Sequence[Goal]) -> str:
    """A Markdown table and the goals."""
    lines = [
        "| traffic | class | calls | TTFT p50 | TTFT p95 | slots in use |",
        "|---|---|---:|---:|---:|---:|",
        *(
            f"| {row.phase} | {row.latency_class} | {row.calls:,} | {row.p50_s * 1000:,.0f} ms "
            f"| {row.p95_s * 1000:,.0f} ms | {'' if row.slots is None else f'{row.slots:.1f}'} |"
            for row in rows
        ),
        "",
        *(f"{'met ' if goal.met else 'MISSED'}  {goal.value:.2f}  {goal.what}" for goal in found),
    ]
    refused = sum(row.refused for row in rows)
    if refused:
        lines.append(f"{refused} calls were refused")
    return "\n".join(lines)


def as_json(rows: Sequence[Row], found: Sequence[Goal]) -> dict[str, Any]:
    return {"rows": [asdict(row) for row in rows], "goals": [asdict(goal) for goal in found]}
