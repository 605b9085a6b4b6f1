"""The price rows that the books refer to by `price_id`, kept so that every cost can be worked out again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter

from llmrouter.database import reading, to_instant, writing
from llmrouter.types import Price

__all__ = ["keep_prices", "kept_price"]


_PRICE = TypeAdapter(Price)


def _now() -> datetime:
    return datetime.now(UTC)


def keep_prices(path: Path, prices: Iterable[Price], *, now: Callable[[], datetime] = _now) -> None:
    """Keep prices under their ids; one that is there already stays as it is, for equal ids mean equal rates."""
    seen = to_instant(now())
    rows = [(price.price_id, _PRICE.dump_json(price).decode(), seen) for price in prices]
    with writing(path) as connection:
        connection.executemany("INSERT INTO prices VALUES (?, ?, ?) ON CONFLICT DO NOTHING", rows)


def kept_price(path: Path, price_id: str) -> Price | None:
    """The price that an attempt's `price_id` names, or None when it was never kept."""
    with reading(path) as connection:
        row = connection.execute("SELECT price FROM prices WHERE price_id = ?", (price_id,)).fetchone()
    return None if row is None else _PRICE.validate_json(row[0])
