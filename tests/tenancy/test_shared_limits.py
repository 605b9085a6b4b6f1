"""Books and limits in two places: both take a call, or neither, whatever fails or is cancelled in between."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import pytest

from llmrouter.errors import StoreUnavailable
from llmrouter.tenancy.memory_limits import MemoryLimits
from llmrouter.tenancy.shared_limits import SharedLimits
from llmrouter.types import Admission, Attempt, LedgerEntry, Limit, Reservation, Spent, Standing, Usage
from tests.contracts.limit_stores import Clock, usd
from tests.ledger.books import attempt, entry

SLOT = Limit("tenant:acme", "concurrent_requests", 1)
BUDGET = Limit("tenant:acme", "usd_per_day", usd("0.0010"))


@dataclass
class Books:
    """A ledger in memory, which takes a moment for everything."""

    open_calls: dict[str, Reservation] = field(default_factory=dict)
    entries: dict[str, LedgerEntry] = field(default_factory=dict)
    away: bool = False
    closed: bool = False

    async def open(self, reservation: Reservation) -> Admission:
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable("the disk is full")
        self.open_calls[reservation.request_id] = reservation
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            del self.open_calls[reservation.request_id]
            raise
        return Admission()

    async def record(self, entry: LedgerEntry) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable("the disk is full")
        self.open_calls.pop(entry.request_id, None)
        self.entries[entry.request_id] = entry

    async def aclose(self) -> None:
        self.closed = True


class Limits(MemoryLimits):
    """Limits in memory, which take a moment and can be away."""

    away = False
    closed = False
    buried: list[str]

    async def reserve(self, reservation: Reservation) -> Admission:
        await self._moment()
        return await super().reserve(reservation)

    async def settle(self, reservation: Reservation, spent: Spent) -> None:
        await self._moment()
        await super().settle(reservation, spent)

    async def bury(self, owner: str, unsettled: Sequence[tuple[Reservation, Spent]]) -> None:
        self.buried = [owner, *(reservation.request_id for reservation, _ in unsettled)]

    async def aclose(self) -> None:
        self.closed = True

    async def _moment(self) -> None:
        if self.away:
            raise StoreUnavailable("the limits are away")
        await asyncio.sleep(0)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def books():
    return Books()


@pytest.fixture
def limits(clock):
    return Limits(clock)


@pytest.fixture
async def ledger(books, limits):
    shared = SharedLimits(books, limits)
    yield shared
    await shared.aclose()
    assert books.closed
    assert limits.closed


def used(call: Reservation, cost: str = "0.0002") -> LedgerEntry:
    made: tuple[Attempt, ...] = (attempt(usage=Usage(100), cost_usd=Decimal(cost)),)
    return entry(call.request_id, usage=Usage(100), cost_usd=Decimal(cost), attempts=made)


async def remaining(limits: Limits, *asked: Limit) -> list[int]:
    stands: Sequence[Standing] = await limits.standing(asked)
    return [each.remaining for each in stands]


async def test_a_call_is_in_the_books_and_counts_until_it_is_recorded(ledger, books, limits, clock):
    call = clock.wish(SLOT, BUDGET)
    assert (await ledger.open(call)).exceeded is None
    assert list(books.open_calls) == [call.request_id]
    assert await remaining(limits, SLOT, BUDGET) == [0, usd("0.0002")]
    await ledger.record(used(call))
    assert list(books.entries) == [call.request_id]
    assert not books.open_calls
    assert await remaining(limits, SLOT, BUDGET) == [1, usd("0.0008")]


async def test_a_refused_call_is_not_in_the_books(ledger, books, clock):
    await ledger.open(clock.wish(SLOT))
    assert (await ledger.open(clock.wish(SLOT))).exceeded.limit == SLOT
    assert len(books.open_calls) == 1


async def test_what_the_books_cannot_take_is_given_back(ledger, books, limits, clock):
    books.away = True
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await ledger.open(clock.wish(SLOT, BUDGET))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await remaining(limits, SLOT, BUDGET) == [1, usd("0.0010")]


@pytest.mark.parametrize("steps", range(8))
async def test_cancelling_an_opening_at_any_step_leaves_nothing_taken(books, limits, clock, steps):
    ledger = SharedLimits(books, limits)
    call = clock.wish(SLOT)
    opening = asyncio.create_task(ledger.open(call))
    for _ in range(steps):
        await asyncio.sleep(0)
    opening.cancel()
    (outcome,) = await asyncio.gather(opening, return_exceptions=True)
    await ledger.aclose()
    if isinstance(outcome, asyncio.CancelledError):
        assert not books.open_calls
        assert await remaining(limits, SLOT) == [1]
    else:
        assert list(books.open_calls) == [call.request_id]
        assert await remaining(limits, SLOT) == [0]


@pytest.mark.parametrize("steps", range(1, 8))
async def test_cancelling_a_recording_after_its_first_step_loses_nothing(books, limits, clock, steps):
    ledger = SharedLimits(books, limits)
    call = clock.wish(SLOT, BUDGET)
    await ledger.open(call)
    recording = asyncio.create_task(ledger.record(used(call)))
    for _ in range(steps):
        await asyncio.sleep(0)
    recording.cancel()
    await asyncio.gather(recording, return_exceptions=True)
    await ledger.aclose()
    assert list(books.entries) == [call.request_id]
    assert await remaining(limits, SLOT, BUDGET) == [1, usd("0.0008")]


async def test_an_entry_that_is_not_written_is_an_error_and_frees_the_limits_all_the_same(ledger, books, limits, clock):
    call = clock.wish(SLOT)
    await ledger.open(call)
    books.away = True
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await ledger.record(used(call))
    assert await remaining(limits, SLOT) == [1]


async def test_closed_means_that_nothing_is_served_while_the_limits_are_away(ledger, books, limits, clock):
    limits.away = True
    with pytest.raises(StoreUnavailable, match="limits are away"):
        await ledger.open(clock.wish(SLOT))
    assert not books.open_calls


async def test_open_means_that_calls_are_served_unlimited_and_that_is_said_once(books, limits, clock, caplog):
    unlimited: list[Reservation] = []
    ledger = SharedLimits(books, limits, when_down="open", on_unlimited=unlimited.append)
    limits.away = True
    calls = [clock.wish(SLOT) for _ in range(3)]
    for call in calls:
        assert (await ledger.open(call)).exceeded is None
    assert unlimited == calls
    assert list(books.open_calls) == [call.request_id for call in calls]
    for call in calls:
        await ledger.record(used(call))
    assert len(books.entries) == 3
    limits.away = False
    await ledger.open(clock.wish(SLOT))
    assert (await ledger.open(clock.wish(SLOT))).exceeded is not None
    said = [record.message for record in caplog.records if record.name.endswith("shared_limits")]
    assert len([each for each in said if "served unlimited" in each]) == 1
    assert len([each for each in said if "limited again" in each]) == 1
    await ledger.aclose()


async def test_a_recording_does_not_fail_because_the_limits_are_away(ledger, books, limits, clock):
    call = clock.wish(SLOT)
    await ledger.open(call)
    limits.away = True
    await ledger.record(used(call))
    assert list(books.entries) == [call.request_id]


async def test_the_dead_are_buried_in_the_background(books, limits, clock):
    ledger = SharedLimits(books, limits)
    ledger.bury("gone", [(clock.wish(SLOT, request_id="r1"), Spent())])
    await ledger.aclose()
    assert limits.buried == ["gone", "r1"]
