"""Old days go from every place, and only they."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path

import pytest

from llmrouter.config import Config, load
from llmrouter.database import migrate, open_database
from llmrouter.errors import StoreUnavailable
from llmrouter.ledger.append import append
from llmrouter.ledger.archive import Archive
from llmrouter.ledger.archiving import archive_entries
from llmrouter.ledger.queries import recent_entries
from llmrouter.ledger.retention import Gone, apply_retention, drop_before, first_day_kept, would_go
from tests.cli.command import two_models
from tests.ledger.books import NOON, entry

TODAY = NOON.date()


def day(ago: int) -> date:
    return TODAY - timedelta(days=ago)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Ten days of two entries, the older five of them in the archive."""
    path = tmp_path / "llmrouter.db"
    migrate(path)
    made = [entry(f"{ago}-{n}", ts=NOON - timedelta(days=ago, hours=n)) for ago in range(10) for n in range(2)]
    with closing(open_database(path)) as connection:
        append(connection, made)
    list(archive_entries(path, day(4), pause=lambda _: None))
    return path


def left(path: Path) -> tuple[set[date], list[date]]:
    """The days of the file and of the archive."""
    return {each.ts.date() for each in recent_entries(path, 1000)}, [each.day for each in Archive.of(path).days()]


def test_days_before_the_date_go_from_file_and_archive(path):
    assert would_go(path, None, day(2)) == Gone(day(2), 4, tuple(day(ago) for ago in (9, 8, 7, 6, 5)))
    assert left(path) == ({day(ago) for ago in range(5)}, [day(ago) for ago in (9, 8, 7, 6, 5)])
    assert drop_before(path, None, day(2), pause=lambda _: None) == Gone(
        day(2), 4, tuple(day(ago) for ago in (9, 8, 7, 6, 5))
    )
    assert left(path) == ({day(0), day(1), day(2)}, [])
    assert drop_before(path, None, day(2), pause=lambda _: None) == Gone(day(2))


def test_the_configuration_says_how_many_days_stay(path):
    config = _config(path, keep_days=6)
    gone = apply_retention(config, NOON, pause=lambda _: None)
    assert gone == Gone(day(6), 0, (day(9), day(8), day(7)))
    assert left(path) == ({day(ago) for ago in range(5)}, [day(6), day(5)])


def test_without_a_number_of_days_everything_stays(path):
    assert apply_retention(_config(path, keep_days=None), NOON + timedelta(days=4000)) is None
    assert len(left(path)[0]) == 5


def test_days_are_those_of_utc():
    evening = datetime(2026, 11, 30, 20, tzinfo=timezone(timedelta(hours=-8)))
    assert first_day_kept(1, evening) == date(2026, 11, 30)
    assert first_day_kept(36_500, datetime(50, 1, 1, tzinfo=UTC)) == date.min


def test_an_archive_that_is_being_changed_is_left_for_the_next_time(path):
    with Archive.of(path).locked(), pytest.raises(StoreUnavailable, match="try again later"):
        drop_before(path, None, day(0))
    assert len(left(path)[1]) == 5


def _config(path: Path, *, keep_days: int | None) -> Config:
    section = "" if keep_days is None else f"[ledger]\nkeep_days = {keep_days}"
    config = load(two_models(path.parent, f'[store]\nurl = "sqlite:///{path}"', section))
    assert config.ledger.keep_days == keep_days
    return config
