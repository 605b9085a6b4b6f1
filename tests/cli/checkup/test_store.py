"""The store as `doctor` sees it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from llmrouter.cli.checkup.finding import Finding
from llmrouter.cli.checkup.store import check_store
from llmrouter.config import Config, load
from llmrouter.database import database_path, migrate
from llmrouter.gateway.build import prepare_store
from llmrouter.postgres import Postgres
from llmrouter.tenancy.keys import KeyStore, load_pepper
from tests.cli.command import two_models
from tests.servers import PostgresServer


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load(two_models(tmp_path))


def look(config: Config) -> dict[str, Finding]:
    return {finding.aspect: finding for finding in check_store(config, database_path(config.store.url))}


def new_key(config: Config, *, expires_at: datetime | None = None, now: datetime | None = None) -> None:
    path = database_path(config.store.url)
    clock = (lambda: now) if now is not None else (lambda: datetime.now(UTC))
    KeyStore(path, load_pepper(config.store, path), now=clock).create("default", admin=True, expires_at=expires_at)


def test_a_store_to_come_is_only_mentioned(config: Config):
    assert {aspect: finding.status for aspect, finding in look(config).items()} == {"writable": "info"}
    assert not database_path(config.store.url).exists()


def test_a_folder_that_is_not_there_fails(tmp_path: Path):
    config = load(two_models(tmp_path, '[store]\nurl = "sqlite:///nowhere/llmrouter.db"\n'))
    assert look(config)["writable"].status == "fail"


def test_a_new_store_lacks_a_key(config: Config):
    prepare_store(config)
    found = look(config)
    assert [finding.status for finding in found.values()] == ["ok", "ok", "ok", "warning", "ok"]
    assert (found["secret"].status, found["keys"].status) == ("ok", "warning")


def test_keys_that_work_are_counted_and_expired_ones_are_not(config: Config):
    prepare_store(config)
    long_ago = datetime.now(UTC) - timedelta(days=9)
    new_key(config, expires_at=long_ago + timedelta(days=1), now=long_ago)
    assert look(config)["keys"].status == "warning"
    new_key(config)
    assert look(config)["keys"].message == "1 active, 1 of them with admin scope"


def test_a_lost_pepper_fails(config: Config):
    path = prepare_store(config)
    new_key(config)
    path.with_name(f"{path.name}.secret").unlink()
    assert look(config)["usable"].status == "fail"


def test_a_newer_schema_fails(config: Config):
    path = prepare_store(config)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('llmrouter', '9999_later', '')"
        )
    assert look(config)["schema"].status == "fail"


def test_a_file_without_the_schema_is_said_to_be_migrated_by_the_next_start(config: Config):
    path = database_path(config.store.url)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE other (x)")
    assert look(config)["schema"].status == "info"


def test_what_is_no_database_fails(config: Config):
    database_path(config.store.url).write_bytes(b"not a database" * 100)
    assert look(config)["usable"].status == "fail"


def test_rules_in_force_that_no_longer_fit_fail(tmp_path: Path):
    prepare_store(load(two_models(tmp_path, '[[routing.rules]]\nrule_id = "r"\nmodel_id = "l"\n')))
    path = two_models(tmp_path)
    path.write_text(path.read_text().replace('large = "l"', ""))
    assert look(load(path))["usable"].status == "fail"


@pytest.fixture
def shared(tmp_path: Path, postgres_url: str) -> Config:
    return load(two_models(tmp_path, f'[store]\nledger_url = "{postgres_url}"\nsecret = "{"s" * 20}"\n'))


def test_a_shared_database_is_looked_at_too(shared: Config, postgres_url: str):
    migrate(database_path(shared.store.url))
    assert look(shared)["ledger_url"].status == "info"
    prepare_store(shared)
    KeyStore(Postgres(postgres_url), b"s" * 20).create("default", admin=True)
    found = look(shared)
    assert {finding.status for finding in found.values()} == {"ok"}
    assert found["connections"].message == "enough for server.workers = 1"
    assert found["keys"].message == "1 active, 1 of them with admin scope"


def test_a_shared_database_that_is_away_fails(shared: Config, postgres_server: PostgresServer):
    prepare_store(shared)
    postgres_server.stop()
    finding = look(shared)["usable"]
    assert finding.status == "fail"
    assert "cannot be used" in finding.message


def test_g103_a_server_with_too_few_connections_is_named(shared: Config):
    prepare_store(shared)
    crowd = shared.model_copy(update={"server": shared.server.model_copy(update={"workers": 500})})
    assert "needs 502" in look(crowd)["usable"].message
