"""The store: can it be written, is its schema this release's, are there keys, do its rules fit the configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from llmrouter.cli.checkup.finding import Finding, fail, info, ok, warning
from llmrouter.config import Config
from llmrouter.database import open_database, store_errors, writing
from llmrouter.errors import RouterError
from llmrouter.ledger.postgres.room import check_room, connections_of
from llmrouter.postgres import Postgres, migrations_of
from llmrouter.routing.rules import compile_rules
from llmrouter.routing.versions import RoutingStore
from llmrouter.schema import migration_names, migrations
from llmrouter.schema.postgres import numbered
from llmrouter.shared_store import SharedStore, shared_store
from llmrouter.tenancy.keys import load_keys
from llmrouter.tenancy.pepper import confirm_pepper, load_pepper

__all__ = ["check_store"]


def check_store(config: Config, path: Path) -> Iterator[Finding]:
    """Look at the database without changing it; one that is not there is only said to be."""
    if not path.exists():
        yield _future(path)
        yield from _server_alone(config)
        return
    try:
        with writing(path):
            pass
        yield ok("store", "writable", str(path))
        schema = _schema(path)
        yield schema
        if schema.status != "ok":
            return
        store = shared_store(config.store)
        if isinstance(store, Postgres):
            server = list(_server(config, store))
            yield from server
            if server[0].status != "ok":
                return
        yield _pepper(config, path, store)
        yield _keys(store)
        yield _rules(config, store)
    except RouterError as error:
        yield fail("store", "usable", error.message)


def _server_alone(config: Config) -> Iterator[Finding]:
    """The shared database of a gateway that has not started yet."""
    try:
        store = shared_store(config.store)
        if isinstance(store, Postgres):
            yield from _server(config, store)
    except RouterError as error:
        yield fail("store", "ledger_url", error.message)


def _future(path: Path) -> Finding:
    if not path.parent.is_dir():
        return fail("store", "writable", f"the folder {path.parent} does not exist; create it")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return fail("store", "writable", f"nothing may be written into {path.parent}")
    return info("store", "writable", f"{path} does not exist yet; the first start makes it")


def _schema(path: Path) -> Finding:
    from sqlite_utils import Database

    with store_errors(path), closing(open_database(path, read_only=True)) as connection:
        database = Database(connection, execute_plugins=False)
        applied = [done.name for done in migrations().applied(database)]
    newer = [name for name in applied if name not in migration_names()]
    pending = [name for name in migration_names() if name not in applied]
    if newer:
        return fail("store", "schema", f"was migrated by a newer llmrouter ({', '.join(newer)})")
    if pending:
        return info("store", "schema", f"the next start migrates it: {', '.join(pending)}")
    return ok("store", "schema", applied[-1])


def _server(config: Config, server: Postgres) -> Iterator[Finding]:
    """The database that gateways share; its schema comes first."""
    applied = migrations_of(server)
    newer = [name for name in applied if name not in numbered()]
    pending = [name for name in numbered() if name not in applied]
    if newer:
        yield fail("store", "ledger_url", f"{server} was migrated by a newer llmrouter ({', '.join(newer)})")
    elif pending:
        yield info("store", "ledger_url", f"the next start migrates {server}: {', '.join(pending)}")
    else:
        yield ok("store", "ledger_url", f"{server}, {applied[-1]}")
    workers = config.server.workers
    crowded = check_room(server, connections_of(workers))
    if crowded is None:
        yield ok("store", "connections", f"enough for server.workers = {workers}")
    else:
        yield warning("store", "connections", crowded)


def _pepper(config: Config, path: Path, store: SharedStore) -> Finding:
    makes_file = config.store.secret is None and isinstance(store, Path)
    if makes_file and not path.with_name(f"{path.name}.secret").exists() and not load_keys(store):
        return info("store", "secret", "is made with the first key")
    confirm_pepper(store, load_pepper(config.store, path))
    return ok("store", "secret", "that of the keys")


def _keys(store: SharedStore) -> Finding:
    now = datetime.now(UTC)
    keys = load_keys(store)
    active = [key for key in keys if key.info.expires_at is None or key.info.expires_at > now]
    if not active:
        return warning("store", "keys", "there is none that works; `llmrouter keys create` makes one")
    admins = sum(key.info.admin for key in active)
    return ok("store", "keys", f"{len(active)} active, {admins} of them with admin scope")


def _rules(config: Config, store: SharedStore) -> Finding:
    current = RoutingStore(store).current()
    warnings = compile_rules(current, config).warnings
    if warnings:
        return warning("store", "rules", f"version {current.version}: {'; '.join(warnings)}")
    return ok("store", "rules", f"version {current.version}, {len(current.rules)} rules, fits the configuration")
