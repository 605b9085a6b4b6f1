"""The books of one worker as its configuration names them: one file, or a file with servers behind it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from llmrouter.config import Config
from llmrouter.ledger.sqlite import SqliteLedger
from llmrouter.postgres import Postgres
from llmrouter.protocols import Ledger
from llmrouter.shared_store import SharedStore

__all__ = ["open_ledger"]


def open_ledger(config: Config, path: Path, store: SharedStore, current: Callable[[], Config]) -> Ledger:
    """The ledger that a worker's calls go through.

    Args:
        path: the gateway's own file.
        store: where keys and rules are; a server there holds the ledger too.
        current: the configuration in force when it is asked.

    Raises:
        StoreUnavailable: the file cannot be read.
    """

    def members(group_id: str) -> Collection[str]:
        return [tenant_id for tenant_id, tenant in current().tenants.items() if tenant.group == group_id]

    ledger: Ledger = SqliteLedger(
        path, durability=config.ledger.durability, unknown=config.ledger.unknown, group_members=members
    )
    if isinstance(store, Postgres):
        ledger = _shipped(ledger, config, path, store)
    return ledger


def _shipped(ledger: Ledger, config: Config, path: Path, server: Postgres) -> Ledger:
    from llmrouter.ledger.postgres.ship import Shipper
    from llmrouter.ledger.postgres.spooled import SpooledLedger

    return SpooledLedger(ledger, Shipper(path, server, spool_entries=config.ledger.spool_entries))
