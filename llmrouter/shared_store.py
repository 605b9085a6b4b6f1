"""Where keys and routing versions live: the SQLite file, or the PostgreSQL database that several gateways share.

What reads or writes them takes a `SharedStore` and speaks SQL that both understand, with `?` for a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmrouter import database
from llmrouter.config import StoreConfig
from llmrouter.database import SharedConnection, database_path
from llmrouter.postgres import Postgres, migrate_postgres, migrations_of

__all__ = [
    "SharedStore",
    "close_store",
    "migrate_store",
    "reading",
    "shared_store",
    "store_exists",
    "writing",
]

SharedStore = Path | Postgres
"""A migrated SQLite file, or a migrated database on a server."""


def shared_store(config: StoreConfig, *, keep: bool = False) -> SharedStore:
    """Where a configuration has its keys and rules; with `keep`, a server's connection is held until `close_store`.

    Raises:
        ConfigError: the address cannot be read.
        UsageError: the server's driver is not installed.
    """
    if config.ledger_url is None:
        return database_path(config.url)
    return Postgres(config.ledger_url.get_secret_value(), keep=keep)


def migrate_store(config: StoreConfig) -> SharedStore:
    """Create or bring up to date the file, and the shared database if there is one; returns where keys and rules are.

    Raises:
        ConfigError, StoreUnavailable: as `database.migrate` and `migrate_postgres`.
    """
    database.migrate(database_path(config.url))
    store = shared_store(config)
    if isinstance(store, Postgres):
        migrate_postgres(store)
    return store


def close_store(store: SharedStore) -> None:
    """Give back a connection that is held; the store can still be used."""
    if isinstance(store, Postgres):
        store.close()


def store_exists(store: SharedStore) -> bool:
    """Whether anything was ever made there; raises `StoreUnavailable` when a server cannot be asked."""
    return store.exists() if isinstance(store, Path) else bool(migrations_of(store))


@contextmanager
def reading(store: SharedStore) -> Iterator[SharedConnection]:
    """One block all of whose statements see the same state; raises `StoreUnavailable`."""
    if isinstance(store, Path):
        with database.reading(store) as connection:
            yield connection
    else:
        with store.reading() as shared:
            yield shared


@contextmanager
def writing(store: SharedStore) -> Iterator[SharedConnection]:
    """One transaction, alone among writers; committed when the block ends, undone when it raises."""
    if isinstance(store, Path):
        with database.writing(store) as connection:
            yield connection
    else:
        with store.writing() as shared:
            yield shared
