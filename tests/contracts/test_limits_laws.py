"""Never over: any story of reservations, ends and passing time, told to a store and to an oracle without buckets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmrouter.buckets import to_nano, window_start
from llmrouter.types import Limit, Reservation, Spent
from tests.contracts.limit_stores import LIMIT_STORES, Clock, Store

RATES = (
    Limit("key:k1", "requests_per_minute", 3, 2),
    Limit("tenant:acme", "requests_per_minute", 5, 4),
    Limit("key:k1", "tokens_per_minute", 60, 40),
    Limit("tenant:acme", "tokens_per_minute", 30, 90),
)
EXACT = (
    Limit("key:k1", "concurrent_requests", 2),
    Limit("tenant:acme", "concurrent_requests", 3),
    Limit("key:k1", "usd_per_hour", 50),
    Limit("tenant:acme", "usd_per_day", 120),
    Limit("group:g", "usd_per_month", 200),
)


@dataclass(frozen=True)
class Reserve:
    limits: tuple[Limit, ...]
    tokens: int
    nano: int


@dataclass(frozen=True)
class Settle:
    which: int
    share: Fraction
    """Of what was reserved; 0 gives the request back too."""


@dataclass(frozen=True)
class Wait:
    ms: int


@dataclass
class Call:
    wish: Reservation
    at_ms: int
    spent: Spent | None = None

    def amount(self, limit: Limit) -> int:
        """What it counts: what it used, or all that was set aside for it."""
        if limit.kind == "requests_per_minute":
            return 1 if self.spent is None else self.spent.requests
        if limit.kind == "tokens_per_minute":
            return self.wish.tokens if self.spent is None else self.spent.tokens
        if limit.kind == "concurrent_requests":
            return int(self.spent is None)
        return to_nano(self.wish.cost_usd if self.spent is None else self.spent.cost_usd)


@dataclass
class Oracle:
    """All calls that were admitted, and what no interval of them may ever be."""

    calls: list[Call] = field(default_factory=list)

    def counted(self, limit: Limit) -> list[Call]:
        return [call for call in self.calls if limit in call.wish.limits]

    def check(self) -> None:
        for limit in {limit for call in self.calls for limit in call.wish.limits}:
            counted = self.counted(limit)
            if limit.burst:
                self._check_rate(limit, counted)
            elif limit.kind == "concurrent_requests":
                assert sum(call.amount(limit) for call in counted) <= limit.most
            else:
                windows = {window_start(limit.kind, call.at_ms) for call in counted}
                for window in windows:
                    assert self.dollars(limit, window) <= limit.most

    def _check_rate(self, limit: Limit, counted: list[Call]) -> None:
        for first, begin in enumerate(counted):
            total = 0
            for call in counted[first:]:
                total += call.amount(limit)
                assert total <= limit.burst + Fraction(limit.most * (call.at_ms - begin.at_ms), 60_000)

    def dollars(self, limit: Limit, window: int) -> int:
        inside = [call for call in self.counted(limit) if window_start(limit.kind, call.at_ms) == window]
        return sum(call.amount(limit) for call in inside)

    def fits(self, wish: Reservation, now_ms: int) -> bool:
        """Whether a reservation of exact limits has to be admitted."""
        call = Call(wish, now_ms)
        for limit in wish.limits:
            window = window_start(limit.kind, now_ms)
            used = (
                sum(each.amount(limit) for each in self.counted(limit))
                if limit.kind == "concurrent_requests"
                else self.dollars(limit, window)
            )
            if used + call.amount(limit) > limit.most:
                return False
        return True

    def fits_rates(self, wish: Reservation, now_ms: int) -> bool:
        """Whether a reservation of rates has to be admitted, where every call used all that was set aside for it."""
        call = Call(wish, now_ms)
        for limit in wish.limits:
            total = call.amount(limit)
            if total > limit.burst:
                return False
            for each in reversed(self.counted(limit)):
                total += each.amount(limit)
                if total > limit.burst + Fraction(limit.most * (now_ms - each.at_ms), 60_000):
                    return False
        return True


settles = st.builds(Settle, st.integers(0, 9), st.sampled_from([Fraction(0), Fraction(1, 3), Fraction(1)]))
waits = st.builds(Wait, st.sampled_from([1, 999, 4000, 12_000, 20_000, 33_333, 60_000, 3_600_000, 40_000_000]))


def reserves(limits: st.SearchStrategy[tuple[Limit, ...]]) -> st.SearchStrategy[Reserve]:
    return st.builds(Reserve, limits, st.sampled_from([0, 7, 20, 30, 45]), st.integers(0, 60))


def some(limits: tuple[Limit, ...]) -> st.SearchStrategy[tuple[Limit, ...]]:
    chosen = st.sets(st.sampled_from(limits), min_size=1, max_size=3)
    return chosen.map(lambda found: tuple(sorted(found, key=limits.index)))


def stories(
    limits: tuple[Limit, ...], others: st.SearchStrategy[Settle | Wait] = settles | waits
) -> st.SearchStrategy[list[Reserve | Settle | Wait]]:
    """About a few limits that every call counts against, or about calls that each count against others."""
    same = some(limits).flatmap(lambda found: st.lists(reserves(st.just(found)) | others, min_size=15, max_size=40))
    return same | st.lists(reserves(some(limits)) | others, min_size=15, max_size=40)


@dataclass
class Teller:
    """Tells a story to a store, one step after the other."""

    store: Store
    clock: Clock
    oracle: Oracle = field(default_factory=Oracle)

    async def tell(self, step: Reserve | Settle | Wait) -> bool | None:
        """Whether a reservation was admitted; None for another step."""
        if isinstance(step, Wait):
            self.clock.now_ms += step.ms
        elif isinstance(step, Settle):
            await self._settle(step)
        else:
            wish = self.wish(step)
            admitted = (await self.store.limits.reserve(wish)).exceeded is None
            if admitted:
                self.oracle.calls.append(Call(wish, self.clock.now_ms))
            return admitted
        return None

    def wish(self, step: Reserve) -> Reservation:
        return self.clock.wish(
            *step.limits,
            input_tokens=step.tokens,
            output_tokens=0,
            cost_usd=Decimal(step.nano).scaleb(-9),
            # Not the ids of the scopes: a story has calls that do not name every limit of their scopes, and a store
            # that begins a dollar counter with what the books say would count those too.
            tenant_id="other",
            key_id="other",
            # A call may be settled late; expiry has tests of its own.
            expires_at=self.clock.now().replace(year=2099),
        )

    async def _settle(self, step: Settle) -> None:
        if not self.oracle.calls:
            return
        call = self.oracle.calls[step.which % len(self.oracle.calls)]
        spent = Spent(
            int(call.wish.tokens * step.share),
            Decimal(int(to_nano(call.wish.cost_usd) * step.share)).scaleb(-9),
            int(step.share > 0),
        )
        await self.store.limits.settle(call.wish, spent)
        call.spent = call.spent or spent


def played(request: pytest.FixtureRequest, story: Callable[[Teller], Awaitable[None]]) -> None:
    async def play() -> None:
        clock = Clock()
        async with LIMIT_STORES[request.node.callspec.params["name"]](request, clock) as store:
            await story(Teller(store, clock))

    asyncio.run(play())


def examples(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return settings(deadline=None, max_examples=count, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("name", LIMIT_STORES)
@examples(80)
@given(steps=stories(RATES + EXACT) | stories(RATES))
def test_no_story_goes_over_a_limit(request, name, steps):
    async def story(teller: Teller) -> None:
        for step in steps:
            await teller.tell(step)
            teller.oracle.check()

    played(request, story)


@pytest.mark.parametrize("name", LIMIT_STORES)
@examples(60)
@given(steps=stories(EXACT))
def test_slots_and_dollars_refuse_only_what_does_not_fit(request, name, steps):
    async def story(teller: Teller) -> None:
        for step in steps:
            expected = teller.oracle.fits(teller.wish(step), teller.clock.now_ms) if isinstance(step, Reserve) else None
            assert await teller.tell(step) == expected

    played(request, story)


@pytest.mark.parametrize("name", LIMIT_STORES)
@examples(60)
@given(steps=stories(RATES, waits))
def test_rates_refuse_only_what_does_not_fit(request, name, steps):
    async def story(teller: Teller) -> None:
        for step in steps:
            wish = teller.wish(step) if isinstance(step, Reserve) else None
            expected = None if wish is None else teller.oracle.fits_rates(wish, teller.clock.now_ms)
            assert await teller.tell(step) == expected

    played(request, story)


@pytest.mark.parametrize("name", LIMIT_STORES)
@examples(40)
@given(steps=st.lists(reserves(some(RATES + EXACT)), min_size=1, max_size=15))
def test_what_is_released_at_once_leaves_nothing(request, name, steps):
    async def story(teller: Teller) -> None:
        before = await teller.store.limits.standing(RATES + EXACT)
        await asyncio.gather(*(teller.tell(step) for step in steps))
        teller.oracle.check()
        released = (teller.store.limits.settle(call.wish, Spent(requests=0)) for call in teller.oracle.calls)
        await asyncio.gather(*released)
        assert await teller.store.limits.standing(RATES + EXACT) == before

    played(request, story)
