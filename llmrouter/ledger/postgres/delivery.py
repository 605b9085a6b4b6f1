"""One batch from the spool to the server: there once and whole, or still here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from llmrouter.ledger.postgres.partitions import days_ahead, make_partitions
from llmrouter.ledger.postgres.spool import ATTEMPTS, ENTRIES, Batch, Spool
from llmrouter.postgres import Postgres

if TYPE_CHECKING:
    import psycopg

__all__ = ["Delivery"]

_log = logging.getLogger(__name__)


def _now() -> datetime:
    return datetime.now(UTC)


class Delivery:
    """Ships what a spool holds, oldest first, over one kept connection. For one thread.

    A batch goes into staging tables by COPY, then the entries that the server does not have yet move into the books
    together with their attempts, and the mark of this spool moves behind them: one transaction. Only then is the batch
    deleted here. Death at any point in between ships it again, and the server takes no entry twice.

    A row that the server will not hold, whatever it is (a value out of range, a check), is found by halving its batch
    and set aside: it stays in the spool, `spool_refused` on the server says why, and the others go on.
    """

    def __init__(
        self, spool: Spool, database: Postgres, *, most: int = 2000, now: Callable[[], datetime] = _now
    ) -> None:
        self._spool = spool
        self._database = database
        self._most = most
        self._now = now
        self._connection: psycopg.Connection[Any] | None = None
        self._name = ""
        self._days: set[date] = set()
        self._prices: set[str] = set()
        self._refused: set[int] = set()
        self._after = 0
        self._mark: tuple[int, str] | None = None
        self._kept: int | None = None
        self.shipped = 0
        """Entries that the server did not have before."""

    @property
    def refused(self) -> int:
        """Entries that were set aside and are still in the spool."""
        return len(self._refused)

    def ship_once(self) -> int:
        """Ship the next batch; returns how many entries it dealt with, 0 when nothing waits.

        Raises:
            StoreUnavailable: the server or the file cannot be used; nothing is lost, and asking again goes on.
        """
        try:
            with self._database.errors():
                return self._next()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the connection back; the next `ship_once` opens one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _next(self) -> int:
        connection = self._open()
        if self._set_back():
            self._begin(connection)
        ahead = set(days_ahead(self._now().date())) - self._days
        if ahead:
            self._make(connection, ahead)
        read = self._spool.after(self._after, self._most)
        if not read:
            return 0
        batch = read.without(self._refused) if self._refused else read
        if batch:
            self._send(connection, batch)
        self._after = read.last_id
        return len(read)

    def _open(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            self._connection = self._database.connect(statement_timeout_s=60)
            for table, staged in (("ledger", "staged_ledger"), ("attempts", "staged_attempts")):
                self._connection.execute(f"CREATE TEMP TABLE {staged} (LIKE {table}) ON COMMIT DELETE ROWS".encode())
            self._days.clear()
            self._begin(self._connection)
        return self._connection

    def _begin(self, connection: psycopg.Connection[Any]) -> None:
        """Start from the oldest entry of the spool, as far as the server knows it."""
        self._name = self._spool.name()
        self._after, self._kept = 0, None
        row = connection.execute(
            "SELECT last_id, last_request_id FROM spools WHERE name = %s", (self._name,)
        ).fetchone()
        self._mark = None if row is None else (row[0], row[1])
        if self._set_back():
            _log.warning("the spool is not the file that was shipped from before; it is shipped from its beginning")
            connection.execute("DELETE FROM spools WHERE name = %s", (self._name,))
            self._mark = None
        refused = connection.execute("SELECT entry_id FROM spool_refused WHERE name = %s", (self._name,))
        self._refused = {entry_id for (entry_id,) in refused}

    def _set_back(self) -> bool:
        """Whether the entry shipped last is missing here: the file was restored, replaced or pruned."""
        return self._mark is not None and self._spool.request_id_of(self._mark[0]) != self._mark[1]

    def _send(self, connection: psycopg.Connection[Any], batch: Batch) -> None:
        """Ship a batch; where a row of it is at fault, all others."""
        try:
            self._transfer(connection, batch)
        except Exception as error:
            if not _row_is_at_fault(error):
                raise
            if len(batch) > 1:
                for half in batch.halves():
                    self._send(connection, half)
            else:
                self._send_mended(connection, batch)
        else:
            self._forget(batch)

    def _send_mended(self, connection: psycopg.Connection[Any], batch: Batch) -> None:
        """Ship an entry with what text cannot hold replaced, or set it aside."""
        try:
            self._transfer(connection, batch.mended())
        except Exception as error:
            if not _row_is_at_fault(error):
                raise
            self._refuse(connection, batch, _reason(error))
        else:
            self._forget(batch)

    def _transfer(self, connection: psycopg.Connection[Any], batch: Batch) -> None:
        """One transaction: all of it is in the books, or nothing and an exception."""
        missing = {date.fromisoformat(day) for day in batch.days} - self._days
        if missing:
            self._make(connection, missing)
        try:
            self._move(connection, batch)
        except Exception as error:
            if not _partition_is_missing(error):
                raise
            self._days.clear()
            self._make(connection, {date.fromisoformat(day) for day in batch.days})
            self._move(connection, batch)

    def _make(self, connection: psycopg.Connection[Any], days: set[date]) -> None:
        make_partitions(connection, days)
        self._days |= days

    def _move(self, connection: psycopg.Connection[Any], batch: Batch) -> None:
        prices = [] if batch.price_ids <= self._prices else self._spool.prices()
        with connection.transaction(), connection.cursor() as cursor:
            cursor.executemany("INSERT INTO prices VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", prices)
            for copy_sql, rows in ((_COPY_ENTRIES, batch.entries), (_COPY_ATTEMPTS, batch.attempts)):
                with cursor.copy(copy_sql) as copy:
                    for row in rows:
                        copy.write_row(row[1:])
            moved = cursor.execute(_MOVE).fetchone()
            mark = self._marked(connection, batch)
        self._mark = mark
        self._prices |= batch.price_ids
        self.shipped += moved[0] if moved else 0

    def _marked(self, connection: psycopg.Connection[Any], batch: Batch) -> tuple[int, str]:
        """Move the mark behind a batch; a batch that is shipped again leaves it where it is."""
        mark = (batch.last_id, batch.last_request_id)
        connection.execute(_MARK, (self._name, *mark))
        return mark if self._mark is None else max(self._mark, mark)

    def _forget(self, batch: Batch) -> None:
        """Delete a shipped batch here, all but its last entry; of the batch before, that one."""
        kept = [] if self._kept is None else [self._kept]
        self._spool.forget(kept + [entry[0] for entry in batch.entries[:-1]])
        self._kept = batch.last_id

    def _refuse(self, connection: psycopg.Connection[Any], batch: Batch, reason: str) -> None:
        with connection.transaction():
            self._mark = self._marked(connection, batch)
            connection.execute(
                "INSERT INTO spool_refused VALUES (%s, %s, %s, now()) ON CONFLICT DO NOTHING",
                (self._name, batch.last_id, reason),
            )
        self._refused.add(batch.last_id)
        _log.error(
            "%s refuses the ledger entry %s, which stays in the spool: %s",
            self._database.name,
            batch.last_request_id,
            reason,
        )


def _row_is_at_fault(error: Exception) -> bool:
    """Whether a value is to blame (SQLSTATE classes 22, 23 and 54), not the server or the schema."""
    if isinstance(error, ValueError | OverflowError):
        return True
    return str(getattr(error, "sqlstate", None) or _state_of_driver(error)).startswith(("22", "23", "54"))


def _state_of_driver(error: Exception) -> str:
    # What psycopg itself finds wrong with a value before the server sees it has no SQLSTATE.
    from psycopg import DataError

    return "22000" if isinstance(error, DataError) else ""


def _partition_is_missing(error: Exception) -> bool:
    from psycopg.errors import CheckViolation

    return isinstance(error, CheckViolation) and error.diag.constraint_name is None


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__).replace("\0", "\ufffd")[:500]


def _columns(names: Sequence[str]) -> str:
    return ", ".join(names)


_COPY_ENTRIES = f"COPY staged_ledger ({_columns(ENTRIES)}) FROM STDIN".encode()
_COPY_ATTEMPTS = f"COPY staged_attempts ({_columns(ATTEMPTS)}) FROM STDIN".encode()
_MOVE = f"""
    WITH new AS (
        INSERT INTO ledger ({_columns(ENTRIES)}) SELECT {_columns(ENTRIES)} FROM staged_ledger
        ON CONFLICT DO NOTHING RETURNING request_id, ts
    ), tried AS (
        INSERT INTO attempts ({_columns(ATTEMPTS)})
        SELECT {_columns(ATTEMPTS)} FROM staged_attempts JOIN new USING (request_id, ts)
    ) SELECT count(*) FROM new
""".encode()  # noqa: S608 - own text
_MARK = """
    INSERT INTO spools VALUES (%s, %s, %s, now()) ON CONFLICT (name) DO UPDATE
    SET last_id = excluded.last_id, last_request_id = excluded.last_request_id, shipped_at = excluded.shipped_at
    WHERE spools.last_id < excluded.last_id
"""
