"""Retention in bounded steps."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from llmrouter.database import migrate, open_database, reading, writing
from llmrouter.errors import StoreUnavailable
from llmrouter.ledger.append import append
from llmrouter.ledger.prune import prune
from llmrouter.ledger.queries import recent_entries
from tests.ledger.books import NOON, attempt, entry


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "llmrouter.db"
    migrate(path)
    return path


def fill(database: Path, count: int) -> None:
    """Entries an hour apart, the first at noon, each with two attempts."""
    with closing(open_database(database)) as connection:
        made = [
            entry(f"r{number}", ts=NOON + timedelta(hours=number), attempts=(attempt(0), attempt(1)))
            for number in range(count)
        ]
        append(connection, made)


def attempts(database: Path) -> int:
    with reading(database) as connection:
        (count,) = connection.execute("SELECT count(*) FROM attempts").fetchone()
    return int(count)


def test_entries_before_the_moment_go_with_their_attempts_and_no_others(database):
    fill(database, 10)
    assert prune(database, NOON + timedelta(hours=7), batch=3, pause=lambda _: None) == 7
    assert {found.request_id for found in recent_entries(database, 100)} == {"r7", "r8", "r9"}
    assert attempts(database) == 6
    assert prune(database, NOON + timedelta(hours=7), pause=lambda _: None) == 0


@pytest.mark.parametrize(("count", "pauses"), [(0, 0), (2, 0), (3, 1), (7, 2)])
def test_others_get_a_turn_after_each_full_batch(database, count, pauses):
    fill(database, count)
    turns: list[int] = []

    def turn(_seconds: float) -> None:
        with writing(database):  # would fail if the lock were held
            turns.append(len(recent_entries(database, 100)))

    assert prune(database, NOON + timedelta(days=9), batch=3, pause=turn) == count
    assert turns == [count - 3 * done for done in range(1, pauses + 1)]


def test_a_new_entry_after_everything_went_is_read_back(database):
    fill(database, 3)
    prune(database, NOON + timedelta(days=9), pause=lambda _: None)
    with closing(open_database(database)) as connection:
        append(connection, [entry("new")])
    assert recent_entries(database, 10) == [entry("new")]


def test_what_went_before_a_failure_stays_gone(database):
    fill(database, 9)

    def break_it(_seconds: float) -> None:
        blocker.execute("BEGIN IMMEDIATE")

    impatient = partial(open_database, busy_timeout_s=0.01)
    with closing(sqlite3.connect(database, isolation_level=None)) as blocker:
        with pytest.raises(StoreUnavailable, match="locked"):
            prune(database, NOON + timedelta(days=9), batch=4, pause=break_it, connect=impatient)
        blocker.execute("ROLLBACK")
    assert len(recent_entries(database, 100)) == 5


FILL = """
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
    INSERT INTO ledger SELECT n, 'r' || n, '2026-01-01T00:00:00.000000Z', 'acme', 'k1', 'chat', 'auto', 'small',
        'rules', 'rule:code', 'code', 7, 3, 'code', '{}', 1, 200, 'stop', NULL, 0, 1500, 900, 0, 400, 0, 0, 450000000,
        'large', 6150000000, 0.001, 0.2, 4.2, 'standard', NULL, NULL, '', NULL, ''
    FROM numbers
"""

MEASURED = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from llmrouter.ledger.prune import prune

def resident():
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])

before = resident()
gone = prune(Path(sys.argv[1]), datetime(2026, 6, 1, tzinfo=UTC), pause=lambda _: None)
print(gone, resident() - before)
"""


@pytest.mark.process
def test_g107_a_million_rows_go_in_bounded_memory(database):
    with writing(database) as connection:
        connection.execute(FILL, (1_000_000,))
    shown = subprocess.check_output([sys.executable, "-c", MEASURED, str(database)], text=True)
    gone, grown_kb = map(int, shown.split())
    assert gone == 1_000_000
    assert grown_kb < 50_000
