"""Moves closed days from the SQLite books into the archive.

For each day: its rows are written to Parquet in chunks, the files are asked for the same totals as the database and
have to give the same answers, the part is committed by one rename (`llmrouter.ledger.archive` says what that means),
and only then are the rows deleted, in small transactions. Death at any point is mended by the next run: what was not
committed is written again, what was committed and not yet deleted is deleted.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from llmrouter.database import open_database, reading, store_errors
from llmrouter.errors import InternalError
from llmrouter.ledger.archive import Archive, ArchivedDay, ArchiveSource, archived_rows
from llmrouter.ledger.duck import duck, file_read, literal
from llmrouter.ledger.entries import ATTEMPT_COLUMNS, ENTRY_COLUMNS
from llmrouter.ledger.transaction import transaction
from llmrouter.ledger.usage import Measure, Question, UsageSource, ask
from llmrouter.ledger.usage_sql import SQLITE, SqlSource
from llmrouter.types import value

if TYPE_CHECKING:
    import duckdb

__all__ = ["Rolled", "archive_days", "archive_entries"]

_CHUNK = 100_000
_DELETED_AT_ONCE = 1000
_PARQUET_TYPES = {"TEXT": "VARCHAR", "INTEGER": "BIGINT", "REAL": "DOUBLE"}

_CALL_COLUMNS = ENTRY_COLUMNS[1:]
_OF_CALL = ("request_id", "ts", "tenant_id", "key_id", "tier", "tags", "latency_class", "user_id")
"""What an attempt's row in the archive says of its call."""
_COLUMNS: dict[Measure, tuple[str, ...]] = {
    "calls": tuple(f"ledger.{name}" for name in _CALL_COLUMNS),
    "attempts": (
        *(f"ledger.{name}" for name in _OF_CALL),
        *(f"attempts.{name}" for name in ATTEMPT_COLUMNS[1:]),
    ),
}


@value
class Rolled:
    """What became of one day."""

    day: date
    entries: int
    """Rows of the ledger that the archive took now; 0 where only a run that had died was finished."""
    deleted: int
    """Rows of the ledger that are gone from the database; their attempts went with them."""


def archive_days(path: Path, before: date) -> Iterator[tuple[date, int]]:
    """The days before a date that have rows in the database, oldest first, with how many entries each has."""
    with reading(path) as connection:
        since = ""
        while True:
            (first,) = connection.execute("SELECT min(ts) FROM ledger WHERE ts >= ?", (since,)).fetchone()
            if first is None or date.fromisoformat(first[:10]) >= before:
                return
            day = date.fromisoformat(first[:10])
            count = "SELECT count(*) FROM ledger WHERE ts >= ? AND ts < ?"
            yield day, connection.execute(count, _bounds(day)).fetchone()[0]
            since = _bounds(day)[1]


def archive_entries(
    path: Path,
    before: date,
    *,
    chunk: int = _CHUNK,
    pause: Callable[[float], None] = time.sleep,
    connect: Callable[[Path], sqlite3.Connection] = open_database,
) -> Iterator[Rolled]:
    """Archive all days before a date, oldest first; each is done when it is given back.

    Memory and temporary disk space are bounded by `chunk` rows. Between deletions it pauses for as long as they took,
    so that those who book calls get at least half of the time.

    Raises:
        StoreUnavailable: the database or the archive failed, or another process is changing the archive. Days before
            it are done, and the next run goes on.
        UsageError: DuckDB is not installed.
        InternalError: what was written is not what the database holds; nothing of that day was deleted.
    """
    archive = Archive.of(path)
    with duck(str(archive)) as engine, archive.locked():
        for day, _ in list(archive_days(path, before)):
            forget = _Forgetting(path, engine, pause, connect)
            deleted = forget.day(_archived(archive, day))
            entries = _write(path, archive, engine, day, chunk)
            if entries:
                deleted += forget.day(_archived(archive, day))
            yield Rolled(day, entries, deleted)


def _archived(archive: Archive, day: date) -> list[ArchivedDay]:
    return archive.days(day, day + timedelta(days=1))


def _write(path: Path, archive: Archive, engine: duckdb.DuckDBPyConnection, day: date, chunk: int) -> int:
    """Commit a part with all rows that the database has of a day; returns how many entries."""
    folder = archive.begin(day)
    try:
        with reading(path) as connection:
            found = {measure: _copy(connection, engine, folder, measure, day, chunk) for measure in _COLUMNS}
            if not found["calls"]:
                return 0
            part = ArchivedDay(day, (folder,))
            _compare(day, SqlSource(connection, SQLITE), ArchiveSource(engine, [part]))
        archive.commit(folder, day)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found["calls"]


