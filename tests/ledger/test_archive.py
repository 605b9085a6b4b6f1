"""Closed days move to Parquet: nothing is lost or counted twice, whenever the process dies."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path

import pytest

from llmrouter.database import migrate, open_database, reading, writing
from llmrouter.errors import InternalError, StoreUnavailable
from llmrouter.ledger import archiving
from llmrouter.ledger.append import append
from llmrouter.ledger.archive import Archive, parquet
from llmrouter.ledger.archiving import Rolled, archive_days, archive_entries
from llmrouter.ledger.duck import duck
from llmrouter.ledger.queries import recent_entries
from llmrouter.ledger.usage import Question, ask
from llmrouter.ledger.usage_books import usage_sources
from llmrouter.types import LedgerEntry
from tests.ledger.books import NOON, attempt, entry
from tests.ledger.usage_oracle import expected, found

TODAY = NOON.date()
QUESTIONS = [Question("calls", ("day", "tenant")), Question("attempts", ("day", "model"))]


class Died(BaseException):
    """Where a process ends at once."""


def put(path: Path, made: list[LedgerEntry]) -> None:
    migrate(path)
    with closing(open_database(path)) as connection:
        append(connection, made)


def a_few_days(days: int = 3, a_day: int = 7) -> list[LedgerEntry]:
    """Entries of the days before today, the oldest first, and one of today."""
    return [
        entry(
            f"d{day}-{number}",
            ts=NOON - timedelta(days=day, hours=number),
            tenant_id=f"t{number % 2}",
            attempts=(attempt(0), attempt(1, model_id="large")),
        )
        for day in range(days, 0, -1)
        for number in range(a_day)
    ] + [entry("today")]


def roll(path: Path, before: date = TODAY, *, chunk: int = 3) -> list[Rolled]:
    return list(archive_entries(path, before, chunk=chunk, pause=lambda _: None))


def in_file(path: Path) -> set[str]:
    return {found.request_id for found in recent_entries(path, 10_000)}


def holds(path: Path, made: list[LedgerEntry]) -> None:
    """All questions are answered as if everything were in one place."""
    with usage_sources(path) as sources:
        for question in QUESTIONS:
            assert found(ask(sources, question).groups) == expected(made, question)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "llmrouter.db"


def test_closed_days_leave_the_file_and_count_on(path):
    made = a_few_days()
    put(path, made)
    assert roll(path) == [Rolled(TODAY - timedelta(days=day), 7, 7) for day in (3, 2, 1)]
    assert in_file(path) == {"today"}
    holds(path, made)
    assert roll(path) == []


def test_a_folder_may_have_any_name(tmp_path):
    for name in ("it's [a-z] *?", "100% {x}"):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "llmrouter.db"
        made = a_few_days()
        put(path, made)
        roll(path)
        holds(path, made)


def test_days_that_are_not_before_the_date_stay(path):
    put(path, a_few_days())
    assert [rolled.day for rolled in roll(path, TODAY - timedelta(days=2))] == [TODAY - timedelta(days=3)]
    assert dict(archive_days(path, TODAY + timedelta(days=1))) == {
        TODAY - timedelta(days=2): 7,
        TODAY - timedelta(days=1): 7,
        TODAY: 1,
    }


def test_every_column_is_in_the_archive_as_it_was(path):
    odd = entry(
        'r"1\n\\N',
        ts=NOON - timedelta(days=1, microseconds=-123),
        user_id="a\0b\u2028\U0001f600",
        tags={"a/b": "", "ü": '"'},
        finish=None,
        route="cascade",
        score=0.1 + 0.2,
        checks="agreement 2/3 ü",
        queue_s=0.1 + 0.2,
        ttft_s=None,
        total_s=1e-300,
    )
    put(path, [odd])
    with reading(path) as connection:
        call = connection.execute("SELECT * FROM ledger").fetchone()[1:]
        tried = connection.execute("SELECT * FROM attempts").fetchone()[1:]
    roll(path)
    (day,) = Archive.of(path).days()
    with duck("test") as engine:
        kept = engine.execute(
            f"SELECT * REPLACE (strftime(ts, '%Y-%m-%dT%H:%M:%S.%fZ') AS ts) FROM {parquet(day.files('calls'))}"
        )
        assert kept.fetchone() == call
        columns = "seq, model_id, pool_id, replica, role, reason, outcome, status, input_tokens, cached_tokens, "
        columns += "cache_write_tokens, output_tokens, reasoning_tokens, estimated, cost_picousd, price_id, queue_s, "
        columns += "ttft_s, total_s, committed"
        assert engine.execute(f"SELECT {columns} FROM {parquet(day.files('attempts'))}").fetchone() == tried


def test_calls_that_ended_after_their_day_was_archived_become_a_further_part(path):
    made = a_few_days()
    put(path, made)
    roll(path)
    late = entry("late", ts=NOON - timedelta(days=2))
    put(path, [late])
    holds(path, [*made, late])
    assert roll(path) == [Rolled(TODAY - timedelta(days=2), 1, 1)]
    assert [len(day.parts) for day in Archive.of(path).days()] == [1, 2, 1]
    holds(path, [*made, late])


STEPS: list[tuple[str, object]] = [
    ("written", (archiving, "_compare")),
    ("compared", (Archive, "commit")),
    ("committed", (archiving, "_archived")),
    ("half deleted", (archiving._Forgetting, "_delete")),
]


@pytest.mark.parametrize(("step", "where"), STEPS)
@pytest.mark.parametrize("passes", [0, 1, 2])
def test_death_between_two_steps_loses_and_doubles_nothing(path, monkeypatch, step, where, passes):
    """The process ends when it comes to a step for the first, second or third time."""
    made = a_few_days()
    put(path, made)
    monkeypatch.setattr(archiving, "_DELETED_AT_ONCE", 2)
    home, name = where
    with monkeypatch.context() as dying:
        dying.setattr(home, name, _dying(getattr(home, name), passes))
        with pytest.raises(Died):
            roll(path)
    holds(path, made)
    roll(path)
    holds(path, made)
    assert in_file(path) == {"today"}
    assert [len(day.parts) for day in Archive.of(path).days()] == [1, 1, 1]


def _dying(step: Callable[..., object], passes: int) -> Callable[..., object]:
    left = [passes]

    def dies(*arguments: object) -> object:
        if not left[0]:
            raise Died
        left[0] -= 1
        return step(*arguments)

    return dies


KILLED = """
import sys
from datetime import date
from pathlib import Path
from llmrouter.ledger.archiving import archive_entries
print("started", flush=True)
for rolled in archive_entries(Path(sys.argv[1]), date.fromisoformat(sys.argv[2]), chunk=50, pause=lambda _: None):
    print(rolled.day, flush=True)
