"""Books of any size, the same each time: calls of 50 tenants, 8 models and ten days, every tenth tried twice."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path

from llmrouter.database import migrate
from llmrouter.ledger.archive import Archive, ArchivedDay, parquet
from llmrouter.ledger.duck import duck, literal

__all__ = ["DAYS", "FIRST_DAY", "PRUNED_DAY", "fill", "multiply"]

FIRST_DAY = date(2026, 11, 1)
DAYS = 10
PRUNED_DAY = FIRST_DAY - timedelta(days=1)
"""A further day, with a tenth of the rows, whose rows are deleted one by one."""

_AT_ONCE = 500_000


def fill(path: Path, rows: int) -> None:
    """Make a database of `rows` calls on the ten days and a tenth more on the day before.

    Request ids begin with their time, as the gateway's do. Nothing is synced: these books need not survive anything.
    """
    migrate(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -1000000")
        _fill(connection, 1, rows // 10, PRUNED_DAY, rows // 10)
        _fill(connection, rows // 10 + 1, rows, FIRST_DAY, max(rows // DAYS, 1))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def multiply(archived: ArchivedDay, path: Path) -> None:
    """Make an empty database whose archive holds the rows of an archived day on each of ten days."""
    migrate(path)
    archive = Archive.of(path)
    with duck("the archive") as engine, archive.locked():
        for ahead in range(DAYS):
            day = archived.day + timedelta(days=ahead)
            folder = archive.begin(day)
            for file in [*archived.files("calls"), *archived.files("attempts")]:
                engine.execute(
                    f"COPY (SELECT * REPLACE (ts + INTERVAL {ahead} DAY AS ts, request_id || '-{ahead}' AS request_id) "
                    f"FROM {parquet([file])}) TO {literal(str(folder / file.name))} (FORMAT parquet, COMPRESSION zstd)"
                )
            archive.commit(folder, day)


def _fill(connection: sqlite3.Connection, first: int, count: int, day: date, a_day: int) -> None:
    for start in range(first, first + count, _AT_ONCE):
        last = min(start + _AT_ONCE, first + count) - 1
        connection.execute("BEGIN")
        connection.execute(_CALLS, {"start": start, "last": last, "first": first, "day": str(day), "a_day": a_day})
        connection.execute(_ATTEMPTS, {"start": start, "last": last})
        connection.execute("COMMIT")


_NUMBERS = "WITH RECURSIVE numbers (n) AS (SELECT :start UNION ALL SELECT n + 1 FROM numbers WHERE n < :last)"

_CALLS = f"""
    {_NUMBERS}
    INSERT INTO ledger
    SELECT n, printf('req_%012x%014x', 1000 * CAST(strftime('%s', :day) AS INTEGER) + (n - :first) * 86400000 / :a_day,
            n * 2654435761),
        strftime('%Y-%m-%dT%H:%M:%S', :day, '+' || ((n - :first) / :a_day) || ' days',
            '+' || ((n - :first) % :a_day * 86400 / :a_day) || ' seconds') || printf('.%06dZ', n % 1000000),
        'tenant-' || (n * 7919 % 50), 'key-' || (n * 7919 % 500), 'chat', 'auto', 'model-' || (n * 104729 % 8), 'rules',
        'rule:code-to-large', 'code-to-large', 7, 3, 'code',
        CASE n % 3 WHEN 0 THEN '{{"team":"search"}}' ELSE '{{}}' END,
        n % 2, 200, 'stop', NULL, 0, 1000 + n % 997, n % 900, 0, 100 + n % 499, 0, 0, 450000000 + n % 1000003, 'large',
        6150000000 + n % 1009, 0.001, 0.2 + (n % 100) / 1000.0, 4.2 + (n % 777) / 100.0, 'standard',
        NULL, NULL, '', NULL, ''
    FROM numbers
"""

_ATTEMPTS = f"""
    {_NUMBERS}, tries (seq) AS (VALUES (0), (1))
    INSERT INTO attempts
    SELECT n, seq, 'model-' || ((n * 104729 + 3 * (last_try - seq)) % 8), 'own', 'http://10.0.0.7:8000', 'small',
        'rule:code-to-large', CASE WHEN seq < last_try THEN 'timeout' ELSE 'ok' END, 200,
        CASE WHEN seq < last_try THEN 0 ELSE 1000 + n % 997 END, CASE WHEN seq < last_try THEN 0 ELSE n % 900 END, 0,
        CASE WHEN seq < last_try THEN 0 ELSE 100 + n % 499 END, 0, 0,
        CASE WHEN seq < last_try THEN 0 ELSE 450000000 + n % 1000003 END, 'config:model#12345678', 0.001, 0.2,
        4.2 + (n % 777) / 100.0, seq = last_try
    FROM (SELECT n, CASE WHEN n % 10 = 0 THEN 1 ELSE 0 END AS last_try FROM numbers) JOIN tries ON seq <= last_try
"""
