"""The limit stores that the contract holds for. A new one is a function and a line in `LIMIT_STORES`."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llmrouter.database import migrate
from llmrouter.ledger.limits import standings
from llmrouter.ledger.sqlite import SqliteLedger
from llmrouter.protocols import LimitStore
from llmrouter.tenancy.memory_limits import MemoryLimits
from llmrouter.tenancy.redis_limits import RedisLimits
from llmrouter.types import Admission, Limit, Reservation, Spent, Standing, Usage
from tests.ledger.books import NOON, attempt, entry, reservation
from tests.servers import RedisServer

_numbers = itertools.count()


class Clock:
    """Unix milliseconds that move only when a test turns them."""

    def __init__(self, start: datetime = NOON) -> None:
        self.now_ms = int(start.timestamp() * 1000)

    def __call__(self) -> int:
        return self.now_ms

    def turn(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_ms / 1000, UTC)

    def wish(self, *limits: Limit, **changes: Any) -> Reservation:
        """A reservation made now, of a request id of its own unless one is given."""
        request_id = changes.pop("request_id", None) or f"q{next(_numbers)}"
        expires_at = self.now() + timedelta(seconds=660)
        return reservation(request_id, **{"ts": self.now(), "expires_at": expires_at, "limits": limits, **changes})


@dataclass(frozen=True)
class Store:
    """A store under test."""

    limits: LimitStore
    look: Callable[[], Any]
    """Awaited after time has passed: lets a store that looks for expired reservations now and then do it now."""


async def _nothing() -> None:
    """For a store that sees by itself."""


@asynccontextmanager
async def memory(_request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[Store]:
    yield Store(MemoryLimits(clock), _nothing)


class LedgerLimits:
    """The limits inside `SqliteLedger`, seen as a store: `settle` books an entry that used so much."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self.ledger = SqliteLedger(path, now_ms=clock)

    async def reserve(self, reservation: Reservation) -> Admission:
        return await self.ledger.open(reservation)

    async def settle(self, reservation: Reservation, spent: Spent) -> None:
        usage = Usage(spent.tokens)
        booked = entry(
            reservation.request_id,
            ts=reservation.ts,
            tenant_id=reservation.tenant_id,
            key_id=reservation.key_id,
            user_id=reservation.user_id,
            usage=usage,
            cost_usd=spent.cost_usd,
            attempts=(attempt(usage=usage, cost_usd=spent.cost_usd),) if spent.requests else (),
        )
        assert booked.spent() == spent
        await self.ledger.record(booked)

    async def bury(self, owner: str, unsettled: Sequence[tuple[Reservation, Spent]]) -> None:
        raise AssertionError(f"the ledger finds the dead by itself; asked for {owner} and {unsettled}")

    async def standing(self, limits: Sequence[Limit]) -> tuple[Standing, ...]:
        return standings(self._path, limits, self._clock())

    async def aclose(self) -> None:
        await self.ledger.aclose()


@asynccontextmanager
async def sqlite(request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[Store]:
    folder: Path = request.getfixturevalue("tmp_path")
    new = folder / "new.db"
    if not new.exists():
        migrate(new)
    path = folder / f"store{next(_numbers)}.db"
    shutil.copy(new, path)
    limits = LedgerLimits(path, clock)
    try:
        yield Store(limits, limits.ledger.recover)
    finally:
        await limits.aclose()


@asynccontextmanager
async def redis(request: pytest.FixtureRequest, clock: Clock) -> AsyncIterator[Store]:
    server: RedisServer = request.getfixturevalue("redis_server")
    server.clear()

    async def nothing_spent(_limit: Limit, _window_ms: int) -> int:
        return 0

    limits = RedisLimits(server.url, "gateway", nothing_spent, lease_s=0, grace_s=0, clock_ms=clock)
    try:
        yield Store(limits, limits.expire)
    finally:
        await limits.aclose()


LIMIT_STORES: dict[str, Callable[[pytest.FixtureRequest, Clock], AbstractAsyncContextManager[Store]]] = {
    "memory": memory,
    "sqlite": sqlite,
    "redis": redis,
}


def usd(amount: str) -> int:
    """Dollars as a limit states them."""
    return int(Decimal(amount) * 10**9)
