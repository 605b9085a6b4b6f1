"""Closed days of the books as Parquet files: what is there, asked and dropped whole.

`DATABASE.archive/day=YYYY-MM-DD/part=NNNNNN/` holds `calls-*.parquet`, the rows of the ledger, and
`attempts-*.parquet`, those of its attempts, each with what it needs of its call. A part appears whole, by one rename,
and never changes; a day has several when calls of it ended after it was archived. From that rename on its rows count
here, and rows that are still in the database as well count no more (`archived_rows`). So no report sees a row twice or
misses one, whenever an archiving process dies, and even when the database is restored from an older copy.

Columns are those of the SQLite file, with `ts` as a TIMESTAMP in UTC.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from llmrouter.errors import StoreUnavailable
from llmrouter.ledger.duck import file_read
from llmrouter.ledger.usage import Measure, Question
from llmrouter.ledger.usage_sql import Dialect, SqlSource
from llmrouter.types import value

if TYPE_CHECKING:
    import duckdb

    from llmrouter.ledger.usage import Group

__all__ = ["Archive", "ArchiveSource", "ArchivedDay", "archived_rows", "parquet"]

_DAY, _PART = "day=", "part="
_DROPPED, _WRITING = ".dropped-", ".writing-"
_AT_ONCE = 50_000


@value
class ArchivedDay:
    """One day of the archive."""

    day: date
    parts: tuple[Path, ...]

    def files(self, measure: Measure) -> list[Path]:
        return [file for part in self.parts for file in sorted(part.glob(f"{measure}-*.parquet"))]

    def size_bytes(self) -> int:
        return sum(file.stat().st_size for measure in ("calls", "attempts") for file in self.files(measure))


class Archive:
    """The archive of a database. All methods raise `StoreUnavailable` when its folder cannot be used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, database: Path) -> Archive:
        """The one that belongs to a database, whether or not there is one yet."""
        return cls(database.with_name(f"{database.name}.archive"))

    def __str__(self) -> str:
        return f"the archive {self.folder.name}"

    def days(self, since: date | None = None, until: date | None = None) -> list[ArchivedDay]:
        """The days that it holds, oldest first, from `since` up to, not including, `until`."""
        with self._errors():
            named = sorted(self.folder.glob(f"{_DAY}*")) if self.folder.is_dir() else []
            days = [ArchivedDay(self._day_of(folder), _parts(folder)) for folder in named]
        return [
            each
            for each in days
            if each.parts and (since is None or each.day >= since) and (until is None or each.day < until)
        ]

    def drop(self, before: date) -> list[date]:
        """Drop all days before a date, oldest first; returns them. Each goes whole, by one rename."""
        dropped = []
        with self._errors():
            for each in self.days(until=before):
                gone = self.folder / f"{_DROPPED}{each.day.isoformat()}"
                shutil.rmtree(gone, ignore_errors=True)
                (self.folder / f"{_DAY}{each.day.isoformat()}").rename(gone)
                sync(self.folder)
                shutil.rmtree(gone)
                dropped.append(each.day)
        return dropped

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among those who change the archive, which is made if there is none; leftovers of dead ones go.

        Raises:
            StoreUnavailable: another process is changing it.
        """
        with self._errors(), contextlib.ExitStack() as stack:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            lock = os.open(self.folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreUnavailable(f"{self} is being changed by another process; try again later") from None
            for left in [*self.folder.glob(f"{_WRITING}*"), *self.folder.glob(f"{_DROPPED}*")]:
                shutil.rmtree(left)
            yield

    def begin(self, day: date) -> Path:
        """An empty folder for the files of a part; nobody reads it until `commit`. Call it inside `locked`."""
        with self._errors():
            folder = self.folder / f"{_WRITING}{day.isoformat()}"
            folder.mkdir(mode=0o700)
        return folder

    def commit(self, folder: Path, day: date) -> None:
        """Make a part of what `begin` gave and has been filled: durable, and from now on what counts."""
        with self._errors():
            for file in folder.iterdir():
                file.chmod(0o600)
                sync(file)
            sync(folder)
            home = self.folder / f"{_DAY}{day.isoformat()}"
            home.mkdir(mode=0o700, exist_ok=True)
            sync(self.folder)
            numbers = [int(part.name[len(_PART) :]) for part in _parts(home)]
            folder.rename(home / f"{_PART}{max(numbers, default=0) + 1:06}")
            sync(home)

    def _day_of(self, folder: Path) -> date:
        try:
            return date.fromisoformat(folder.name.removeprefix(_DAY))
        except ValueError:
            raise StoreUnavailable(
                f"{self} holds a folder {folder.name} that is none of its own; move it away"
            ) from None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise StoreUnavailable(f"{self} was changed while it was read; ask again") from error
        except OSError as error:
            raise StoreUnavailable(f"{self} cannot be used: {error}") from error


class ArchiveSource:
    """`UsageSource` over some days of an archive."""

    def __init__(self, engine: duckdb.DuckDBPyConnection, days: Sequence[ArchivedDay]) -> None:
        self._engine = engine
        self._days = days

    def ask(self, question: Question) -> list[Group]:
        days = [each for each in self._days if _within(each.day, question)]
        files = [file for each in days for file in each.files(question.measure)]
        return SqlSource(self._engine, _dialect(files)).ask(question) if files else []


def archived_rows(
    engine: duckdb.DuckDBPyConnection, database: sqlite3.Connection, days: Iterable[ArchivedDay]
) -> Iterator[list[tuple[int, str]]]:
    """Number and request id of those rows of a database that are in the archive as well, in lists of bounded length.

    No cursor stays open in between, so what was given back may be deleted.
    """
    for each in days:
        after = (f"{each.day}T00:00:00.000000Z", 0)
        end = f"{each.day + timedelta(days=1)}T00:00:00.000000Z"
        while rows := database.execute(_NEXT_ROWS, (*after, end, _AT_ONCE)).fetchall():
            after = rows[-1][2], rows[-1][0]
            known = _rows_among(engine, each, [request_id for _, request_id, _ in rows])
            if known:
                yield [(number, request_id) for number, request_id, _ in rows if request_id in known]


_NEXT_ROWS = """
    SELECT id, request_id, ts FROM ledger WHERE (ts, id) > (?, ?) AND ts < ? ORDER BY ts, id LIMIT ?
