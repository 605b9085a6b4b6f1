"""What a gateway does by itself now and then, whatever its traffic: old entries and samples go."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime

from llmrouter.config import Config
from llmrouter.database import database_path
from llmrouter.errors import RouterError
from llmrouter.ledger.retention import apply_retention
from llmrouter.quality.sample_store import erase_log, purge_expired

__all__ = ["keep_house"]

_log = logging.getLogger("llmrouter.supervisor")

_EVERY_S = 3600.0


class _Stopped(Exception):
    pass


async def keep_house(
    config: Callable[[], Config], *, every_s: float = _EVERY_S, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> None:
    """Go round at once and then every so often, in a thread, until cancelled; a store that is down waits for the next.

    Cancelled in the middle, it stops after the batch it is at.
    """
    stop = threading.Event()
    try:
        while True:
            await asyncio.to_thread(_round, config(), now(), stop)
            await asyncio.sleep(every_s)
    finally:
        stop.set()


def _round(config: Config, now: datetime, stop: threading.Event) -> None:
    def pause(seconds: float) -> None:
        if stop.wait(seconds):
            raise _Stopped

    try:
        gone = apply_retention(config, now, pause=pause)
        if gone is not None and (gone.entries or gone.archived_days or gone.server_days):
            _log.info(
                "before %s: %d entries of the file dropped, %d days of the archive, %d of the ledger database",
                gone.before,
                gone.entries,
                len(gone.archived_days),
                len(gone.server_days),
            )
        path = database_path(config.store.url)
        purged = purge_expired(path, now)
        if purged:
            erase_log(path)
            _log.info("%d expired samples deleted", purged)
    except _Stopped:
        return
    except RouterError as error:
        _log.warning("old entries and samples stay until the next round: %s", error.message)
    except Exception:  # noqa: BLE001 - one round that fails must not be the last one
        _log.exception("old entries and samples stay until the next round")
