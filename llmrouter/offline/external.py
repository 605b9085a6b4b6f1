"""What another router decided, read from a file, so that it is measured on the very rows of this one."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmrouter.errors import UsageError
from llmrouter.offline.labels import Floats, LabelSet

__all__ = ["External", "parse_external", "read_external"]

_DECISIONS = ("role", "model", "decision")
_FAULTS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class External:
    """The decisions of one router on the rows of a label set."""

    name: str
    roles: tuple[str, ...]
    """The roles it may have chosen, as `choice` counts them."""
    choice: NDArray[np.intp]
    """Shape (n,): position in `roles`; -1 where it says nothing of the row."""
    score: Floats | None
    """Shape (n,): how much it thinks a strong model is needed; None without such a column, NaN without such a row."""
    unknown: int
    """Lines of the file whose id no label has."""
    missing: int
    """Labels of which the file says nothing."""

    @property
    def decided(self) -> NDArray[np.bool_]:
        return np.asarray(self.choice >= 0)

    def notes(self) -> list[str]:
        """What must be said before the figures are read."""
        found = []
        if self.missing:
            found.append(
                f"{self.name} says nothing of {self.missing} of {len(self.choice)} labels; it is measured on the others"
            )
        if self.unknown:
            found.append(f"{self.name} has {self.unknown} lines whose id no label has; they are left out")
        return found


def parse_external(text: str) -> tuple[str, Path]:
    """Read `NAME=FILE`.

    Raises:
        UsageError: it is something else.
    """
    name, _, path = text.partition("=")
    if not name.strip() or not path:
        raise UsageError(f"--external {text!r}: give NAME=FILE, where FILE has the columns id and model")
    return name.strip(), Path(path)


def read_external(name: str, path: Path, labels: LabelSet, roles: Sequence[str]) -> External:
    """Read a CSV file with a heading: `id`, one of `model`, `role` and `decision`, and perhaps `score`.

    A decision is a role, or a model id as the labels of that row's source name it. An optional `score` says how much a
    strong model is needed, which makes the router's whole curve known instead of one point.

    Raises:
        UsageError: the file cannot be read, lacks a column, names an id twice, a model that plays no role, or a score
            that is no number; or no line is of any label.
    """
    lines, columns = _lines(name, path)
    decision = next((column for column in _DECISIONS if column in columns), None)
    if "id" not in columns or (decision is None and "score" not in columns):
        raise UsageError(f"{path}: needs a heading with id and model (or role), and perhaps score; it has {columns}")
    rows = {item: row for row, item in enumerate(labels.ids)}
    choice = np.full(len(labels), -1, dtype=np.intp)
    score = np.full(len(labels), np.nan) if "score" in columns else None
    faults: list[str] = []
    seen: Counter[str] = Counter()
    unknown = 0
    for number, line in lines:
        item = (line.get("id") or "").strip()
        seen[item] += 1
        if seen[item] == 2:
            faults.append(f"line {number}: the id {item!r:.60} stands there twice")
        row = rows.get(item)
        if row is None:
            unknown += 1
            continue
        if decision is not None:
            said = (line.get(decision) or "").strip()
            position = _position(said, labels.models.get(labels.sources[row], {}), roles)
            if position is None:
                faults.append(f"line {number}: {said!r:.60} is neither a role nor a model of {labels.sources[row]}")
                continue
            choice[row] = position
        if score is not None:
            try:
                score[row] = _number(line.get("score") or "")
            except ValueError as error:
                faults.append(f"line {number}: {error}")
                continue
            if decision is None:
                choice[row] = 0
    if faults:
        shown = "; ".join(faults[:_FAULTS_SHOWN]) + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")
        raise UsageError(f"{path}: {shown}")
    if not (choice >= 0).any():
        raise UsageError(
            f"{path}: none of its {len(lines)} ids is that of a label; labels have ids like {labels.ids[0]!r}"
        )
    missing = int((choice < 0).sum())
    return External(name, tuple(roles) if decision else (), choice, score, unknown, missing)


def _lines(name: str, path: Path) -> tuple[list[tuple[int, dict[str, str]]], list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            columns = [column.strip().lower() for column in reader.fieldnames or ()]
            reader.fieldnames = columns
            return [(reader.line_num, line) for line in reader], columns
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: decisions of {name}: is not a CSV file in UTF-8: {error}") from error


def _position(said: str, models: Mapping[str, str], roles: Sequence[str]) -> int | None:
    """A role by its name, else the one that the model plays in this source."""
    if said in roles:
        return list(roles).index(said)
    return next((index for index, role in enumerate(roles) if models.get(role) == said), None)


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not np.isfinite(number):
        raise ValueError(f"the score {text!r:.40} is no number")
    return number
