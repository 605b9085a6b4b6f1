"""Reading the books: single calls and exact totals, for the command line and reports. Never on the way of a request."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args

from llmrouter.database import reading, to_instant
from llmrouter.errors import UsageError
from llmrouter.ledger.entries import entry_of
from llmrouter.pricing.money import exact_sum, from_halves
from llmrouter.types import LedgerEntry

__all__ = ["Grouping", "ModelUsage", "Totals", "model_usage", "recent_entries", "totals"]

Grouping = Literal["all", "tenant", "key", "tier", "model", "strategy", "rule", "intent", "routing_version", "day"]

_GROUP_SQL: dict[str, str] = {
    "all": "'all'",
    "tenant": "tenant_id",
    "key": "key_id",
    "tier": "tier",
    "model": "model_id",
    "strategy": "strategy",
    "rule": "rule_id",
    "intent": "intent",
    "routing_version": "routing_version",
    "day": "substr(ts, 1, 10)",
}


@dataclass(frozen=True, slots=True)
class Totals:
    """What a group of calls used, cost and would have cost on the reference model."""

    key: str | None
    """The group, e.g. a tenant's id; None for calls without one, such as those that no model answered."""
    requests: int
    failed: int
    """Calls that no model answered; their cost counts."""
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost_usd: Decimal
    reference_cost_usd: Decimal
    incomparable_cost_usd: Decimal
    """The part of `cost_usd` of answered calls that have no reference cost, such as embeddings."""

    @property
    def saved_usd(self) -> Decimal:
        """Reference cost less the cost of what it stands for and of failed calls; negative when routing cost more."""
        return self.reference_cost_usd - (self.cost_usd - self.incomparable_cost_usd)


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What one model did over all attempts, whether or not its answer was the one the client got."""

    model_id: str
    attempts: int
    failed: int
    committed: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost_usd: Decimal


def recent_entries(path: Path, limit: int, request_id: str | None = None) -> list[LedgerEntry]:
    """The newest entries with their attempts, newest first; with a `request_id` only that one."""
    condition, given = ("TRUE", ()) if request_id is None else ("request_id = ?", (request_id,))
    newest = f"SELECT * FROM ledger WHERE {condition} ORDER BY ts DESC, id DESC LIMIT ?"  # noqa: S608 - own text
    with reading(path) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute(newest, (*given, limit)).fetchall()
        attempts: dict[int, list[sqlite3.Row]] = defaultdict(list)
        for row in rows:
            wanted = "SELECT * FROM attempts WHERE entry_id = ? ORDER BY seq"
            attempts[row["id"]] = connection.execute(wanted, (row["id"],)).fetchall()
    return [entry_of(row, attempts[row["id"]]) for row in rows]


def totals(
    path: Path, since: datetime | None = None, until: datetime | None = None, by: Grouping = "all"
) -> list[Totals]:
    """Totals of the calls from `since` up to, not including, `until`; the dearest group first.

    Every call is in exactly one group, so the groups add up to the whole. By `model` means the model that answered and
    includes what its failed predecessors cost; see `model_usage` for what each model cost by itself.
    """
    if by not in _GROUP_SQL:
        raise UsageError(f"cannot group by {by!r}; known: {', '.join(get_args(Grouping))}")
    condition, given = _period(since, until)
    incomparable = "iif(model_id IS NOT NULL AND reference_cost_picousd IS NULL, cost_picousd, 0)"
    query = f"""
        SELECT {_GROUP_SQL[by]} AS grouped, count(*), sum(model_id IS NULL), sum(input_tokens), sum(cached_tokens),
            sum(output_tokens), sum(reasoning_tokens),
            {exact_sum("cost_picousd")}, {exact_sum("reference_cost_picousd")}, {exact_sum(incomparable)}
        FROM ledger WHERE {condition} GROUP BY grouped
    """  # noqa: S608 - own text, values are bound
    with reading(path) as connection:
        found = [_totals(row) for row in connection.execute(query, given)]
    return sorted(found, key=lambda group: (-group.cost_usd, group.key or ""))


def model_usage(path: Path, since: datetime | None = None, until: datetime | None = None) -> list[ModelUsage]:
    """What each model did in a period, from its attempts, failed ones too; the dearest first. Bounds as in `totals`."""
    condition, given = _period(since, until)
    query = f"""
        SELECT model_id, count(*), sum(outcome <> 'ok'), sum(committed), sum(tokens_in), sum(cached_tokens),
            sum(tokens_out), sum(reasoning_tokens), {exact_sum("cost_picousd")}
        FROM usage WHERE {condition} GROUP BY model_id
    """  # noqa: S608 - own text, values are bound
    with reading(path) as connection:
        found = [ModelUsage(*(*row[:8], from_halves(*row[8:]))) for row in connection.execute(query, given)]
    return sorted(found, key=lambda usage: (-usage.cost_usd, usage.model_id))


def _period(since: datetime | None, until: datetime | None) -> tuple[str, tuple[str, ...]]:
    bounds = [("ts >= ?", since), ("ts < ?", until)]
    given = [(condition, to_instant(moment)) for condition, moment in bounds if moment is not None]
    return " AND ".join(condition for condition, _ in given) or "TRUE", tuple(text for _, text in given)


def _totals(row: Sequence[Any]) -> Totals:
    key, *counts = row[:7]
    costs = (from_halves(*row[at : at + 2]) for at in (7, 9, 11))
    return Totals(None if key is None else str(key), *counts, *costs)
