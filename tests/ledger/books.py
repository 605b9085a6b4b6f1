"""Ledger entries and reservations for the tests of the books: plain ones, and arbitrary ones for hypothesis."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from llmrouter.types import Attempt, LedgerEntry, Reservation, Usage

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


def attempt(seq: int = 0, **changes: Any) -> Attempt:
    values: dict[str, Any] = {
        "seq": seq,
        "model_id": "small",
        "pool_id": "own",
        "replica": "http://127.0.0.1:9000",
        "role": "small",
        "reason": "rule:code",
        "outcome": "ok",
        "status": 200,
        "usage": Usage(1500, 900, 0, 400, 0),
        "cost_usd": Decimal("0.00045"),
        "price_id": "config:small#12345678",
        "queue_s": 0.001,
        "ttft_s": 0.2,
        "total_s": 4.2,
        "committed": True,
    }
    return Attempt(**{**values, **changes})


def entry(request_id: str = "r1", **changes: Any) -> LedgerEntry:
    values: dict[str, Any] = {
        "request_id": request_id,
        "ts": NOON,
        "tenant_id": "acme",
        "key_id": "k1",
        "endpoint": "chat",
        "tier": "auto",
        "model_id": "small",
        "strategy": "rules",
        "reason": "rule:code",
        "rule_id": "code",
        "routing_version": 7,
        "config_version": 3,
        "intent": "code",
        "tags": {"team": "search"},
        "stream": True,
        "status": 200,
        "finish": "stop",
        "error_code": None,
        "aborted": False,
        "usage": Usage(1500, 900, 0, 400, 0),
        "cost_usd": Decimal("0.00045"),
        "reference_model_id": "large",
        "reference_cost_usd": Decimal("0.00615"),
        "queue_s": 0.001,
        "ttft_s": 0.2,
        "total_s": 4.2,
        "attempts": (attempt(),),
    }
    return LedgerEntry(**{**values, **changes})


def reservation(request_id: str = "r1", **changes: Any) -> Reservation:
    values: dict[str, Any] = {
        "request_id": request_id,
        "ts": NOON,
        "tenant_id": "acme",
        "key_id": "k1",
        "user_id": None,
        "endpoint": "chat",
        "tier": "auto",
        "latency_class": "standard",
        "model_id": "small",
        "price_id": "config:small#12345678",
        "routing_version": 7,
        "config_version": 3,
        "stream": True,
        "tags": {"team": "search"},
        "input_tokens": 2000,
        "output_tokens": 1000,
        "cost_usd": Decimal("0.0008"),
        "expires_at": NOON + timedelta(seconds=660),
        "limits": (),
    }
    return Reservation(**{**values, **changes})


_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
_tokens = st.integers(0, 2**40)
_seconds = st.floats(0, 1e6)
_dollars = st.integers(0, 2**62).map(lambda pico: Decimal(pico).scaleb(-12))
_usages = st.builds(Usage, _tokens, _tokens, _tokens, _tokens, _tokens, st.booleans())
_moments = st.datetimes(
    datetime(1970, 1, 2),  # noqa: DTZ001 - hypothesis adds the zone
    datetime(9000, 1, 1),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=-8))]),
)


@st.composite
def _attempts(draw: st.DrawFn) -> tuple[Attempt, ...]:
    one = st.builds(
        Attempt,
        seq=st.just(0),
        model_id=_text,
        pool_id=_text,
        replica=_text,
        role=_text,
        reason=_text,
        outcome=_text,
        status=st.integers(0, 599),
        usage=_usages,
        cost_usd=_dollars,
        price_id=_text,
        queue_s=_seconds,
        ttft_s=st.none() | _seconds,
        total_s=_seconds,
        committed=st.booleans(),
    )
    drawn = draw(st.lists(one, max_size=3))
    return tuple(attempt(seq, **_fields(made)) for seq, made in enumerate(drawn))


def _fields(made: Attempt) -> dict[str, Any]:
    return {each.name: getattr(made, each.name) for each in fields(made) if each.name != "seq"}


entries = st.builds(
    LedgerEntry,
    request_id=_text,
    ts=_moments,
    tenant_id=_text,
    key_id=_text,
    endpoint=_text,
    tier=_text,
    model_id=st.none() | _text,
    strategy=_text,
    reason=_text,
    rule_id=st.none() | _text,
    routing_version=st.integers(0, 10**6),
    config_version=st.integers(0, 10**6),
    intent=_text,
    tags=st.dictionaries(_text, _text, max_size=3),
    stream=st.booleans(),
    status=st.integers(0, 599),
    finish=st.none() | _text,
    error_code=st.none() | _text,
    aborted=st.booleans(),
    usage=_usages,
    cost_usd=_dollars,
    reference_model_id=st.none() | _text,
    reference_cost_usd=st.none() | _dollars,
    queue_s=_seconds,
    ttft_s=st.none() | _seconds,
    total_s=_seconds,
    attempts=_attempts(),
    route=_text,
    score=st.none() | st.floats(0, 1),
    checks=_text,
)
"""Any entry that the books can hold."""
