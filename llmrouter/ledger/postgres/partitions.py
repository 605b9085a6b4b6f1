"""The day partitions of the books: made ahead of time or when a batch needs them, dropped whole by retention."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from llmrouter.postgres import Postgres

if TYPE_CHECKING:
    import psycopg

__all__ = ["days_ahead", "drop_partitions", "make_partitions", "partition_days"]

_TABLES = ("ledger", "attempts")
_LOCK = 0x6C6C6D73
"""Number of the advisory lock of whoever makes or drops a partition."""
_AHEAD = 7


def days_ahead(today: date) -> list[date]:
    """Today and the week after, whose partitions should be there before anybody needs them."""
    return [today + timedelta(days=ahead) for ahead in range(_AHEAD + 1)]


def make_partitions(connection: psycopg.Connection[Any], days: Iterable[date]) -> None:
    """Make the partitions that are missing of those days, each day of both tables in one transaction of its own.

    Readers and writers of other days are not held up: a table is made by itself and attached.

    Raises:
        OverflowError: a day is the last that Python knows.
        psycopg.Error: the server refuses.
    """
    there = set.intersection(*(_days(connection, table) for table in _TABLES))
    for day in sorted(set(days) - there):
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            for table in _TABLES:  # somebody may have dropped one of the two by hand
                if day not in _days(connection, table):
                    for statement in _making(table, day):
                        connection.execute(statement.encode())


def partition_days(database: Postgres) -> list[date]:
    """The days that have a partition, of either table, oldest first; raises `StoreUnavailable`."""
    with database.transaction("BEGIN READ ONLY") as connection:
        return sorted(set.union(*(_days(connection, table) for table in _TABLES)))


def drop_partitions(database: Postgres, before: date) -> list[date]:
    """Drop all days before a date, oldest first; returns them.

    Takes no time or memory that grows with the rows. Each day is one transaction of both tables, so entries never stay
    without their attempts. Waits no longer than the lock time-out for reports that are reading; those days are left for
    the next call.

    Raises:
        StoreUnavailable: the server cannot be used, or a report held a day for too long; days before it are gone.
    """
    dropped = []
    for day in partition_days(database):
        if day >= before:
            break
        with database.transaction("BEGIN") as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            for table in reversed(_TABLES):
                connection.execute(f"DROP TABLE IF EXISTS {_name(table, day)}".encode())
        dropped.append(day)
    return dropped


def _making(table: str, day: date) -> list[str]:
    name = _name(table, day)
    until = day + timedelta(days=1)
    return [
        f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)",
        f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ('{day}T00:00:00Z') TO ('{until}T00:00:00Z')",
    ]


def _name(table: str, day: date) -> str:
    return f"{table}_{day.isoformat().replace('-', '')}"


_NAMED = re.compile(r"[a-z]+_(\d{4})(\d{2})(\d{2})")


def _days(connection: psycopg.Connection[Any], table: str) -> set[date]:
    query = "SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE inhparent = %s::regclass"
    names = [_NAMED.fullmatch(name) for (name,) in connection.execute(query, (table,))]
    return {date(*map(int, found.groups())) for found in names if found}
