"""The local end of shipping: entries of the SQLite file that wait for the server, oldest first."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import orjson

from llmrouter.database import reading, writing
from llmrouter.ledger.entries import ATTEMPT_COLUMNS, ENTRY_COLUMNS
from llmrouter.types import value

__all__ = ["ATTEMPTS", "ENTRIES", "Batch", "Spool", "mended"]

ENTRIES = ENTRY_COLUMNS[1:]
"""Columns of an entry on the server: all but the number, which only its own file knows."""
ATTEMPTS = ("request_id", "ts", *ATTEMPT_COLUMNS[1:])

_FORGOTTEN_AT_ONCE = 100
"""Entries deleted in one transaction; the ledger's writer waits a few milliseconds for it at most."""

_ENTRIES_SQL = f"SELECT {', '.join(ENTRY_COLUMNS)} FROM ledger WHERE id > ? ORDER BY id LIMIT ?"  # noqa: S608 - own text
_ATTEMPTS_SQL = f"""
    SELECT entry_id, ledger.request_id, ledger.ts, {", ".join(f"attempts.{name}" for name in ATTEMPT_COLUMNS[1:])}
    FROM ledger JOIN attempts ON entry_id = ledger.id WHERE ledger.id BETWEEN ? AND ? ORDER BY entry_id, seq
"""  # noqa: S608 - own text
_PRICE_ID = ATTEMPTS.index("price_id")
_TAGS = ENTRY_COLUMNS.index("tags")


@value
class Batch:
    """Some entries in the order of their numbers, with their attempts; each row is led by the number of its entry."""

    entries: Sequence[tuple[Any, ...]]
    attempts: Sequence[tuple[Any, ...]]

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def last_id(self) -> int:
        return int(self.entries[-1][0])

    @property
    def last_request_id(self) -> str:
        return mended(str(self.entries[-1][1]))

    @property
    def days(self) -> set[str]:
        """The days of the entries, as `YYYY-MM-DD`."""
        return {entry[2][:10] for entry in self.entries}

    @property
    def price_ids(self) -> set[str]:
        return {attempt[1 + _PRICE_ID] for attempt in self.attempts}

    def halves(self) -> tuple[Self, Self]:
        middle = len(self.entries) // 2
        border = self.entries[middle][0]
        return (
            type(self)(self.entries[:middle], [row for row in self.attempts if row[0] < border]),
            type(self)(self.entries[middle:], [row for row in self.attempts if row[0] >= border]),
        )

    def without(self, ids: set[int]) -> Self:
        return type(self)(
            [row for row in self.entries if row[0] not in ids], [row for row in self.attempts if row[0] not in ids]
        )

    def mended(self) -> Self:
        """The batch with what PostgreSQL's text cannot hold replaced."""
        return type(self)([_mended_entry(row) for row in self.entries], [_mended_row(row) for row in self.attempts])


def mended(text: str) -> str:
    """A text without NUL, which SQLite holds and PostgreSQL does not."""
    return text.replace("\0", "\ufffd")


def _mended_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(mended(each) if isinstance(each, str) else each for each in row)


def _mended_entry(row: tuple[Any, ...]) -> tuple[Any, ...]:
    tags = {mended(name): mended(text) for name, text in orjson.loads(row[_TAGS]).items()}
    return _mended_row((*row[:_TAGS], orjson.dumps(tags).decode(), *row[_TAGS + 1 :]))


class Spool:
    """The ledger of a migrated SQLite file, read and emptied while others write it. All methods raise
    `StoreUnavailable` when the file cannot be used.

    The entry that was shipped last stays until the next one is: numbers of entries then never start anew, and whoever
    finds another entry under its number knows that the file is not the one that was shipped from.
    """

    def __init__(self, path: Path, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._path = path
        self._sleep = sleep

    def name(self) -> str:
        """By what the server knows this file; made at first use and kept in the file."""
        with reading(self._path) as connection:
            known = spool_name(connection)
        if known is None:
            with writing(self._path) as connection:
                connection.execute("INSERT OR IGNORE INTO spool VALUES (1, ?)", (secrets.token_hex(16),))
                known = spool_name(connection)
        assert known is not None
        return known

    def backlog(self) -> int:
        """Entries in the file, the one that stays included."""
        with reading(self._path) as connection:
            (count,) = connection.execute("SELECT count(*) FROM ledger").fetchone()
        return int(count)

    def request_id_of(self, entry_id: int) -> str | None:
        """Whose number that is, as the server knows it; None when nobody's."""
        with reading(self._path) as connection:
            row = connection.execute("SELECT request_id FROM ledger WHERE id = ?", (entry_id,)).fetchone()
        return None if row is None else mended(row[0])

    def after(self, entry_id: int, limit: int) -> Batch:
        """The next entries behind a number."""
        with reading(self._path) as connection:
            entries = connection.execute(_ENTRIES_SQL, (entry_id, limit)).fetchall()
            bounds = (entries[0][0], entries[-1][0]) if entries else (0, 0)
            attempts = connection.execute(_ATTEMPTS_SQL, bounds).fetchall() if entries else []
        return Batch(entries, attempts)

    def forget(self, entry_ids: Sequence[int]) -> None:
        """Delete entries with their attempts; a repeat is harmless.

        Several short transactions, with pauses of the same length: SQLite lets those who wait for its lock try only now
        and then, so without a pause the writer of the ledger would hardly ever get it.
        """
        query = "DELETE FROM ledger WHERE id IN (SELECT value FROM json_each(?))"
        for start in range(0, len(entry_ids), _FORGOTTEN_AT_ONCE):
            began = time.perf_counter()
            some = orjson.dumps(entry_ids[start : start + _FORGOTTEN_AT_ONCE]).decode()
            with writing(self._path) as connection:
                connection.execute(query, (some,))
            if start + _FORGOTTEN_AT_ONCE < len(entry_ids):
                self._sleep(time.perf_counter() - began)

    def prices(self) -> list[tuple[str, str, str]]:
        """The rows of the kept prices."""
        with reading(self._path) as connection:
            return connection.execute("SELECT price_id, price, first_seen FROM prices").fetchall()


def spool_name(connection: sqlite3.Connection) -> str | None:
    """By what the server knows the file of a connection; None while nothing was ever shipped from it."""
    row = connection.execute("SELECT name FROM spool").fetchone()
    return None if row is None else str(row[0])
