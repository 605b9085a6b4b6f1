"""`llmrouter store`: state, migrations, archive and retention on the command line."""

from __future__ import annotations

import gzip
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from llmrouter.cli.store_state import file_migrations
from llmrouter.database import open_database
from llmrouter.ledger import reservations
from llmrouter.ledger.archive import Archive
from llmrouter.ledger.queries import recent_entries
from llmrouter.schema import migration_names
from tests.cli.command import llmrouter, two_models
from tests.ledger.books import entry, reservation
from tests.ledger.test_usage import fill
from tests.test_upgrade import FIRST, OLD

NOW = datetime.now(UTC)
TODAY = NOW.date()
LAST_MONTH = TODAY.replace(day=1) - timedelta(days=1)


def at_noon(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, 12, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Entries of the last two days of last month, and one of now."""
    days = [at_noon(LAST_MONTH - timedelta(days=1)), at_noon(LAST_MONTH), NOW]
    return fill(tmp_path / "llmrouter.db", [entry(f"r{at}", ts=moment) for at, moment in enumerate(days)])


@pytest.fixture
def config(path: Path) -> Path:
    return two_models(path.parent)


def test_status_shows_file_rows_and_migrations(config, path):
    shown = llmrouter("store", "status", "--config", config, "--json").json
    assert shown["file"]["path"] == str(path)
    assert shown["file"]["size_bytes"] > 10_000
    assert shown["file"]["migrations"] == {"applied": migration_names(), "pending": []}
    assert (shown["file"]["entries"], shown["file"]["under_way"]) == (3, 0)
    assert shown["file"]["oldest"].startswith(str(LAST_MONTH - timedelta(days=1)))
    assert shown["archive"] == {"days": [], "size_bytes": 0}
    assert shown["server"] is None
    table = llmrouter("store", "status", "--config", config)
    assert "entries" in table.out
    assert migration_names()[-1] in table.out


def test_archive_moves_last_month_and_leaves_this_one(config, path):
    ran = llmrouter("store", "archive", "--config", config)
    assert ran.code == 0
    assert f"{LAST_MONTH}: 1 entries archived, 1 deleted from the file" in ran.err
    assert [each.request_id for each in recent_entries(path, 10)] == ["r2"]
    shown = llmrouter("store", "status", "--config", config, "--json").json
    assert shown["archive"]["days"] == [str(LAST_MONTH - timedelta(days=1)), str(LAST_MONTH)]
    assert shown["archive"]["size_bytes"] > 0
    again = llmrouter("store", "archive", "--config", config, "--json").json
    assert again == {"before": str(TODAY.replace(day=1)), "days": []}


def test_archive_takes_a_date(config, path):
    shown = llmrouter("store", "archive", "--before", str(LAST_MONTH), "--config", config, "--json").json
    assert shown["days"] == [{"day": str(LAST_MONTH - timedelta(days=1)), "entries": 1, "deleted": 1}]
    assert [each.day for each in Archive.of(path).days()] == [LAST_MONTH - timedelta(days=1)]


def test_days_that_are_not_over_are_refused(config):
    tomorrow = str(TODAY + timedelta(days=1))
    for command in ("archive", "prune"):
        ran = llmrouter("store", command, "--before", tomorrow, "--config", config)
        assert ran.code == 2
        assert f"--before {tomorrow} takes days that are not over; the latest is today, {TODAY}" in ran.err


def test_days_of_this_month_are_archived_only_when_asked_for():
    from llmrouter.cli.store import _archive_bound
    from llmrouter.errors import UsageError

    today = date(2026, 12, 9)
    assert _archive_bound(None, today, this_month=False) == date(2026, 12, 1)
    assert _archive_bound("2026-12", today, this_month=False) == date(2026, 12, 1)
    with pytest.raises(UsageError, match=r"the latest is 2026-12-01, or add --this-month"):
        _archive_bound("2026-12-02", today, this_month=False)
    assert _archive_bound("2026-12-09", today, this_month=True) == today


def test_prune_deletes_what_a_dry_run_counts(config, path):
    llmrouter("store", "archive", "--before", str(LAST_MONTH), "--config", config)
    asked = ("store", "prune", "--before", str(TODAY.replace(day=1)), "--config", config, "--json")
    would = llmrouter(*asked, "--dry-run").json
    assert would == {
        "dry_run": True,
        "before": str(TODAY.replace(day=1)),
        "entries": 1,
        "archived_days": [str(LAST_MONTH - timedelta(days=1))],
        "server_days": [],
    }
    assert len(recent_entries(path, 10)) == 2
    assert llmrouter(*asked).json == {**would, "dry_run": False}
    assert [each.request_id for each in recent_entries(path, 10)] == ["r2"]
    assert Archive.of(path).days() == []
    told = llmrouter("store", "prune", "--before", str(TODAY.replace(day=1)), "--config", config)
    assert "deleted 0 entries of the file before" in told.err


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A configuration whose store is of an earlier release."""
    (tmp_path / "llmrouter.db").write_bytes(gzip.decompress(OLD.read_bytes()))
    return two_models(tmp_path)


def test_an_old_store_is_brought_up_to_date_and_back(old, tmp_path):
    path = tmp_path / "llmrouter.db"
    assert "run `llmrouter store migrate` first" in llmrouter("usage", "--config", old).err
    status = llmrouter("store", "status", "--config", old, "--json").json
    assert status["file"]["migrations"] == {"applied": [FIRST], "pending": migration_names()[1:]}
    assert status["file"]["entries"] == 24
    assert llmrouter("store", "migrate", "--config", old, "--json").json["applied"] == migration_names()[1:]
    assert "nothing to do" in llmrouter("store", "migrate", "--config", old).err
    assert llmrouter("usage", "--config", old, "--json").json["total"]["requests"] == 24

    back = ("store", "migrate", "--to", FIRST, "--config", old)
    refused = llmrouter(*back)
    assert refused.code == 2
    assert "what only they can hold is lost for good; stop the gateway, copy the store, then say --yes" in refused.err
    assert file_migrations(path).pending == ()
    assert llmrouter(*back, "--yes", "--json").json["undone"] == list(reversed(migration_names()[1:]))
    assert file_migrations(path).applied == (FIRST,)
    assert llmrouter(*back, "--json").json == {"applied": [], "undone": []}


def test_calls_that_are_not_booked_yet_are_not_lost_by_going_back(config, path):
    with closing(open_database(path)) as connection:
        connection.execute("INSERT INTO owners (name, started_at) VALUES ('dead', '2026-12-01T00:00:00.000000Z')")
        reservations.insert(connection, 1, 0, [reservation()])
    ran = llmrouter("store", "migrate", "--to", FIRST, "--yes", "--config", config)
    assert ran.code == 2
    assert "1 calls are under way" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["migrate", "--to", "0099_future"], "no migration '0099_future'; known: 0001_keys_rules_books"),
        (["prune", "--before", "soon"], "--before 'soon' is not a day"),
        (["archive", "--before", "soon"], "--before 'soon' is not a day"),
    ],
)
def test_wrong_use_is_one_clear_line(config, arguments, message):
    ran = llmrouter("store", *arguments, "--config", config)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_a_store_that_is_not_there_is_named(tmp_path):
    ran = llmrouter("store", "status", "--config", two_models(tmp_path))
    assert ran.code == 2
    assert "there is no store at" in ran.err


