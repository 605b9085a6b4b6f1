"""Ledger entries as rows and back; the one place that knows the order of the columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import orjson

from llmrouter.database import from_instant, to_instant
from llmrouter.pricing.money import from_pico, to_pico
from llmrouter.types import Attempt, LedgerEntry, Usage

__all__ = ["ATTEMPT_COLUMNS", "ENTRY_COLUMNS", "Row", "attempt_rows", "entry_of", "entry_row"]

_USAGE = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens", "estimated")

ENTRY_COLUMNS = (
    "id",
    "request_id",
    "ts",
    "tenant_id",
    "key_id",
    "endpoint",
    "tier",
    "model_id",
    "strategy",
    "reason",
    "rule_id",
    "routing_version",
    "config_version",
    "intent",
    "tags",
    "stream",
    "status",
    "finish",
    "error_code",
    "aborted",
    *_USAGE,
    "cost_picousd",
    "reference_model_id",
    "reference_cost_picousd",
    "queue_s",
    "ttft_s",
    "total_s",
    "latency_class",
    "user_id",
    "degraded_to",
    "route",
    "score",
    "checks",
)

ATTEMPT_COLUMNS = (
    "entry_id",
    "seq",
    "model_id",
    "pool_id",
    "replica",
    "role",
    "reason",
    "outcome",
    "status",
    *_USAGE,
    "cost_picousd",
    "price_id",
    "queue_s",
    "ttft_s",
    "total_s",
    "committed",
)


def entry_row(number: int, entry: LedgerEntry) -> tuple[Any, ...]:
    """The entry's own row in the order of `ENTRY_COLUMNS`; raises whatever a value that cannot be stored raises."""
    reference_cost = entry.reference_cost_usd
    return (
        number,
        entry.request_id,
        to_instant(entry.ts),
        entry.tenant_id,
        entry.key_id,
        entry.endpoint,
        entry.tier,
        entry.model_id,
        entry.strategy,
        entry.reason,
        entry.rule_id,
        entry.routing_version,
        entry.config_version,
        entry.intent,
        orjson.dumps(entry.tags, default=dict).decode() if entry.tags else "{}",
        entry.stream,
        entry.status,
        entry.finish,
        entry.error_code,
        entry.aborted,
        *_usage_row(entry.usage),
        to_pico(entry.cost_usd),
        entry.reference_model_id,
        None if reference_cost is None else to_pico(reference_cost),
        entry.queue_s,
        entry.ttft_s,
        entry.total_s,
        entry.latency_class,
        entry.user_id,
        entry.degraded_to,
        entry.route,
        entry.score,
        entry.checks,
    )


def attempt_rows(number: int, attempts: Iterable[Attempt]) -> list[tuple[Any, ...]]:
    """The rows of an entry's attempts in the order of `ATTEMPT_COLUMNS`."""
    return [
        (
            number,
            attempt.seq,
            attempt.model_id,
            attempt.pool_id,
            attempt.replica,
            attempt.role,
            attempt.reason,
            attempt.outcome,
            attempt.status,
            *_usage_row(attempt.usage),
            to_pico(attempt.cost_usd),
            attempt.price_id,
            attempt.queue_s,
            attempt.ttft_s,
            attempt.total_s,
            attempt.committed,
        )
        for attempt in attempts
    ]


def _usage_row(usage: Usage) -> tuple[int, int, int, int, int, bool]:
    return (
        usage.input_tokens,
        usage.cached_tokens,
        usage.cache_write_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
        usage.estimated,
    )


class Row(Protocol):
    """A row that is read by column name."""

    def __getitem__(self, name: str, /) -> Any: ...


def entry_of(row: Row, attempts: Sequence[Row]) -> LedgerEntry:
    """The entry of a ledger row and its attempts' rows in order; equal to the one that was recorded.

    Costs come back in whole pico-dollars and `ts` in UTC.
    """
    reference_cost = row["reference_cost_picousd"]
    return LedgerEntry(
        request_id=row["request_id"],
        ts=from_instant(row["ts"]),
        tenant_id=row["tenant_id"],
        key_id=row["key_id"],
        endpoint=row["endpoint"],
        tier=row["tier"],
        model_id=row["model_id"],
        strategy=row["strategy"],
        reason=row["reason"],
        rule_id=row["rule_id"],
        routing_version=row["routing_version"],
        config_version=row["config_version"],
        intent=row["intent"],
        tags=orjson.loads(row["tags"]),
        stream=bool(row["stream"]),
        status=row["status"],
        finish=row["finish"],
        error_code=row["error_code"],
        aborted=bool(row["aborted"]),
        usage=_usage_of(row),
        cost_usd=from_pico(row["cost_picousd"]),
        reference_model_id=row["reference_model_id"],
        reference_cost_usd=None if reference_cost is None else from_pico(reference_cost),
        queue_s=row["queue_s"],
        ttft_s=row["ttft_s"],
        total_s=row["total_s"],
        attempts=tuple(_attempt_of(attempt) for attempt in attempts),
        latency_class=row["latency_class"],
        user_id=row["user_id"],
        degraded_to=row["degraded_to"],
        route=row["route"],
        score=row["score"],
        checks=row["checks"],
    )


def _attempt_of(row: Row) -> Attempt:
    return Attempt(
        seq=row["seq"],
        model_id=row["model_id"],
        pool_id=row["pool_id"],
        replica=row["replica"],
        role=row["role"],
        reason=row["reason"],
        outcome=row["outcome"],
        status=row["status"],
        usage=_usage_of(row),
        cost_usd=from_pico(row["cost_picousd"]),
        price_id=row["price_id"],
        queue_s=row["queue_s"],
        ttft_s=row["ttft_s"],
        total_s=row["total_s"],
        committed=bool(row["committed"]),
    )


def _usage_of(row: Row) -> Usage:
    return Usage(
        input_tokens=row["input_tokens"],
        cached_tokens=row["cached_tokens"],
        cache_write_tokens=row["cache_write_tokens"],
        output_tokens=row["output_tokens"],
        reasoning_tokens=row["reasoning_tokens"],
        estimated=bool(row["estimated"]),
    )
