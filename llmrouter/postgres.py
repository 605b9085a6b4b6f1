"""The PostgreSQL database that several gateways share: reached, brought up to date, its failures named, in one place.

The driver, psycopg, is an extra; it is imported only by what talks to a server.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from llmrouter.database import Rows, SharedConnection
from llmrouter.errors import ConfigError, InternalError, RouterError, StoreUnavailable, UsageError
from llmrouter.schema.postgres import numbered, statements_down, statements_up

if TYPE_CHECKING:
    import psycopg

__all__ = [
    "Neutral",
    "Postgres",
    "downgrade_postgres",
    "migrate_postgres",
    "migrations_of",
    "postgres_error",
]

TIMEOUT_S = 5.0
"""Bounds connecting, one statement of the neutral handle, and the silence of a server that has vanished."""
_WRITERS = 0x6C6C6D72
"""Number of the advisory lock that every rare writer holds for its transaction."""


class Postgres:
    """One database, for short blocks; any thread may use it, one at a time, so it holds one connection at most.

    Args:
        keep: hold on to the connection between blocks, for who asks all the time; `close` gives it back.

    Raises:
        ConfigError: the address is not one of a database.
        UsageError: the driver is not installed.
    """

    def __init__(self, url: str, *, keep: bool = False, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url
        self._keep = keep
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._kept: psycopg.Connection[Any] | None = None
        self.name = _name_of(url)
        """Server and database, without user or password."""

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Postgres({self.name})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Postgres) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)

    def connect(self, *, statement_timeout_s: float | None = None) -> psycopg.Connection[Any]:
        """A connection of its own in autocommit mode, which the caller closes; instants come in UTC.

        Raises:
            StoreUnavailable: the server cannot be reached, or refuses.
        """
        driver = _driver()
        limit_ms = int(1000 * (self._timeout_s if statement_timeout_s is None else statement_timeout_s))
        with self.errors():
            connection: psycopg.Connection[Any] = driver.connect(
                self._url,
                autocommit=True,
                connect_timeout=max(2, round(self._timeout_s)),
                keepalives_idle=5,
                keepalives_interval=2,
                keepalives_count=2,
                tcp_user_timeout=int(1000 * self._timeout_s),
                fallback_application_name="llmrouter",
            )
            try:
                connection.execute(
                    "SELECT set_config('TimeZone', 'UTC', false), set_config('statement_timeout', %s, false),"
                    " set_config('lock_timeout', %s, false), set_config('client_min_messages', 'warning', false)",
                    # A wait for a lock ends first, so that it is known for one.
                    (str(limit_ms), str(int(800 * self._timeout_s))),
                )
            except BaseException:
                connection.close()
                raise
        return connection

    @contextmanager
    def reading(self) -> Iterator[SharedConnection]:
        """One block all of whose statements see the same state; raises `StoreUnavailable`."""
        with self.transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY") as connection:
            yield Neutral(connection)

    @contextmanager
    def writing(self) -> Iterator[SharedConnection]:
        """One transaction, alone among all that use `writing`; committed when the block ends, undone when it raises."""
        with self.transaction("BEGIN") as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_WRITERS,))
            yield Neutral(connection)

    @contextmanager
    def transaction(self, begin: str) -> Iterator[psycopg.Connection[Any]]:
        """One transaction; a kept connection is made anew where the server has closed it meanwhile."""
        with self._lock, self.errors():
            connection = self._begun(begin)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                self._undo(connection)
                raise
            finally:
                if not self._keep:
                    self._drop()

    def close(self) -> None:
        """Close the kept connection; the next block makes one anew."""
        with self._lock:
            self._drop()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn the driver's exceptions inside the block into ours."""
        driver = _driver()
        try:
            yield
        except driver.Error as error:
            raise postgres_error(self.name, error) from error

    def _begun(self, begin: str) -> psycopg.Connection[Any]:
        if self._kept is not None:
            with contextlib.suppress(_driver().OperationalError):
                self._kept.execute(begin.encode())
                return self._kept
            self._drop()
        self._kept = self.connect()
        self._kept.execute(begin.encode())
        return self._kept

    def _undo(self, connection: psycopg.Connection[Any]) -> None:
        try:
            connection.execute("ROLLBACK")
        except _driver().Error:
            self._drop()

    def _drop(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()


class Neutral:
    """A psycopg connection that takes the statements written for SQLite."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Rows:
        return self._connection.execute(_translated(sql), parameters)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(_translated(sql), rows)


def _translated(sql: str) -> bytes:
    """Our own statements have no `?` or `%` inside literals."""
    return sql.replace("%", "%%").replace("?", "%s").encode()


def migrate_postgres(database: Postgres) -> list[str]:
    """Bring the database up to date; returns the names of the migrations that this call ran.

    Gateways that start together wait for one another, and the later ones find nothing to do. All pending migrations are
    one transaction.

    Raises:
        ConfigError: a newer llmrouter has migrated the database.
        StoreUnavailable: as `Postgres.connect`.
    """
    with _migrating(database) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS llmrouter_migrations ("
            "name TEXT PRIMARY KEY, applied_at TIMESTAMPTZ NOT NULL DEFAULT now())"
        )
        applied = _applied(connection)
        newer = sorted(applied - set(numbered()))
        if newer:
            raise ConfigError(
                f"store.ledger_url: {database.name} was migrated by a newer llmrouter ({', '.join(newer)}); "
                "run that version or name another database"
            )
        pending = [name for name in numbered() if name not in applied]
        for name in pending:
            _run(connection, statements_up(name))
            connection.execute("INSERT INTO llmrouter_migrations (name) VALUES (%s)", (name,))
    return pending


def downgrade_postgres(database: Postgres, target: str) -> list[str]:
    """Undo the migrations after `target`, newest first, in one transaction; `""` undoes all. Returns their names.

    What only the newer schema can hold is lost.

    Raises:
        UsageError: there is no such migration, or it has not run, or a newer llmrouter has migrated the database.
        StoreUnavailable: as `Postgres.connect`.
    """
    names = numbered()
    if target and target not in names:
        raise UsageError(f"no migration {target!r}; known: {', '.join(names)}")
    after = names[names.index(target) + 1 :] if target else names
    with _migrating(database) as connection:
        applied = _applied(connection) if _is_migrated(connection) else set()
        newer = sorted(applied - set(names))
        if newer:
            raise UsageError(
                f"{database.name} was migrated by a newer llmrouter ({', '.join(newer)}); only that can take it back"
            )
        if target and target not in applied:
            raise UsageError(f"{database.name} has not run {target}; upgrade with `llmrouter store migrate`")
        undone = [name for name in reversed(after) if name in applied]
        for name in undone:
            _run(connection, statements_down(name))
            connection.execute("DELETE FROM llmrouter_migrations WHERE name = %s", (name,))
    return undone


def migrations_of(database: Postgres) -> list[str]:
    """The migrations that have run, oldest first; none for a database that llmrouter has not used."""
    with database.transaction("BEGIN READ ONLY") as connection:
        return sorted(_applied(connection)) if _is_migrated(connection) else []


@contextmanager
def _migrating(database: Postgres) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that waits for other migrations, and takes the time that its statements need."""
    connection = database.connect(statement_timeout_s=0)
    with contextlib.closing(connection), database.errors(), connection.transaction():
        connection.execute("SET LOCAL lock_timeout = '60s'")
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_WRITERS,))
        yield connection


