"""The books of one worker as its configuration names them: one file, or a file with servers behind it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmrouter.config import Config
from llmrouter.database import reading
from llmrouter.ledger.spending import spent_nano
from llmrouter.ledger.sqlite import SqliteLedger
from llmrouter.postgres import Postgres
from llmrouter.protocols import Ledger
from llmrouter.shared_store import SharedStore
from llmrouter.tenancy.limits import LimitBook
from llmrouter.types import Limit, Reservation, Spent

if TYPE_CHECKING:
    from llmrouter.ledger.postgres.ship import Shipper
    from llmrouter.tenancy.shared_limits import SharedLimits

__all__ = ["Books", "open_books"]

_Left = Collection[tuple[Reservation, Spent]]


@dataclass(frozen=True)
class Books:
    """What the calls of a worker go through."""

    ledger: Ledger
    start: Callable[[], None] = lambda: None
    """Call it on the event loop that serves."""
    shipper: Shipper | None = None
    """Where the ledger is on a server."""


def open_books(
    config: Config,
    path: Path,
    store: SharedStore,
    current: Callable[[], Config],
    on_unlimited: Callable[[Reservation], None],
) -> Books:
    """Open what the configuration names.

    Args:
        path: the gateway's own file.
        store: where keys and rules are; a server there holds the ledger too.
        current: the configuration in force when it is asked.
        on_unlimited: told of each call that is served without its limits because they cannot be reached.

    Raises:
        StoreUnavailable: the file cannot be read.
        UsageError: the driver of a server is not installed.
    """

    def members(group_id: str) -> Collection[str]:
        return [tenant_id for tenant_id, tenant in current().tenants.items() if tenant.group == group_id]

    burials = _Burials()
    local = SqliteLedger(
        path,
        durability=config.ledger.durability,
        unknown=config.ledger.unknown,
        limits=config.store.limits_url is None,
        group_members=members,
        on_recovered=burials.add,
    )
    ledger: Ledger = local
    shipper = None
    if isinstance(store, Postgres):
        from llmrouter.ledger.postgres.ship import Shipper
        from llmrouter.ledger.postgres.spooled import SpooledLedger

        shipper = Shipper(path, store, spool_entries=config.ledger.spool_entries)
        ledger = SpooledLedger(local, shipper)
    if config.store.limits_url is None:
        return Books(ledger, shipper=shipper)
    from llmrouter.tenancy.redis_limits import RedisLimits
    from llmrouter.tenancy.shared_limits import SharedLimits

    async def spent_so_far(limit: Limit, since_ms: int) -> int:
        return await asyncio.to_thread(_spent, path, store, limit, since_ms, members)

    limits = RedisLimits(
        config.store.limits_url.get_secret_value(), local.owner_name, spent_so_far, lease_s=config.limits.lease_s
    )
    shared = SharedLimits(ledger, limits, when_down=config.limits.on_store_down, on_unlimited=on_unlimited)

    def start() -> None:
        burials.start(shared)
        shared.warm(LimitBook(current()).configured())

    return Books(shared, start=start, shipper=shipper)


def _spent(
    path: Path, store: SharedStore, limit: Limit, since_ms: int, members: Callable[[str], Collection[str]]
) -> int:
    if isinstance(store, Postgres):
        from llmrouter.ledger.postgres.spending import shared_spent_nano

        return shared_spent_nano(path, store, limit.scope, since_ms, members, under_way=False)
    with reading(path) as connection:
        return spent_nano(connection, limit.scope, since_ms, members, under_way=False)


class _Burials:
    """Brings what the ledger's thread finds of dead processes to the shared limits, once there is a loop for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._early: list[tuple[str, _Left]] = []
        self._limits: SharedLimits | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, owner: str, left: _Left) -> None:
        """An owner has died and left these calls; from any thread."""
        with self._lock:
            if self._loop is None or self._limits is None:
                self._early.append((owner, left))
            else:
                self._loop.call_soon_threadsafe(self._limits.bury, owner, list(left))

    def start(self, limits: SharedLimits) -> None:
        """Bury from now on, and those who came early."""
        with self._lock:
            self._limits, self._loop = limits, asyncio.get_running_loop()
            early, self._early = self._early, []
        for owner, left in early:
            limits.bury(owner, list(left))
