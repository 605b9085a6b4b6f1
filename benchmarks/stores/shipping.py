"""Entries from a spool to PostgreSQL: by `Delivery`, and by a bare loop of COPY into the same tables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks.stores.turns import Turn
from benchmarks.usage.books import DAYS, FIRST_DAY, PRUNED_DAY, fill
from llmrouter.database import open_database
from llmrouter.ledger.postgres.delivery import Delivery
from llmrouter.ledger.postgres.partitions import make_partitions
from llmrouter.ledger.postgres.spool import ATTEMPTS, ENTRIES, Spool
from llmrouter.postgres import Postgres, migrate_postgres

if TYPE_CHECKING:
    import psycopg

__all__ = ["BATCH", "Shipment", "shipment"]

BATCH = 2000
"""Entries in one transaction."""

_Rows = tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]


@dataclass
class Shipment:
    """One spool that goes to a server in two ways, by turns, into two databases that begin empty."""

    spool: Spool
    delivery: Delivery
    bare: psycopg.Connection[Any]
    _copied: int = field(default=0, init=False)

    def ship(self, batches: int) -> Turn:
        """The next batches as the gateway's thread ships them: read, sent, moved, deleted here."""
        began, cpu_s = time.perf_counter(), time.process_time()
        shipped = sum(self.delivery.ship_once() for _ in range(batches))
        return Turn(shipped, time.perf_counter() - began, time.process_time() - cpu_s)

    def copy(self, batches: int) -> Turn:
        """COPY of the batches that `ship` takes next, which must come after: read beforehand, straight into the tables,
        and nobody asks what is there already.
        """
        rows = self._next(batches)
        began, cpu_s = time.perf_counter(), time.process_time()
        for some in rows:
            with self.bare.transaction(), self.bare.cursor() as cursor:
                for sql, table in zip(_COPIES, some, strict=True):
                    with cursor.copy(sql) as copy:
                        for row in table:
                            copy.write_row(row)
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
        return Turn(sum(len(entries) for entries, _ in rows), seconds, cpu_s)

    def _next(self, batches: int) -> Sequence[_Rows]:
        found = []
        for _ in range(batches):
            batch = self.spool.after(self._copied, BATCH)
            self._copied = batch.last_id
            found.append(([row[1:] for row in batch.entries], [row[1:] for row in batch.attempts]))
        return found


@contextmanager
def shipment(path: Path, url: str, batches: int) -> Iterator[Shipment]:
    """Fill a spool of so many batches, and make the databases on the server at `url`."""
    fill(path, batches * BATCH)
    spool = Spool(path)
    # The ledger's writer holds the file open; alone, whoever closes it pays for a checkpoint each time.
    with closing(open_database(path)) as held, closing(_database(url, "bare").connect()) as bare:
        held.execute("SELECT count(*) FROM ledger").fetchall()
        delivery = Delivery(spool, _database(url, "shipped"), most=BATCH)
        try:
            yield Shipment(spool, delivery, bare)
        finally:
            delivery.close()


def _database(url: str, name: str) -> Postgres:
    """A new database with the tables of the books and all days that are shipped."""
    with closing(Postgres(url).connect()) as server:
        server.execute(f"CREATE DATABASE {name}".encode())
    database = Postgres(urlsplit(url)._replace(path=f"/{name}").geturl())
    migrate_postgres(database)
    with closing(database.connect()) as connection:
        make_partitions(connection, [PRUNED_DAY, *(FIRST_DAY + timedelta(days=day) for day in range(DAYS + 1))])
    return database


_COPIES = [
    f"COPY {table} ({', '.join(columns)}) FROM STDIN".encode()
    for table, columns in (("ledger", ENTRIES), ("attempts", ATTEMPTS))
]