def _run(connection: psycopg.Connection[Any], statements: Sequence[str]) -> None:
    for statement in statements:
        connection.execute(statement.encode())


def _is_migrated(connection: psycopg.Connection[Any]) -> bool:
    row = connection.execute("SELECT to_regclass('llmrouter_migrations') IS NOT NULL").fetchone()
    return bool(row and row[0])


def _applied(connection: psycopg.Connection[Any]) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM llmrouter_migrations")}


def postgres_error(name: str, error: psycopg.Error) -> RouterError:
    """Our error for one of the driver's: `StoreUnavailable` for a database that is down or refuses to serve,
    `InternalError` for a bug of ours.

    The message may reach an admin client: it names the server and the database, never the password.
    """
    driver = _driver()
    state = error.sqlstate or ""
    known = next((text for prefix, text in _DOWN.items() if state.startswith(prefix)), None)
    if known is not None:
        return StoreUnavailable(f"the database {name} {known}")
    if isinstance(error, driver.OperationalError | driver.InterfaceError):
        return StoreUnavailable(f"the database {name} cannot be used: {_first_line(error)}")
    return InternalError(f"the database {name} was used wrongly ({type(error).__name__})")


_DOWN = {
    "53300": "has no connection left: raise its max_connections, or run fewer workers",
    "53100": "cannot grow: its disk is full",
    "53200": "is out of memory",
    "57014": "did not answer in time",
    "57P": "is shutting down or starting",
    "55P03": "is locked by another session",
    "40P01": "is locked by another session",
    "25006": "takes no writes: it is read-only, perhaps a standby",
    "42501": "does not let this user do that; make it the owner of the database, or grant it CREATE on the schema",
    "XX": "reports damage or a fault of its own; see the server's log",
}


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(":") if lines else type(error).__name__


def _name_of(url: str) -> str:
    from_info = _driver().conninfo.conninfo_to_dict
    try:
        info = from_info(url)
    except _driver().ProgrammingError:
        # The driver's message would repeat the address, and with it the password.
        raise ConfigError(
            "store.ledger_url: not an address that libpq can read; "
            "it is of the form postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from None
    return f"{info.get('host') or 'localhost'}/{info.get('dbname') or info.get('user') or 'postgres'}"


def _driver() -> Any:
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError as error:
        raise UsageError("store.ledger_url needs the PostgreSQL driver: pip install '.[postgres]'") from error
    return psycopg