"""


def _rows_among(engine: duckdb.DuckDBPyConnection, day: ArchivedDay, request_ids: Sequence[str]) -> set[str]:
    """Which calls of a day are in the archive."""
    query = f"""
        SELECT request_id FROM {parquet(day.files("calls"))}
        WHERE request_id IN (SELECT unnest(from_json(?, '["VARCHAR"]')))
    """  # noqa: S608 - paths of ours
    found = engine.execute(query, [orjson.dumps(request_ids).decode()]).fetchall()
    return {request_id for (request_id,) in found}


def parquet(files: Iterable[Path]) -> str:
    """The rows of some files as a table; those of a newer llmrouter may have more columns."""
    names = ", ".join(file_read(file) for file in files)
    return f"read_parquet([{names}], union_by_name = true, hive_partitioning = false)"


def sync(path: Path) -> None:
    """Wait until a file or the entries of a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parts(day: Path) -> tuple[Path, ...]:
    return tuple(sorted(day.glob(f"{_PART}*")))


def _within(day: date, question: Question) -> bool:
    return (question.since is None or day >= question.since) and (question.until is None or day < question.until)


def _dialect(files: Iterable[Path]) -> Dialect:
    rows = parquet(files)
    return Dialect(
        tables={"calls": f"{rows} AS ledger", "attempts": f"{rows} AS attempts"},
        call={"calls": "ledger", "attempts": "attempts"},
        attempt="attempts",
        month="strftime({call}.ts, '%Y-%m')",
        day="strftime({call}.ts, '%Y-%m-%d')",
        hour="strftime({call}.ts, '%Y-%m-%dT%H:00Z')",
        tag="json_extract_string({call}.tags, ?)",
        tag_parameter=_pointer,
        quotient="//",
        instant="CAST(? AS TIMESTAMP)",
    )


def _pointer(tag: str) -> str:
    """A tag's name as a JSON pointer."""
    return "/" + tag.replace("~", "~0").replace("/", "~1")
