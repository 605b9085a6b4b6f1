"""The tables of labels: rows come in once, judging again adds one, nothing is changed.

Writes are short transactions, because a gateway books its calls in the same file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from llmrouter.database import open_database, reading, store_errors, to_instant
from llmrouter.quality.labels import Item, Kind, Label, LabelRow, write_row
from llmrouter.schema.samples_labels import LABEL_TABLES
from llmrouter.types import value

__all__ = ["Added", "LabelFilter", "LabelWriter", "ListedLabel", "ModelStats", "label_stats", "list_labels", "rows_of"]


@value
class Added:
    """What became of one row."""

    new: int = 0
    known: int = 0
    conflict: str | None = None
    """Why nothing of it was taken: it says something else of an item than is known."""


@value
class LabelFilter:
    """Which labels are meant; what is None does not matter."""

    since: datetime | None = None
    """Judged from then on; where nobody said when, taken in from then on."""
    model_id: str | None = None
    kind: Kind | None = None
    judge: str | None = None

    def where(self) -> tuple[str, list[Any]]:
        """The condition in SQL and its values."""
        wanted = [
            ("coalesce(judged_at, created_at) >= ?", None if self.since is None else to_instant(self.since)),
            ("model_id = ?", self.model_id),
            ("kind = ?", self.kind),
            ("judge = ?", self.judge),
        ]
        given = [(sql, each) for sql, each in wanted if each is not None]
        return " AND ".join(["TRUE", *(sql for sql, _ in given)]), [each for _, each in given]


class LabelWriter:
    """Adds rows to one store, or only says what would become of them."""

    def __init__(self, path: Path, store: sqlite3.Connection, scratch: sqlite3.Connection | None) -> None:
        self._path = path
        self._store = store
        self._scratch = scratch

    @classmethod
    @contextmanager
    def of(cls, path: Path, *, dry_run: bool = False) -> Iterator[LabelWriter]:
        """A dry run writes into a database of its own, which goes with the block; raises `StoreUnavailable`."""
        with store_errors(path), closing(open_database(path, read_only=dry_run)) as connection:
            if not dry_run:
                yield cls(path, connection, None)
                return
            with closing(sqlite3.connect("", isolation_level=None)) as scratch:  # on disk once it is large
                for statement in LABEL_TABLES:
                    scratch.execute(statement)
                yield cls(path, connection, scratch)

    def add(self, rows: Sequence[LabelRow], now: datetime) -> list[Added]:
        """Add rows in one transaction; a row that contradicts what is known of its item is left out whole."""
        if self._scratch is not None:
            for row in rows:
                self._recall(row.item.item_id, self._scratch)
        target = self._scratch or self._store
        with store_errors(self._path):
            target.execute("BEGIN IMMEDIATE")
            try:
                added = [_add(target, row, to_instant(now)) for row in rows]
                target.execute("COMMIT")
            except BaseException:
                if target.in_transaction:
                    target.execute("ROLLBACK")
                raise
        return added

    def _recall(self, item_id: str, scratch: sqlite3.Connection) -> None:
        """Bring what the store has of an item into the scratch database, unless it is there."""
        if scratch.execute("SELECT 1 FROM label_items WHERE item_id = ?", (item_id,)).fetchone() is not None:
            return
        item = self._store.execute(_FIND_ITEM, (item_id,)).fetchone()
        if item is None:
            return
        number = scratch.execute(_NEW_ITEM, item[:-1]).lastrowid
        labels = self._store.execute(_LABELS_OF, item[-1:])
        scratch.executemany(_NEW_LABEL, ((number, *label) for label in labels))


_ITEM = "item_id, group_id, source, content, tags, extra"
_LABEL = "model_id, score, kind, judge, judged_at, routing_version, inclusion_probability, usage, answer"
_FIND_ITEM = f"SELECT {_ITEM}, id FROM label_items WHERE item_id = ?"  # noqa: S608 - the names above
_LABELS_OF = f"SELECT {_LABEL}, digest, created_at FROM quality_labels WHERE item = ?"  # noqa: S608 - the names above
_NEW_ITEM = f"INSERT INTO label_items ({_ITEM}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608 - the names above
_NEW_LABEL = f"""
    INSERT INTO quality_labels (item, {_LABEL}, digest, created_at) VALUES ({", ".join("?" * 12)})
    ON CONFLICT (digest) DO NOTHING
