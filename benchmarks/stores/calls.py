"""The calls that are booked: one prompt of 1,500 tokens and an answer of 400, always the same but for its id."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from llmrouter.types import Attempt, LedgerEntry, Limit, Reservation, Usage

__all__ = ["FIVE_LIMITS", "TWO_RATES", "calls"]

TWO_RATES = (
    Limit("key:k1", "requests_per_minute", 10**8, 10**8),
    Limit("tenant:acme", "tokens_per_minute", 10**12, 10**12),
)
"""Never reached: what is measured is counting, not refusing."""

FIVE_LIMITS = (
    *TWO_RATES,
    Limit("tenant:acme", "concurrent_requests", 10**6),
    Limit("tenant:acme", "usd_per_day", 10**15),
    Limit("tier:auto", "requests_per_minute", 10**9, 10**9),
)

_USAGE = Usage(1500, 900, 0, 400, 0)
_COST = Decimal("0.00045")


def calls(count: int, limits: tuple[Limit, ...], now: datetime) -> Sequence[tuple[Reservation, LedgerEntry]]:
    """So many calls of this moment, each reserved and answered once."""
    return [(_reservation(request_id, limits, now), _entry(request_id, now)) for request_id in _ids(count)]


def _ids(count: int) -> list[str]:
    """Random, as real ones are."""
    return [f"chatcmpl-{secrets.token_hex(12)}" for _ in range(count)]


def _reservation(request_id: str, limits: tuple[Limit, ...], now: datetime) -> Reservation:
    return Reservation(
        request_id=request_id,
        ts=now.astimezone(UTC),
        tenant_id="acme",
        key_id="k1",
        user_id=None,
        endpoint="chat",
        tier="auto",
        latency_class="standard",
        model_id="small",
        price_id="config:small#12345678",
        routing_version=7,
        config_version=3,
        stream=True,
        tags={"team": "search"},
        input_tokens=2000,
        output_tokens=1000,
        cost_usd=Decimal("0.0008"),
        expires_at=now + timedelta(seconds=660),
        limits=limits,
    )


def _entry(request_id: str, now: datetime) -> LedgerEntry:
    attempt = Attempt(
        seq=0,
        model_id="small",
        pool_id="own",
        replica="http://10.0.0.7:8000",
        role="small",
        reason="rule:code",
        outcome="ok",
        status=200,
        usage=_USAGE,
        cost_usd=_COST,
        price_id="config:small#12345678",
        queue_s=0.001,
        ttft_s=0.2,
        total_s=4.2,
        committed=True,
    )
    return LedgerEntry(
        request_id=request_id,
        ts=now,
        tenant_id="acme",
        key_id="k1",
        endpoint="chat",
        tier="auto",
        model_id="small",
        strategy="rules",
        reason="rule:code",
        rule_id="code",
        routing_version=7,
        config_version=3,
        intent="code",
        tags={"team": "search"},
        stream=True,
        status=200,
        finish="stop",
        error_code=None,
        aborted=False,
        usage=_USAGE,
        cost_usd=_COST,
        reference_model_id="large",
        reference_cost_usd=Decimal("0.00615"),
        queue_s=0.001,
        ttft_s=0.2,
        total_s=4.2,
        attempts=(attempt,),
    )
