"""The SQLite file: created, migrated and refused; and every failure of SQLite under a name of ours."""

import multiprocessing
import os
import sqlite3
import stat
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.database import (
    change_counters,
    database_path,
    downgrade,
    from_instant,
    migrate,
    open_database,
    reading,
    store_error,
    store_errors,
    to_instant,
    writing,
)
from llmrouter.errors import ConfigError, InternalError, StoreUnavailable, UsageError
from llmrouter.schema import migration_names

moments = st.datetimes(
    min_value=datetime(1970, 1, 2),  # noqa: DTZ001 - hypothesis adds the zone
    max_value=datetime(9000, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-8))]),
)


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "llmrouter.db"
    migrate(path)
    return path


def test_the_path_comes_from_the_url():
    assert database_path("sqlite:///books/a.db") == Path("books/a.db")
    assert database_path("sqlite:////var/lib/a.db") == Path("/var/lib/a.db")


@pytest.mark.parametrize("url", ["postgres://host/db", "sqlite:///", "sqlite://a.db", "a.db", ""])
def test_an_address_of_another_kind_is_refused(url):
    with pytest.raises(ConfigError, match="sqlite:///PATH"):
        database_path(url)


def test_a_new_database_is_private_and_in_wal_mode(database):
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
    with closing(open_database(database)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (1,)
        assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)


def test_migrations_are_numbered_and_run_once(tmp_path):
    path = tmp_path / "llmrouter.db"
    assert migrate(path) == migration_names()
    assert migrate(path) == []
    assert [int(name[:4]) for name in migration_names()] == list(range(1, 1 + len(migration_names())))


def test_one_of_several_processes_migrates_and_the_others_find_it_done(tmp_path):
    path = tmp_path / "llmrouter.db"
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        ran = pool.map(migrate, [path] * 4, chunksize=1)
    assert sorted(ran) == [[], [], [], migration_names()]


def test_a_database_of_a_newer_version_is_refused_by_name(database):
    with writing(database) as connection:
        connection.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('llmrouter', '0999_later', '')"
        )
    with pytest.raises(ConfigError, match=r"newer llmrouter \(0999_later\)"):
        migrate(database)
    with pytest.raises(UsageError, match=r"newer llmrouter \(0999_later\); only that can take it back"):
        downgrade(database, migration_names()[0])


def test_a_migration_that_fails_leaves_nothing_behind(tmp_path):
    """A table of somebody else's is in the way: the error says so and the file stays as it was."""
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE ledger (theirs)")
    with pytest.raises(StoreUnavailable, match="already exists"):
        migrate(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("ledger",)]


def test_a_missing_folder_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match="does not exist; create it"):
        migrate(tmp_path / "nowhere" / "llmrouter.db")


def test_a_folder_in_the_place_of_the_file_is_a_store_that_is_down(tmp_path):
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        migrate(tmp_path)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_missing_database_is_not_created_by_opening_it(tmp_path, read_only):
    path = tmp_path / "llmrouter.db"
    with pytest.raises(StoreUnavailable, match=r"llmrouter\.db cannot be opened"):
        open_database(path, read_only=read_only)
    assert not path.exists()


def test_a_file_that_is_not_a_database_is_named_so(tmp_path):
    path = tmp_path / "llmrouter.db"
    path.write_text("notes to myself " * 100)
    with pytest.raises(StoreUnavailable, match="not a database"):
        migrate(path)


def test_a_damaged_database_is_named_so(database):
    with closing(open_database(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(database.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    database.write_bytes(content)
    with pytest.raises(StoreUnavailable, match="damaged"), reading(database) as connection:
        connection.execute("SELECT * FROM change_counters").fetchall()


def test_a_locked_database_is_a_store_that_is_down(database):
    with (
        writing(database),
        closing(open_database(database, busy_timeout_s=0.01)) as second,
        pytest.raises(StoreUnavailable, match="locked by another process"),
        store_errors(database),
    ):
        second.execute("BEGIN IMMEDIATE")


def test_a_full_disk_is_a_store_that_is_down(database):
    with closing(open_database(database)) as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreUnavailable, match="disk is full"), store_errors(database):
            connection.execute("CREATE TABLE more (x)")


def test_a_reader_cannot_write(database):
    with pytest.raises(StoreUnavailable, match="read-only"), reading(database) as connection:
        connection.execute("DELETE FROM change_counters")


def test_the_message_keeps_the_folder_to_itself(tmp_path):
    with pytest.raises(StoreUnavailable) as caught:
        open_database(tmp_path / "llmrouter.db")
    assert str(tmp_path) not in caught.value.message


@pytest.mark.parametrize(
    ("error", "home"),
    [
        (sqlite3.OperationalError("x"), StoreUnavailable),
        (sqlite3.DatabaseError("x"), InternalError),
        (sqlite3.IntegrityError("x"), InternalError),
        (sqlite3.InterfaceError("x"), InternalError),
        (sqlite3.ProgrammingError("x"), InternalError),
        (sqlite3.DataError("x"), InternalError),
        (sqlite3.InternalError("x"), InternalError),
        (sqlite3.NotSupportedError("x"), InternalError),
        (sqlite3.Error("x"), InternalError),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_every_error_of_sqlite_has_a_home(error, home):
    assert type(store_error(Path("llmrouter.db"), error)) is home


def test_a_block_that_raises_writes_nothing(database):
    with pytest.raises(ZeroDivisionError), writing(database) as connection:  # noqa: PT012 - it is the block
        connection.execute("UPDATE change_counters SET value = 7")
        raise ZeroDivisionError
    with reading(database) as connection:
        assert change_counters(connection) == {"keys": 0, "routing": 0}


def test_a_reader_sees_one_state(database):
    with reading(database) as connection:
        before = change_counters(connection)
        with writing(database) as writer:
            writer.execute("UPDATE change_counters SET value = value + 1")
        assert change_counters(connection) == before
    with reading(database) as connection:
        assert change_counters(connection) == {"keys": 1, "routing": 1}


def test_two_writers_take_turns(database):
    with closing(open_database(database, busy_timeout_s=0.01)) as second:
        with writing(database), pytest.raises(sqlite3.OperationalError, match="locked"):
            second.execute("BEGIN IMMEDIATE")
        second.execute("BEGIN IMMEDIATE")


@given(moments)
def test_a_stored_time_reads_back_as_the_same_instant(moment):
    assert from_instant(to_instant(moment)) == moment


@given(moments, moments)
def test_stored_times_sort_as_the_instants_do(one, other):
    assert (to_instant(one) < to_instant(other)) == (one < other)


def test_a_stored_time_has_microseconds_even_on_the_full_second():
    assert to_instant(datetime(2026, 12, 1, 9, tzinfo=UTC)) == "2026-12-01T09:00:00.000000Z"


def test_a_time_without_a_zone_is_not_stored():
    with pytest.raises(ValueError, match="time zone"):
        to_instant(datetime(2026, 12, 1))  # noqa: DTZ001 - the mistake under test


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_database_is_a_store_that_is_down(database):
    database.chmod(0)
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        migrate(database)