"""


@pytest.mark.process
def test_kill_9_at_any_moment_loses_and_doubles_nothing(path):
    made = a_few_days(days=12, a_day=40)
    put(path, made)
    for lines in (1, 2, 3, 5, 8):
        command = [sys.executable, "-c", KILLED, str(path), TODAY.isoformat()]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(lines):
                process.stdout.readline()
            process.kill()
        holds(path, made)
    roll(path)
    holds(path, made)
    assert in_file(path) == {"today"}


def test_a_file_restored_from_before_counts_nothing_twice(path, tmp_path):
    made = a_few_days()
    put(path, made)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        source.backup(copy)
    roll(path)
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copy(tmp_path / "copy.db", path)
    holds(path, made)
    assert [(rolled.entries, rolled.deleted) for rolled in roll(path)] == [(0, 7)] * 3
    holds(path, made)


def test_what_does_not_add_up_is_not_deleted(path, monkeypatch):
    made = a_few_days()
    put(path, made)
    monkeypatch.setattr(archiving, "_write_lines", _losing_one(archiving._write_lines))
    with pytest.raises(InternalError, match="does not add up"):
        roll(path)
    assert len(in_file(path)) == len(made)
    assert Archive.of(path).days() == []


def _losing_one(write: Callable[..., int]) -> Callable[..., int]:
    def loses(path: Path, rows: sqlite3.Cursor, names: list[str], most: int) -> int:
        written = write(path, rows, names, most)
        if written > 1:
            path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
        return written

    return loses


def test_two_at_once_are_refused(path):
    put(path, a_few_days())
    with Archive.of(path).locked(), pytest.raises(StoreUnavailable, match="changed by another process"):
        roll(path)


def test_reports_during_a_run_see_every_row_once(path):
    made = a_few_days()
    put(path, made)
    looked = []

    def look(_seconds: float) -> None:
        holds(path, made)
        looked.append(len(in_file(path)))

    list(archive_entries(path, TODAY, pause=look))
    assert looked == [15, 8, 1]


def test_calls_are_booked_while_days_are_archived(path):
    made = a_few_days()
    put(path, made)

    def book(_seconds: float) -> None:
        with writing(path) as connection:  # would fail if the lock were held
            connection.execute("DELETE FROM ledger WHERE FALSE")
        late = entry(f"late{len(made)}", ts=NOON - timedelta(days=3))
        put(path, [late])
        made.append(late)

    list(archive_entries(path, TODAY, pause=book))
    holds(path, made)


def test_the_archive_is_for_its_owner_alone(path):
    put(path, a_few_days())
    roll(path)
    archive = Archive.of(path).folder
    for each in [archive, *archive.rglob("*")]:
        assert each.stat().st_mode & 0o077 == 0, each


def test_days_are_dropped_whole(path):
    made = a_few_days()
    put(path, made)
    roll(path)
    archive = Archive.of(path)
    assert archive.drop(TODAY - timedelta(days=1)) == [TODAY - timedelta(days=3), TODAY - timedelta(days=2)]
    holds(path, [each for each in made if each.ts.date() >= TODAY - timedelta(days=1)])
    assert not list(archive.folder.glob(".d*"))


@pytest.mark.parametrize("damage", ["truncated", "foreign"])
def test_a_damaged_archive_is_named(path, damage):
    put(path, a_few_days())
    roll(path)
    day = Archive.of(path).days()[0]
    if damage == "truncated":
        file = day.files("calls")[0]
        file.write_bytes(file.read_bytes()[:100])
    else:
        (Archive.of(path).folder / "day=yesterday").mkdir()
    with pytest.raises(StoreUnavailable, match=r"archive llmrouter.db.archive"):
        holds(path, [])
