"""The write-ahead log is copied to its end however busy several processes keep it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from llmrouter.database import migrate, open_database
from llmrouter.ledger.checkpoint import merge

PATIENCE_S = 5.0


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "llmrouter.db"
    migrate(path)
    return path


def busy(path: Path) -> sqlite3.Connection:
    connection = open_database(path, busy_timeout_s=0)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def commit(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE change_counters SET value = value + 1")


def left(connection: sqlite3.Connection) -> int:
    """Pages of the log that are not copied, as another process's next commit finds it."""
    _, pages, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return int(pages - copied)


class Watched(sqlite3.Connection):
    """Copies only while another process can read but not commit."""

    other: sqlite3.Connection
    copies = 0

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        if "wal_checkpoint" in sql:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                commit(self.other)
            self.copies += 1
        return super().execute(sql, parameters)


def test_a_long_log_is_copied_to_its_end_while_nobody_can_commit(database):
    """The first copy is overtaken, here by a reader; without the second, the log would never be begun anew."""
    with closing(busy(database)) as own, closing(busy(database)) as other, closing(busy(database)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM change_counters").fetchall()
        commit(other)
        opened: list[Watched] = []

        def connect() -> sqlite3.Connection:
            reader.rollback()
            second = sqlite3.connect(database, isolation_level=None, factory=Watched)
            second.other = other
            opened.append(second)
            return second

        merge(own, connect, PATIENCE_S, long_bytes=0)
        assert [each.copies for each in opened] == [1]
        commit(other)
        (_, pages, _) = own.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        assert pages == 1


def test_a_reader_of_a_long_log_holds_nobody_up(database):
    with closing(busy(database)) as own, closing(busy(database)) as other, closing(busy(database)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM change_counters").fetchall()
        commit(other)
        merge(own, lambda: busy(database), PATIENCE_S, long_bytes=0)
        commit(other)
        assert left(own) == 2


def test_a_short_log_needs_no_lock(database):
    with closing(busy(database)) as own, closing(busy(database)) as other:
        commit(other)
        other.execute("BEGIN IMMEDIATE")
        merge(own, lambda: pytest.fail("it is short"), 0.0)
        other.execute("COMMIT")
        assert left(own) == 0
