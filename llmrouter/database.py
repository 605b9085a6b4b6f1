"""The one SQLite file of the embedded set-up: opened, brought up to date, its failures named, in one place.

The file holds keys, routing versions and the books (`llmrouter.schema`). Reads and rare writes open a connection each;
the ledger's writer keeps its own. Nothing here is called on the way of a request.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from llmrouter.errors import ConfigError, InternalError, RouterError, StoreUnavailable, UsageError
from llmrouter.schema import SET, migration_names, migrations, statements_down

__all__ = [
    "Rows",
    "SharedConnection",
    "change_counters",
    "database_path",
    "downgrade",
    "from_instant",
    "migrate",
    "open_database",
    "reading",
    "store_error",
    "store_errors",
    "to_instant",
    "writing",
]


class Rows(Protocol):
    """What a query gives back."""

    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class SharedConnection(Protocol):
    """What SQLite's connection and the shared database's have in common: `?` stands for a value in either."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Rows: ...
    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> object: ...


BUSY_TIMEOUT_S = 5.0
_OLDEST_SQLITE = (3, 37, 0)  # STRICT tables


def database_path(url: str) -> Path:
    """The file that a `sqlite:///PATH` address names."""
    scheme, separator, path = url.partition(":///")
    if scheme != "sqlite" or not separator or not path:
        raise ConfigError(f"store.url: {url!r} is not of the form sqlite:///PATH")
    return Path(path)


