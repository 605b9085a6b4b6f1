"""Takes a file of labels into the store, in short transactions, and says of every object what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from llmrouter.quality.label_store import LabelWriter
from llmrouter.quality.labels import Faulty, Kind, LabelRow, read_row

__all__ = ["Imported", "import_labels"]

LABELS_AT_ONCE = 500
"""In one transaction: some ten milliseconds in which no call is booked."""
CHARACTERS_AT_ONCE = 4 * 1024 * 1024
"""Of prompts."""


@dataclass(slots=True)
class Imported:
    """What became of a file."""

    objects: int = 0
    new: int = 0
    """Labels that were not there yet."""
    known: int = 0
    """Labels that were there already."""
    refused: int = 0
    """Objects of which nothing was taken."""


def import_labels(
    objects: Iterable[tuple[str, Any | Faulty]],
    writer: LabelWriter,
    *,
    now: Callable[[], datetime],
    kind: Kind = "import",
    judge: str | None = None,
    on_refused: Callable[[str, str], None],
) -> Imported:
    """Take in objects as `label_files.read_objects` gives them; a faulty one is told to `on_refused` and left out.

    Args:
        kind, judge: of labels that do not say themselves.
        on_refused: told the place and what is wrong there.
    """
    done = Imported()
    for batch in _batches(_read(objects, kind, judge)):
        rows = [row for _, row in batch if isinstance(row, LabelRow)]
        added = iter(writer.add(rows, now())) if rows else iter(())
        for at, row in batch:
            done.objects += 1
            problem = str(row) if isinstance(row, Faulty) else None
            if problem is None:
                what = next(added)
                problem = what.conflict
                done.new += what.new
                done.known += what.known
            if problem is not None:
                done.refused += 1
                on_refused(at, problem)
    return done


_Read = tuple[str, LabelRow | Faulty]


def _read(objects: Iterable[tuple[str, Any | Faulty]], kind: Kind, judge: str | None) -> Iterator[_Read]:
    for at, given in objects:
        if isinstance(given, Faulty):
            yield at, given
            continue
        try:
            yield at, read_row(given, kind=kind, judge=judge)
        except Faulty as fault:
            yield at, fault


def _batches(rows: Iterable[_Read]) -> Iterator[list[_Read]]:
    batch: list[_Read] = []
    labels = characters = 0
    for at, row in rows:
        batch.append((at, row))
        if isinstance(row, LabelRow):
            labels += len(row.labels)
            characters += len(row.item.content or "") + len(row.item.extra or "")
        if max(labels, len(batch)) >= LABELS_AT_ONCE or characters >= CHARACTERS_AT_ONCE:
            yield batch
            batch, labels, characters = [], 0, 0
    if batch:
        yield batch
