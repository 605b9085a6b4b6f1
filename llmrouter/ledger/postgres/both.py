"""Books of which a part is on the server and the rest still here, seen at one moment: no entry twice, none missing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from llmrouter.database import reading
from llmrouter.ledger.postgres.spool import spool_name
from llmrouter.postgres import Postgres
from llmrouter.types import value

if TYPE_CHECKING:
    import psycopg

__all__ = ["Both", "both"]


@value
class Both:
    """One moment of a spool and its server."""

    spool: sqlite3.Connection
    server: psycopg.Connection[Any]
    waiting: str
    """A condition on the spool's `ledger.id`: the entry is not on the server."""

    def counted_twice(self) -> list[str]:
        """Request ids of entries that are in both places: a few, of batches that are being deleted here."""
        query = f"SELECT request_id FROM ledger WHERE NOT ({self.waiting})"  # noqa: S608 - numbers of ours
        return [request_id for (request_id,) in self.spool.execute(query)]


@contextmanager
def both(path: Path, database: Postgres, *, timeout_s: float = 300.0) -> Iterator[Both]:
    """Read the spool at `path` and the server together; `timeout_s` bounds each statement of the server.

    The spool's moment comes first: what was deleted there before it is on the server, and the server's mark tells which
    of what was still there had been shipped. Other gateways' entries count once they are shipped.

    Raises:
        StoreUnavailable: the file or the server cannot be read.
    """
    with reading(path) as spool:
        name = spool_name(spool)
        with database.errors(), closing(database.connect(statement_timeout_s=timeout_s)) as server:
            server.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield Both(spool, server, _waiting(server, name))


def _waiting(server: psycopg.Connection[Any], name: str | None) -> str:
    mark = server.execute("SELECT coalesce(max(last_id), 0) FROM spools WHERE name = %s", (name,)).fetchone()
    refused = server.execute("SELECT entry_id FROM spool_refused WHERE name = %s ORDER BY entry_id", (name,))
    ids = orjson.dumps([entry_id for (entry_id,) in refused]).decode()
    assert mark is not None
    return f"ledger.id > {int(mark[0])} OR ledger.id IN (SELECT value FROM json_each('{ids}'))"  # noqa: S608 - numbers
