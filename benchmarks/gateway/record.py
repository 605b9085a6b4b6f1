"""A whole run as one value that a JSON file keeps, so that its table can be printed again."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gateway.books import Booked, Calls
from benchmarks.gateway.measure import Idle, Measured
from benchmarks.gateway.targets import Start

__all__ = ["Books", "Run", "read", "warnings", "write"]

_QUIET_OTHERS = 0.05
"""Cores that others may keep busy, on the median, while a machine is still called quiet."""
_QUIET_STOLEN = 0.02
_QUIET_LOAD = 0.5


@dataclass(frozen=True, slots=True)
class Books:
    """What was asked of a target, what its ledger holds, and what is wrong with that."""

    calls: Calls
    booked: Booked
    faults: list[str]


@dataclass(slots=True)
class Run:
    """All that one run found."""

    date: str
    machine: str
    quick: bool
    load: float
    """Load average of a minute before anything was started."""
    notes: list[str] = field(default_factory=list)
    """What was left out, in words."""
    measured: list[Measured] = field(default_factory=list)
    idle: list[Idle] = field(default_factory=list)
    starts: dict[str, list[Start]] = field(default_factory=dict)
    books: dict[str, Books] = field(default_factory=dict)

    @property
    def others(self) -> float:
        """Cores kept busy by what is not the benchmark: the median over all measurements."""
        return _median([one.others_cpu_s / one.wall_s for one in self.measured])

    @property
    def stolen(self) -> float:
        """Cores taken by the host: the median over all measurements."""
        return _median([one.stolen_s / one.wall_s for one in self.measured])


def warnings(run: Run) -> list[str]:
    """Why this run's absolute figures, and its tails most of all, should not be trusted."""
    found = []
    if run.load > _QUIET_LOAD:
        found.append(f"the machine was not quiet before the run: load average {run.load:.2f}")
    if run.others > _QUIET_OTHERS:
        found.append(f"other processes kept {run.others:.2f} cores busy meanwhile")
    if run.stolen > _QUIET_STOLEN:
        found.append(f"the host took {run.stolen:.2f} cores away meanwhile")
    return found


def write(run: Run, path: Path) -> None:
    path.write_text(json.dumps(dataclasses.asdict(run), indent=1) + "\n")


def read(path: Path) -> Run:
    """The run in a file.

    Raises:
        ValueError: the file holds none.
    """
    try:
        raw: dict[str, Any] = json.loads(path.read_text())
        return Run(
            **{
                **raw,
                "measured": [Measured(**one) for one in raw["measured"]],
                "idle": [Idle(**one) for one in raw["idle"]],
                "starts": {name: [Start(**one) for one in times] for name, times in raw["starts"].items()},
                "books": {
                    name: Books(Calls(**one["calls"]), Booked(**one["booked"]), one["faults"])
                    for name, one in raw["books"].items()
                },
            }
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: not the --json file of a run: {error}") from error


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
