"""The shared database: migrated up and down on filled tables, reached again after it was away, its failures named."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from llmrouter.database import migrate
from llmrouter.errors import ConfigError, InternalError, StoreUnavailable, UsageError
from llmrouter.ledger.postgres.delivery import Delivery
from llmrouter.ledger.postgres.spool import Spool
from llmrouter.postgres import Postgres, downgrade_postgres, migrate_postgres, migrations_of
from llmrouter.routing.versions import RoutingStore
from llmrouter.schema.postgres import numbered
from llmrouter.types import Rule
from tests.ledger.books import entry
from tests.ledger.postgres.server import asked, fill, shipped


@pytest.fixture(params=[False, True], ids=["connection a block", "kept connection"])
def database(postgres_url, request):
    made = Postgres(postgres_url, keep=request.param)
    yield made
    made.close()


def tables(database: Postgres) -> set[str]:
    query = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
    return {name for (name,) in asked(database, query)}


def test_migrations_are_numbered_and_run_once(database):
    assert migrations_of(database) == []
    assert migrate_postgres(database) == numbered()
    assert migrate_postgres(database) == []
    assert migrations_of(database) == numbered()
    assert [int(name[:4]) for name in numbered()] == list(range(1, 1 + len(numbered())))


def test_of_replicas_that_start_together_one_migrates_and_the_others_find_it_done(postgres_url):
    together = threading.Barrier(4)

    def start(_: int) -> list[str]:
        mine = Postgres(postgres_url)
        together.wait(10)
        return migrate_postgres(mine)

    with ThreadPoolExecutor(4) as pool:
        ran = sorted(pool.map(start, range(4)))
    assert ran == [[], [], [], numbered()]


def test_a_database_of_a_newer_version_is_refused_by_name_and_left_alone(database):
    migrate_postgres(database)
    with database.writing() as connection:
        connection.execute("INSERT INTO llmrouter_migrations (name) VALUES ('0999_later')")
    with pytest.raises(ConfigError, match=r"newer llmrouter \(0999_later\)"):
        migrate_postgres(database)
    with pytest.raises(UsageError, match=r"newer llmrouter \(0999_later\); only that can take it back"):
        downgrade_postgres(database, numbered()[0])
    assert migrations_of(database) == [*numbered(), "0999_later"]


def test_a_filled_database_goes_down_and_up_again_and_the_books_stay(database, tmp_path):
    migrate_postgres(database)
    path = tmp_path / "llmrouter.db"
    migrate(path)
    fill(path, [entry(f"r{number}") for number in range(10)])
    delivery = Delivery(Spool(path), database)
    delivery.ship_once()
    delivery.close()
    RoutingStore(database).seed([Rule("code", {"intent": "code"}, model_id="m")])
    assert downgrade_postgres(database, "0001_books") == list(reversed(numbered()[1:]))
    assert len(shipped(database)) == 10
    assert "routing_versions" not in tables(database)
    assert migrate_postgres(database) == numbered()[1:]
    assert len(shipped(database)) == 10
    assert RoutingStore(database).seed([]).version == 1


def test_all_the_way_down_leaves_nothing_of_ours(database, tmp_path):
    migrate_postgres(database)
    path = tmp_path / "llmrouter.db"
    migrate(path)
    fill(path, [entry("r1")])
    delivery = Delivery(Spool(path), database)
    delivery.ship_once()
    delivery.close()
    assert downgrade_postgres(database, "") == list(reversed(numbered()))
    assert tables(database) == {"llmrouter_migrations"}
    functions = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'llmrouter%'"
    assert asked(database, functions) == [(0,)]
    assert migrate_postgres(database) == numbered()


def test_a_migration_that_fails_leaves_the_database_as_it_was(database):
    with database.writing() as connection:
        connection.execute("CREATE TABLE prices (somebody_elses TEXT)")
    with pytest.raises(InternalError):
        migrate_postgres(database)
    assert migrations_of(database) == []
    assert tables(database) == {"prices"}


def test_going_down_to_what_is_not_there_is_refused(database):
    with pytest.raises(UsageError, match="no migration '0042'"):
        downgrade_postgres(database, "0042")
    with pytest.raises(UsageError, match="has not run 0001_books"):
        downgrade_postgres(database, "0001_books")


def test_a_block_that_raises_is_undone(database):
    migrate_postgres(database)

    def fail_half_way() -> None:
        with database.writing() as connection:
            connection.execute("INSERT INTO prices VALUES (?, ?, ?)", ("p", "{}", "now"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert asked(database, "SELECT * FROM prices") == []


def test_a_reader_writes_nothing_and_sees_one_state(database):
    migrate_postgres(database)
    with pytest.raises(StoreUnavailable, match="read-only"), database.reading() as connection:
        connection.execute("DELETE FROM prices")
    other = Postgres(database._url)
    with database.reading() as connection:
        before = connection.execute("SELECT count(*) FROM prices").fetchone()
        with other.writing() as writer:
            writer.executemany("INSERT INTO prices VALUES (?, ?, ?)", [("p", "{}", "now"), ("q", "{}", "100%")])
        assert connection.execute("SELECT count(*) FROM prices").fetchone() == before
    other.close()
    assert asked(database, "SELECT price_id FROM prices WHERE first_seen LIKE '%00%'") == [("q",)]


def test_a_server_that_was_restarted_meanwhile_is_reached_again(database, postgres_server):
    migrate_postgres(database)
    assert asked(database, "SELECT 1") == [(1,)]
    postgres_server.stop()
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        asked(database, "SELECT 1")
    postgres_server.start()
    assert asked(database, "SELECT 1") == [(1,)]
    postgres_server.kill()
    postgres_server.start()
    assert asked(database, "SELECT 1") == [(1,)]


def test_a_connection_that_breaks_inside_a_block_is_named_and_replaced(database):
    with pytest.raises(StoreUnavailable), database.reading() as connection:
        connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert asked(database, "SELECT 1") == [(1,)]


def test_a_kept_connection_is_the_only_one_however_many_threads_ask(postgres_url):
    database = Postgres(postgres_url, keep=True)
    mine = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda _: asked(database, mine)[0][0], range(40)))
    database.close()
    assert set(counts) == {1}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://eve:hunter2@127.0.0.1:1/books", "127.0.0.1/books cannot be used: connection failed"),
        ("postgresql://eve:hunter2@no-such-host.invalid/books", "no-such-host.invalid/books cannot be used"),
    ],
)
def test_a_server_that_is_not_there_is_named_without_the_password(url, says):
    with pytest.raises(StoreUnavailable, match=says) as refused:
        migrate_postgres(Postgres(url))
    assert "hunter2" not in str(refused.value.message)
    assert "hunter2" not in repr(Postgres(url))


@pytest.mark.parametrize("url", ["postgresql://eve:hunter2@h/b?nonsense=1", "postgresql://eve:hunter2@h:x y/b"])
def test_an_address_that_cannot_be_read_is_refused_without_repeating_it(url):
    with pytest.raises(ConfigError, match="postgresql://USER:PASSWORD@HOST:PORT/DATABASE") as refused:
        Postgres(url)
    assert "hunter2" not in refused.value.message


def test_a_database_that_does_not_exist_is_said(postgres_server):
    with pytest.raises(StoreUnavailable, match="does not exist"):
        migrate_postgres(Postgres(postgres_server.url("nowhere")))


def test_a_missing_driver_is_one_sentence_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageError, match=r"pip install '.\[postgres\]'"):
        Postgres("postgresql://h/b")


def test_the_driver_is_not_loaded_by_those_who_do_not_need_it():
    program = (
        "import sys, llmrouter.cli, llmrouter.gateway.build, llmrouter.shared_store, llmrouter.ledger.postgres.ship;"
        "sys.exit('psycopg' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
