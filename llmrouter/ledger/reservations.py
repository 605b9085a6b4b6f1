"""Reservations as rows and back, and the entry that stands for a call whose end nobody saw."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from decimal import Decimal
from typing import Any, Literal

import orjson

from llmrouter.database import from_instant, to_instant
from llmrouter.pricing.money import to_pico
from llmrouter.types import Attempt, LedgerEntry, Limit, Reservation, Usage

__all__ = [
    "UnknownPolicy",
    "body_of",
    "delete",
    "held",
    "held_by",
    "insert",
    "reservation_of",
    "unknown_entry",
]

UnknownPolicy = Literal["reserved", "nothing"]
"""What a call is billed at whose end nobody saw: all that was set aside for it, or nothing."""


def body_of(reservation: Reservation) -> str:
    """The JSON that the table keeps.

    Raises:
        ValueError, OverflowError: it holds what the books could not take either.
    """
    to_pico(reservation.cost_usd)
    return orjson.dumps(
        {
            "request_id": reservation.request_id,
            "ts": to_instant(reservation.ts),
            "tenant_id": reservation.tenant_id,
            "key_id": reservation.key_id,
            "user_id": reservation.user_id,
            "endpoint": reservation.endpoint,
            "tier": reservation.tier,
            "latency_class": reservation.latency_class,
            "model_id": reservation.model_id,
            "price_id": reservation.price_id,
            "routing_version": reservation.routing_version,
            "config_version": reservation.config_version,
            "stream": reservation.stream,
            "tags": reservation.tags,
            "input_tokens": reservation.input_tokens,
            "output_tokens": reservation.output_tokens,
            "cost_usd": str(reservation.cost_usd),
            "expires_at": to_instant(reservation.expires_at),
            "limits": [(limit.scope, limit.kind, limit.most, limit.burst) for limit in reservation.limits],
            "degraded_to": reservation.degraded_to,
        },
        default=dict,
    ).decode()


def reservation_of(body: str) -> Reservation:
    """What `body_of` wrote."""
    fields: dict[str, Any] = orjson.loads(body)
    return Reservation(
        **{
            **fields,
            "ts": from_instant(fields["ts"]),
            "cost_usd": Decimal(fields["cost_usd"]),
            "expires_at": from_instant(fields["expires_at"]),
            "limits": tuple(Limit(*each) for each in fields["limits"]),
        }
    )


def held(connection: sqlite3.Connection, request_id: str) -> Reservation:
    """One open reservation that is known to be there."""
    (body,) = connection.execute("SELECT body FROM reservations WHERE request_id = ?", (request_id,)).fetchone()
    return reservation_of(body)


def held_by(connection: sqlite3.Connection, owner: int) -> list[Reservation]:
    """The open reservations of one owner."""
    rows = connection.execute("SELECT body FROM reservations WHERE owner = ? ORDER BY taken_ms", (owner,))
    return [reservation_of(body) for (body,) in rows]


def insert(connection: sqlite3.Connection, owner: int, taken_ms: int, reservations: Collection[Reservation]) -> None:
    """Write reservations that are not there yet; the caller has begun a transaction and ends it."""
    rows = [(each.request_id, owner, taken_ms, body_of(each)) for each in reservations]
    connection.executemany("INSERT INTO reservations VALUES (?, ?, ?, ?)", rows)


def delete(connection: sqlite3.Connection, request_ids: Sequence[str]) -> None:
    """End reservations; the caller has begun a transaction and ends it."""
    connection.executemany("DELETE FROM reservations WHERE request_id = ?", [(each,) for each in request_ids])


def unknown_entry(reservation: Reservation, policy: UnknownPolicy, reason: str) -> LedgerEntry:
    """The entry of a call whose end nobody saw: status 500, error code `unknown`, no answering model.

    Its one attempt is on the model that the plan began with, at all that was set aside or at nothing, and marked as
    estimated; so entry and attempts agree, and the sum over models is the sum over calls. Times that nobody measured
    are 0.
    """
    usage, cost_usd = Usage(estimated=True), Decimal(0)
    if policy == "reserved":
        usage = Usage(reservation.input_tokens, output_tokens=reservation.output_tokens, estimated=True)
        cost_usd = reservation.cost_usd
    attempt = Attempt(
        seq=0,
        model_id=reservation.model_id,
        pool_id="unknown",
        replica="unknown",
        role="unknown",
        reason=reason,
        outcome="unknown",
        status=0,
        usage=usage,
        cost_usd=cost_usd,
        price_id=reservation.price_id,
        queue_s=0.0,
        ttft_s=None,
        total_s=0.0,
    )
    return LedgerEntry(
        request_id=reservation.request_id,
        ts=reservation.ts,
        tenant_id=reservation.tenant_id,
        key_id=reservation.key_id,
        endpoint=reservation.endpoint,
        tier=reservation.tier,
        model_id=None,
        strategy="unknown",
        reason=reason,
        rule_id=None,
        routing_version=reservation.routing_version,
        config_version=reservation.config_version,
        intent="unknown",
        tags=reservation.tags,
        stream=reservation.stream,
        status=500,
        finish=None,
        error_code="unknown",
        aborted=False,
        usage=usage,
        cost_usd=cost_usd,
        reference_model_id=None,
        reference_cost_usd=None,
        queue_s=0.0,
        ttft_s=None,
        total_s=0.0,
        attempts=(attempt,),
        latency_class=reservation.latency_class,
        user_id=reservation.user_id,
        degraded_to=reservation.degraded_to,
    )
