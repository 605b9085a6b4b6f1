"""Usage added up the slow way, from the entries themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, date

from llmrouter.ledger.usage import Group, Question
from llmrouter.pricing.money import to_pico
from llmrouter.types import Attempt, LedgerEntry, Usage

__all__ = ["expected", "found"]


def expected(entries: Iterable[LedgerEntry], question: Question) -> dict[tuple[str | None, ...], tuple[int, ...]]:
    """The groups that an answer has to have, by their keys."""
    groups: dict[tuple[str | None, ...], list[tuple[int, ...]]] = defaultdict(list)
    for entry in entries:
        if _counts(entry, question):
            for attempt in [None] if question.measure == "calls" else entry.attempts:
                keys = tuple(_key(name, entry, attempt) for name in question.by)
                groups[keys].append(_call(entry) if attempt is None else _attempt(attempt))
    return {keys: tuple(map(sum, zip(*rows, strict=True))) for keys, rows in groups.items()}


def found(groups: Iterable[Group]) -> dict[tuple[str | None, ...], tuple[int, ...]]:
    """The groups of an answer, by their keys."""
    return {group.keys: group.numbers for group in groups}


def _counts(entry: LedgerEntry, question: Question) -> bool:
    day = _day(entry)
    within = (question.since or date.min) <= day and (question.until is None or day < question.until)
    return within and (not question.tenants or entry.tenant_id in question.tenants)


def _day(entry: LedgerEntry) -> date:
    return entry.ts.astimezone(UTC).date()


def _key(name: str, entry: LedgerEntry, attempt: Attempt | None) -> str | None:
    moment = entry.ts.astimezone(UTC)
    keys: dict[str, str | None] = {
        "tenant": entry.tenant_id,
        "key": entry.key_id,
        "user": entry.user_id,
        "tier": entry.tier,
        "model": entry.model_id if attempt is None else attempt.model_id,
        "class": entry.latency_class,
        "month": f"{moment:%Y-%m}",
        "day": f"{moment:%Y-%m-%d}",
        "hour": f"{moment:%Y-%m-%dT%H}:00Z",
        "price": None if attempt is None else attempt.price_id,
        "pool": None if attempt is None else attempt.pool_id,
    }
    return entry.tags.get(name.removeprefix("tag:")) if name.startswith("tag:") else keys[name]


def _call(entry: LedgerEntry) -> tuple[int, ...]:
    reference = entry.reference_cost_usd
    return (
        1,
        entry.model_id is None,
        entry.aborted,
        entry.degraded_to is not None,
        entry.error_code == "unknown",
        *_tokens(entry.usage),
        to_pico(entry.cost_usd),
        0 if reference is None else to_pico(reference),
    )


def _attempt(attempt: Attempt) -> tuple[int, ...]:
    return (
        1,
        attempt.outcome != "ok",
        attempt.committed,
        attempt.outcome == "unknown",
        *_tokens(attempt.usage),
        to_pico(attempt.cost_usd),
    )


def _tokens(usage: Usage) -> tuple[int, ...]:
    return (
        usage.estimated,
        usage.input_tokens,
        usage.cached_tokens,
        usage.cache_write_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
    )
