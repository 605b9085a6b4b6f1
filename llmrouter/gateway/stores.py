"""The books of one worker as its configuration names them: one file, or a file with servers behind it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from llmrouter.config import Config
from llmrouter.ledger.sqlite import SqliteLedger
from llmrouter.protocols import Ledger

__all__ = ["open_ledger"]


def open_ledger(config: Config, path: Path, current: Callable[[], Config]) -> Ledger:
    """The ledger that a worker's calls go through; `current` is the configuration in force when it is asked."""

    def members(group_id: str) -> Collection[str]:
        return [tenant_id for tenant_id, tenant in current().tenants.items() if tenant.group == group_id]

    return SqliteLedger(path, durability=config.ledger.durability, unknown=config.ledger.unknown, group_members=members)
