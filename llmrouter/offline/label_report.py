"""What became of the rows of label files: how many are used, which are not and why, and the base rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from llmrouter.types import value

__all__ = ["LabelReport", "RoleCount", "SourceReport"]


@value
class RoleCount:
    """How much is known of one role in one source."""

    model: str
    labels: int
    mean_score: float | None
    answers: int
    """Rows with a short answer, so that agreement can be computed."""


@value
class SourceReport:
    """One source's rows."""

    rows: int
    groups: int
    roles: Mapping[str, RoleCount]


@value
class LabelReport:
    """What `read_labels` found."""

    read: int
    """Objects in the files."""
    used: int
    """Rows of the label set; objects of one item that name different models make one row."""
    left_out: Mapping[str, int]
    """Why → objects or rows that are not used."""
    faults: tuple[str, ...]
    """The first faulty objects, each with file, place and id."""
    sources: Mapping[str, SourceReport]

    def lines(self) -> tuple[str, ...]:
        """The report in words, for people."""
        head = f"{self.read} objects read, {self.used} rows used"
        reasons = [f"left out: {count} ({why})" for why, count in self.left_out.items()]
        return (head, *reasons, *self.faults, *(_line(name, each) for name, each in self.sources.items()))

    def as_json(self) -> dict[str, Any]:
        """The same for machines."""
        return asdict(self)


def _line(name: str, source: SourceReport) -> str:
    roles = ", ".join(f"{role} {each.model} {_rate(each)}" for role, each in source.roles.items())
    return f"{name}: {source.rows} rows, {source.groups} questions; {roles}"


def _rate(count: RoleCount) -> str:
    return "no labels" if count.mean_score is None else f"{count.mean_score:.3f} (n={count.labels})"