def _copy(
    connection: sqlite3.Connection,
    engine: duckdb.DuckDBPyConnection,
    folder: Path,
    measure: Measure,
    day: date,
    chunk: int,
) -> int:
    """Write the rows of one measure to files of at most `chunk` rows; returns how many there are."""
    columns = _COLUMNS[measure]
    names = [column.partition(".")[2] for column in columns]
    query = f"SELECT {', '.join(columns)} FROM {SQLITE.tables[measure]} WHERE ledger.ts >= ? AND ledger.ts < ?"  # noqa: S608 - own text
    types = _types(connection, columns)
    rows = connection.execute(query, _bounds(day))
    count = 0
    while written := _write_lines(folder / "rows.json", rows, names, chunk):
        target = folder / f"{measure}-{count // chunk:06}.parquet"
        engine.execute(
            f"COPY (SELECT * REPLACE (CAST(ts AS TIMESTAMP) AS ts) FROM read_json("  # noqa: S608 - own text
            f"{file_read(folder / 'rows.json')}, format = 'newline_delimited', columns = {types}))"
            f" TO {literal(str(target))} (FORMAT parquet, COMPRESSION zstd)"
        )
        (folder / "rows.json").unlink()
        count += written
    return count


def _write_lines(path: Path, rows: sqlite3.Cursor, names: Sequence[str], most: int) -> int:
    count = 0
    with path.open("wb") as lines:
        while count < most and (some := rows.fetchmany(min(1000, most - count))):
            lines.write(b"".join(orjson.dumps(dict(zip(names, row, strict=True))) + b"\n" for row in some))
            count += len(some)
    if not count:
        path.unlink()
    return count


def _types(connection: sqlite3.Connection, columns: Sequence[str]) -> str:
    """The columns with DuckDB's names of their types, as it reads them."""
    declared = {
        f"{table}.{name}": kind
        for table in ("ledger", "attempts")
        for _, name, kind, *_ in connection.execute(f"PRAGMA table_info({table})")
    }
    pairs = (f"{literal(each.partition('.')[2])}: {literal(_PARQUET_TYPES[declared[each]])}" for each in columns)
    return f"{{{', '.join(pairs)}}}"


def _compare(day: date, database: UsageSource, part: UsageSource) -> None:
    for measure in _COLUMNS:
        question = Question(measure, ("tenant", "model"), day, day + timedelta(days=1), most=10_000_000)
        if ask([database], question).groups != ask([part], question).groups:
            raise InternalError(
                f"the archive of {day} does not add up to the database's {measure}; nothing was deleted"
            )


class _Forgetting:
    """Deletes rows that the archive has."""

    def __init__(
        self,
        path: Path,
        engine: duckdb.DuckDBPyConnection,
        pause: Callable[[float], None],
        connect: Callable[[Path], sqlite3.Connection],
    ) -> None:
        self._path = path
        self._engine = engine
        self._pause = pause
        self._connect = connect

    def day(self, days: Sequence[ArchivedDay]) -> int:
        """Delete the rows of archived days; returns how many entries went."""
        gone = 0
        if not days:
            return gone
        with store_errors(self._path), closing(self._connect(self._path)) as connection:
            for rows in archived_rows(self._engine, connection, days):
                for start in range(0, len(rows), _DELETED_AT_ONCE):
                    gone += self._delete(connection, rows[start : start + _DELETED_AT_ONCE])
        return gone

    def _delete(self, connection: sqlite3.Connection, rows: Sequence[tuple[int, str]]) -> int:
        began = time.monotonic()
        # Not by number: it may have been given to a new entry since it was read.
        request_ids = orjson.dumps([request_id for _, request_id in rows]).decode()
        with transaction(connection):
            gone = connection.execute(_DELETE, (request_ids,)).rowcount
        self._pause(time.monotonic() - began)
        return gone


_DELETE = "DELETE FROM ledger WHERE request_id IN (SELECT value FROM json_each(?))"


def _bounds(day: date) -> tuple[str, str]:
    return f"{day}T00:00:00.000000Z", f"{day + timedelta(days=1)}T00:00:00.000000Z"