def test_a_server_that_cannot_be_asked_is_a_part_of_the_state(path):
    url = "postgresql://nobody@127.0.0.1:9/none"
    config = two_models(path.parent, f'[store]\nledger_url = "{url}"\nsecret = "{"x" * 32}"')
    ran = llmrouter("store", "status", "--config", config, "--json")
    assert ran.code == 1
    assert "cannot be used" in ran.json["server"]["error"]
    refused = llmrouter("store", "archive", "--config", config)
    assert refused.code == 2
    assert "there is nothing to archive" in refused.err


def test_a_server_is_migrated_shown_and_pruned(path, postgres_url):
    config = two_models(path.parent, f'[store]\nledger_url = "{postgres_url}"\nsecret = "{"x" * 32}"')
    fresh = llmrouter("store", "status", "--config", config, "--json").json["server"]
    assert fresh["migrations"]["applied"] == []
    older = llmrouter("usage", "--config", config)
    assert (older.code, "run `llmrouter store migrate` first" in older.err) == (2, True)
    applied = llmrouter("store", "migrate", "--config", config, "--json").json["applied"]
    assert applied == fresh["migrations"]["pending"]
    server = llmrouter("store", "status", "--config", config, "--json").json["server"]
    assert (server["days"], server["waiting"], server["refused"]) == ([], 3, 0)
    assert llmrouter("usage", "--config", config, "--json").json["total"]["requests"] == 3
    pruned = llmrouter("store", "prune", "--before", str(TODAY), "--config", config, "--json").json
    assert (pruned["entries"], pruned["server_days"]) == (0, [])
    back = llmrouter("store", "migrate", "--to", applied[0], "--yes", "--config", config, "--json").json
    assert back["undone"] == list(reversed(applied[1:]))