def open_database(path: Path, *, read_only: bool = False, busy_timeout_s: float = BUSY_TIMEOUT_S) -> sqlite3.Connection:
    """Open an existing database in autocommit mode; the caller closes it and says BEGIN and COMMIT itself.

    Any thread may use the connection, one at a time. Durable means: a commit survives the death of the process
    (WAL, `synchronous=NORMAL`); a power cut may take the last commits but never the consistency.

    Raises:
        StoreUnavailable: the file is missing, unreadable, not a database, or locked for longer than `busy_timeout_s`.
    """
    mode = "ro" if read_only else "rw"
    with store_errors(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            if not read_only:
                _enter_wal(connection, path, busy_timeout_s)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
        except BaseException:
            connection.close()
            raise
    return connection


def migrate(path: Path) -> list[str]:
    """Create the database or bring it up to date; returns the names of the migrations that this call ran.

    Several processes may call this at once: one of them migrates while the others wait, then they find nothing to do.
    A new file is readable by its owner only.

    Raises:
        ConfigError: a newer llmrouter has migrated the file, its folder is missing, or this SQLite is too old.
        StoreUnavailable: as `open_database`.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        needed = ".".join(map(str, _OLDEST_SQLITE))
        raise ConfigError(f"this Python has SQLite {sqlite3.sqlite_version}; llmrouter needs {needed} or newer")
    import sqlite_utils  # noqa: F401 - slow, and `_apply` needs it while other processes wait for the lock

    _create_private(path)
    with writing(path) as connection:
        return _apply(connection, path)


def downgrade(path: Path, target: str) -> list[str]:
    """Undo the migrations after `target`, newest first, for an older llmrouter; returns their names.

    Each is one transaction. What only the newer schema can hold is lost.

    Raises:
        UsageError: there is no such migration, or it has not run, or a newer llmrouter has migrated the file.
        StoreUnavailable: as `open_database`.
    """
    names = migration_names()
    if target not in names:
        raise UsageError(f"no migration {target!r}; known: {', '.join(names)}")
    undone = []
    with writing(path) as connection:
        applied = {name for (name,) in connection.execute(_APPLIED, (SET,))}
        newer = sorted(applied - set(names))
        if newer:
            raise UsageError(
                f"{path} was migrated by a newer llmrouter ({', '.join(newer)}); only that can take it back"
            )
        if target not in applied:
            raise UsageError(f"{path} has not run {target}; upgrade with `llmrouter store migrate`")
        for name in reversed(names[names.index(target) + 1 :]):
            if name in applied:
                for statement in statements_down(name):
                    connection.execute(statement)
                connection.execute("DELETE FROM _sqlite_migrations WHERE migration_set = ? AND name = ?", (SET, name))
                undone.append(name)
    return undone


_APPLIED = "SELECT name FROM _sqlite_migrations WHERE migration_set = ?"


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection for one block, all of whose statements see the same state."""
    with store_errors(path), closing(open_database(path, read_only=True)) as connection:
        connection.execute("BEGIN")
        yield connection


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """One IMMEDIATE transaction: committed when the block ends, undone when it raises."""
    with store_errors(path), closing(open_database(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.rollback()
            raise
        connection.execute("COMMIT")


def change_counters(connection: SharedConnection) -> dict[str, int]:
    """How often `keys` and `routing` have changed; a worker that polls this reloads only what moved.

    A counter moves in the transaction of the change itself, so a new value means that the change can be read.
    """
    return dict(connection.execute("SELECT name, value FROM change_counters").fetchall())


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's exceptions inside the block into ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise store_error(path, error) from error


def store_error(path: Path, error: sqlite3.Error) -> RouterError:
    """Our error for one of SQLite's: `StoreUnavailable` for a store that is down, `InternalError` for a bug of ours.

    The message may reach a client, so it names the file but not its folder.
    """
    if (code := _code(error)) in _DOWN:
        return StoreUnavailable(f"the store {path.name} {_DOWN[code]}")
    if isinstance(error, sqlite3.OperationalError):
        return StoreUnavailable(f"the store {path.name} cannot be used: {error}")
    return InternalError(f"the store {path.name} was used wrongly ({type(error).__name__})")


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 for an error that Python's module raised by itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


_DOWN = {
    sqlite3.SQLITE_BUSY: "is locked by another process",
    sqlite3.SQLITE_LOCKED: "is locked by another connection",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: it does not exist or may not be read",
    sqlite3.SQLITE_PERM: "cannot be opened: permission denied",
    sqlite3.SQLITE_READONLY: "cannot be written: it is read-only",
    sqlite3.SQLITE_IOERR: "cannot be used: the disk reports an error",
    sqlite3.SQLITE_NOTADB: "cannot be used: it is not a database",
    sqlite3.SQLITE_CORRUPT: "cannot be used: it is damaged; restore a copy",
    sqlite3.SQLITE_NOMEM: "cannot be used: out of memory",
}


def to_instant(moment: datetime) -> str:
    """An aware time as it is stored, e.g. `2026-12-01T09:22:00.000000Z`."""
    if moment.tzinfo is None:
        raise ValueError("a stored time needs a time zone")
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def from_instant(text: str) -> datetime:
    """The time that `to_instant` stored, in UTC."""
    return datetime.fromisoformat(text)


def _create_private(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileNotFoundError:
        raise ConfigError(f"store.url: the folder {path.parent} does not exist; create it first") from None
    except OSError as error:
        raise StoreUnavailable(
            f"the store {path} cannot be opened: {error.strerror}; store.url may name another place, best absolute"
        ) from error


def _enter_wal(connection: sqlite3.Connection, path: Path, busy_timeout_s: float) -> None:
    """Switch to WAL, which a database then stays in.

    SQLite does not wait for the lock of this one statement, so a start of several processes at once has to.
    """
    give_up = time.monotonic() + busy_timeout_s
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.01)
        else:
            break
    if mode != "wal":
        raise ConfigError(f"store.url: the file system of {path} does not support SQLite's WAL mode; use a local disk")


def _apply(connection: sqlite3.Connection, path: Path) -> list[str]:
    from sqlite_utils import Database

    numbered = migrations()
    database = Database(connection, execute_plugins=False)
    newer = [done.name for done in numbered.applied(database) if done.name not in migration_names()]
    if newer:
        raise ConfigError(
            f"{path} was migrated by a newer llmrouter ({', '.join(newer)}); run that version or name another file"
        )
    pending = [migration.name for migration in numbered.pending(database)]
    numbered.apply(database)
    return pending
