"""What there is of a configuration's stores, without changing them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrouter.config import Config
from llmrouter.database import database_path, open_database, reading, store_errors
from llmrouter.errors import RouterError, UsageError
from llmrouter.ledger.archive import Archive
from llmrouter.postgres import Postgres, migrations_of
from llmrouter.schema import SET, migration_names
from llmrouter.schema.postgres import numbered
from llmrouter.types import value

if TYPE_CHECKING:
    import sqlite3

__all__ = ["Migrations", "StoreState", "file_migrations", "server_of", "state_of", "usable_file"]


@value
class Migrations:
    """How far a store has come."""

    applied: tuple[str, ...]
    pending: tuple[str, ...]


@value
class StoreState:
    """The file, its archive and the server behind it."""

    file: Path
    size_bytes: int
    """Of the file and its write-ahead log."""
    migrations: Migrations
    entries: int | None
    """Rows of the ledger; None while its migrations are pending."""
    oldest: str | None
    newest: str | None
    under_way: int | None
    """Reservations that have not ended."""
    archive_days: tuple[date, ...]
    archive_bytes: int
    server: dict[str, Any] | None
    """None without `store.ledger_url`; with an `error` where it cannot be asked."""


def server_of(config: Config) -> Postgres | None:
    """The database that entries are shipped to."""
    return None if config.store.ledger_url is None else Postgres(config.store.ledger_url.get_secret_value())


def usable_file(config: Config) -> Path:
    """The file of a configuration, which and whose server, if there is one, are up to date.

    Raises:
        UsageError: the file does not exist, or one of them is of an older release.
        StoreUnavailable: one of them cannot be read.
    """
    path = _existing(config)
    _refuse_older(path, file_migrations(path))
    server = server_of(config)
    if server is not None:
        _refuse_older(server, _migrations(migrations_of(server), numbered()))
    return path


def file_migrations(path: Path) -> Migrations:
    """What has run on a file, and what this release would run.

    Raises:
        UsageError: it is not one of llmrouter's.
        StoreUnavailable: it cannot be read.
    """
    with store_errors(path), closing(open_database(path, read_only=True)) as connection:
        known = "SELECT count(*) FROM sqlite_master WHERE name = '_sqlite_migrations'"
        if not connection.execute(known).fetchone()[0]:
            raise UsageError(f"{path} is no store of llmrouter; name another file in store.url, or migrate it")
        query = "SELECT name FROM _sqlite_migrations WHERE migration_set = ? ORDER BY name"
        applied = [name for (name,) in connection.execute(query, (SET,))]
    return _migrations(applied, migration_names())


def state_of(config: Config) -> StoreState:
    """All of it; raises `UsageError` and `StoreUnavailable` for the file, an unreachable server is a part of it."""
    path = _existing(config)
    migrations = file_migrations(path)
    with reading(path) as connection:
        entries, oldest, newest = connection.execute("SELECT count(*), min(ts), max(ts) FROM ledger").fetchone()
        under_way = _count(connection, "reservations")
    days = Archive.of(path).days()
    return StoreState(
        file=path,
        size_bytes=sum(each.stat().st_size for each in (path, path.with_name(f"{path.name}-wal")) if each.exists()),
        migrations=migrations,
        entries=entries,
        oldest=oldest,
        newest=newest,
        under_way=under_way,
        archive_days=tuple(each.day for each in days),
        archive_bytes=sum(each.size_bytes() for each in days),
        server=_server(config, path),
    )


def _refuse_older(store: Path | Postgres, migrations: Migrations) -> None:
    if migrations.pending:
        raise UsageError(
            f"{store} is of an older llmrouter (without {', '.join(migrations.pending)}); "
            "run `llmrouter store migrate` first"
        )


def _existing(config: Config) -> Path:
    path = database_path(config.store.url)
    if not path.exists():
        raise UsageError(f"there is no store at {path} yet; `llmrouter serve` or `llmrouter store migrate` makes one")
    return path


def _count(connection: sqlite3.Connection, table: str) -> int | None:
    known = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
    return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] if known else None  # noqa: S608 - ours


def _migrations(applied: Sequence[str], known: Sequence[str]) -> Migrations:
    return Migrations(tuple(applied), tuple(name for name in known if name not in applied))


def _server(config: Config, path: Path) -> dict[str, Any] | None:
    server = server_of(config)
    if server is None:
        return None
    try:
        migrations = _migrations(migrations_of(server), numbered())
        told = {"name": server.name, "migrations": migrations}
        return told if migrations.pending else {**told, **_books(server, path)}
    except RouterError as error:
        return {"name": server.name, "error": error.message}


def _books(server: Postgres, path: Path) -> dict[str, Any]:
    from llmrouter.ledger.postgres.both import both
    from llmrouter.ledger.postgres.partitions import partition_days

    with both(path, server) as books:
        query = f"SELECT count(*) FROM ledger WHERE {books.waiting}"  # noqa: S608 - numbers of ours
        (waiting,) = books.spool.execute(query).fetchone()
        refused = books.server.execute("SELECT count(*) FROM spool_refused").fetchone()
    return {"days": partition_days(server), "waiting": waiting, "refused": refused[0] if refused else 0}