"""  # noqa: S608 - the names above
_FILL = "UPDATE label_items SET group_id = ?, source = ?, content = ?, tags = ?, extra = ? WHERE id = ?"
_SAID = ("group", "source", "content", "tags", "extra")


def _add(connection: sqlite3.Connection, row: LabelRow, created_at: str) -> Added:
    number, conflict = _item_number(connection, row.item)
    if conflict is not None:
        return Added(conflict=conflict)
    new = 0
    for label in row.labels:
        new += connection.execute(
            _NEW_LABEL,
            (
                number,
                label.model_id,
                label.score,
                label.kind,
                label.judge,
                label.judged_at,
                label.routing_version,
                label.inclusion_probability,
                label.usage,
                label.answer,
                label.digest(row.item.item_id),
                created_at,
            ),
        ).rowcount
    return Added(new, len(row.labels) - new)


def _item_number(connection: sqlite3.Connection, item: Item) -> tuple[int, str | None]:
    """The item's row, made or filled in; or what it contradicts."""
    said = (item.group, item.source, item.content, item.tags, item.extra)
    found = connection.execute(_FIND_ITEM, (item.item_id,)).fetchone()
    if found is None:
        number = connection.execute(_NEW_ITEM, (item.item_id, *said)).lastrowid
        assert number is not None
        return number, None
    known, number = found[1:-1], found[-1]
    for name, before, now in zip(_SAID, known, said, strict=True):
        # An empty one was deleted together with the sample it came from, and stays so.
        if before and now is not None and before != now:
            what = "the prompt or the messages" if name == "content" else name
            return 0, f"item {item.item_id!r} is known already, and {what} was another; give it another id"
    merged = tuple(now if before is None else before for before, now in zip(known, said, strict=True))
    if merged != known:
        connection.execute(_FILL, (*merged, number))
    return number, None


def rows_of(
    path: Path,
    wanted: LabelFilter,
    *,
    content_of: Callable[[str], Mapping[str, Any] | None] = lambda _: None,
    at_once: int = 200,
) -> Iterator[dict[str, Any]]:
    """The items that have such labels, with the latest one of each model, as JSON objects; `at_once` in memory.

    Args:
        content_of: asked by its id for the prompt of an item that has none of its own.
    """
    where, values = wanted.where()
    after = 0
    while True:
        with reading(path) as connection:
            items = connection.execute(
                f"SELECT id, {_ITEM} FROM label_items WHERE id > ? ORDER BY id LIMIT ?",  # noqa: S608
                (after, at_once),
            ).fetchall()
            if not items:
                return
            labels = connection.execute(
                f"SELECT item, {_LABEL} FROM quality_labels WHERE item BETWEEN ? AND ? AND {where} ORDER BY id",  # noqa: S608
                (items[0][0], items[-1][0], *values),
            ).fetchall()
        after = items[-1][0]
        latest: dict[int, dict[str, Label]] = {}
        for number, *said in labels:
            label = Label(*said)
            latest.setdefault(number, {})[label.model_id] = label
        for number, *said in items:
            if number in latest:
                item = Item(*said)
                content = content_of(item.item_id) if item.content is None else None
                yield write_row(item, list(latest[number].values()), content)


@value
class ListedLabel:
    """One label, as `labels list` shows it."""

    item_id: str
    group: str | None
    source: str | None
    model_id: str
    score: float
    kind: str
    judge: str | None
    judged_at: str | None
    routing_version: int | None
    inclusion_probability: float | None
    created_at: str


def list_labels(path: Path, wanted: LabelFilter, limit: int) -> list[ListedLabel]:
    """The labels that came in last, newest first."""
    where, values = wanted.where()
    columns = (
        "item_id, group_id, source, model_id, score, kind, judge, judged_at, routing_version, inclusion_probability,"
        " created_at"
    )
    with reading(path) as connection:
        rows = connection.execute(
            f"SELECT {columns} FROM labels WHERE {where} ORDER BY id DESC LIMIT ?",  # noqa: S608
            (*values, limit),
        ).fetchall()
    return [ListedLabel(*row) for row in rows]


@value
class ModelStats:
    """What the labels of one model, kind and judge come to."""

    model_id: str
    kind: str
    judge: str | None
    labels: int
    items: int
    mean_score: float
    first: str
    last: str


def label_stats(path: Path, wanted: LabelFilter) -> list[ModelStats]:
    """By model, kind and judge; every label counts, also of an item that was judged again."""
    where, values = wanted.where()
    when = "coalesce(judged_at, created_at)"
    query = (
        f"SELECT model_id, kind, judge, count(*), count(DISTINCT item), avg(score), min({when}), max({when})"  # noqa: S608
        f" FROM quality_labels WHERE {where} GROUP BY model_id, kind, judge ORDER BY model_id, kind, judge"
    )
    with reading(path) as connection:
        return [ModelStats(*row) for row in connection.execute(query, values).fetchall()]
