"""Old entries go: whole days of the archive and of the server, and rows of the SQLite file in small batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from llmrouter.config import Config
from llmrouter.database import database_path
from llmrouter.ledger.archive import Archive
from llmrouter.ledger.archiving import archive_days
from llmrouter.ledger.prune import prune
from llmrouter.types import value

if TYPE_CHECKING:
    from llmrouter.postgres import Postgres

__all__ = ["Gone", "apply_retention", "drop_before", "first_day_kept", "would_go"]


@value
class Gone:
    """What was dropped, or would be."""

    before: date
    entries: int = 0
    """Rows of the ledger in the SQLite file."""
    archived_days: tuple[date, ...] = ()
    server_days: tuple[date, ...] = ()


def first_day_kept(keep_days: int, now: datetime) -> date:
    """The oldest day that stays: today in UTC and `keep_days` whole days before it."""
    today = now.astimezone(UTC).date()
    return today - min(timedelta(days=keep_days), today - date.min)


def apply_retention(config: Config, now: datetime, *, pause: Callable[[float], None] = time.sleep) -> Gone | None:
    """Drop what is older than `ledger.keep_days`; None where everything is kept for good.

    A repeat is harmless, also by several processes at once. May take minutes; call it outside an event loop.

    Raises:
        StoreUnavailable: a place could not be used, or another process is changing the archive; the next call goes on.
    """
    if config.ledger.keep_days is None:
        return None
    return drop_before(
        database_path(config.store.url), _server(config), first_day_kept(config.ledger.keep_days, now), pause=pause
    )


def drop_before(
    path: Path, server: Postgres | None, before: date, *, pause: Callable[[float], None] = time.sleep
) -> Gone:
    """Drop all days before a date.

    With a server, the file is a spool, whose rows stay until they are shipped: they go the next time.

    Raises:
        StoreUnavailable: as `apply_retention`.
    """
    archive = Archive.of(path)
    archived: list[date] = []
    if archive.days(until=before):
        with archive.locked():
            archived = archive.drop(before)
    if server is not None:
        from llmrouter.ledger.postgres.partitions import drop_partitions

        return Gone(before, 0, tuple(archived), tuple(drop_partitions(server, before)))
    entries = prune(path, datetime(before.year, before.month, before.day, tzinfo=UTC), pause=pause)
    return Gone(before, entries, tuple(archived))


def would_go(path: Path, server: Postgres | None, before: date) -> Gone:
    """What `drop_before` would drop now; raises as that."""
    archived = tuple(each.day for each in Archive.of(path).days(until=before))
    if server is not None:
        from llmrouter.ledger.postgres.partitions import partition_days

        return Gone(before, 0, archived, tuple(day for day in partition_days(server) if day < before))
    return Gone(before, sum(count for _, count in archive_days(path, before)), archived)


def _server(config: Config) -> Postgres | None:
    if config.store.ledger_url is None:
        return None
    from llmrouter.postgres import Postgres

    return Postgres(config.store.ledger_url.get_secret_value())
