"""What every `LimitStore` promises, whatever it keeps the counters in. A new one is a line in `limit_stores`."""

import asyncio
from decimal import Decimal

import pytest

from llmrouter.protocols import LimitStore
from llmrouter.types import Limit, Reservation, Spent
from tests.contracts.limit_stores import LIMIT_STORES, Clock, usd

RPM = Limit("key:k1", "requests_per_minute", 2, 2)
SLOT = Limit("tenant:acme", "concurrent_requests", 1)
UNUSED = Spent(requests=0)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=LIMIT_STORES)
async def store(request, clock):
    async with LIMIT_STORES[request.param](request, clock) as opened:
        yield opened


@pytest.fixture
def limits(store):
    return store.limits


async def admitted(limits: LimitStore, *wishes: Reservation) -> list[Reservation]:
    """Which of these are admitted when all come at once."""
    outcomes = await asyncio.gather(*(limits.reserve(wish) for wish in wishes))
    return [wish for wish, outcome in zip(wishes, outcomes, strict=True) if outcome.exceeded is None]


async def test_a_request_without_limits_is_admitted(limits, clock):
    admission = await limits.reserve(clock.wish())
    assert admission.exceeded is None
    assert admission.standings == ()


async def test_a_rate_admits_its_burst_at_once_and_then_as_it_drains(limits, clock):
    rate = Limit("key:k1", "requests_per_minute", 60, 5)
    assert len(await admitted(limits, *(clock.wish(rate) for _ in range(20)))) == 5
    clock.turn(0.999)
    assert await admitted(limits, clock.wish(rate)) == []
    clock.turn(0.001)
    assert len(await admitted(limits, clock.wish(rate), clock.wish(rate))) == 1
    clock.turn(3600)
    assert len(await admitted(limits, *(clock.wish(rate) for _ in range(20)))) == 5


async def test_a_refusal_says_exactly_when_it_would_fit(limits, clock):
    rate = Limit("key:k1", "tokens_per_minute", 7000, 9000)
    await limits.reserve(clock.wish(rate))
    await limits.reserve(clock.wish(rate))
    refused = (await limits.reserve(clock.wish(rate, output_tokens=2000))).exceeded
    assert refused.wanted == 4000
    assert refused.reset_s == pytest.approx(60 / 7)
    clock.turn(refused.reset_s - 0.002)
    assert (await limits.reserve(clock.wish(rate, output_tokens=2000))).exceeded is not None
    clock.turn(0.003)
    assert (await limits.reserve(clock.wish(rate, output_tokens=2000))).exceeded is None


async def test_admissions_tell_where_the_rates_stand(limits, clock):
    rate, tokens = Limit("key:k1", "requests_per_minute", 60, 5), Limit("key:k1", "tokens_per_minute", 10_000, 10_000)
    standings = (await limits.reserve(clock.wish(rate, SLOT, tokens))).standings
    assert [(each.limit, each.remaining) for each in standings] == [(rate, 4), (tokens, 7000)]
    assert [each.reset_s for each in standings] == pytest.approx([1.0, 18.0])


async def test_slots_are_taken_until_they_are_given_back(limits, clock):
    slots = Limit("tenant:acme", "concurrent_requests", 3)
    first = await admitted(limits, *(clock.wish(slots) for _ in range(10)))
    assert len(first) == 3
    clock.turn(600)
    assert await admitted(limits, clock.wish(slots)) == []
    await limits.settle(first[0], Spent(10))
    assert len(await admitted(limits, clock.wish(slots), clock.wish(slots))) == 1


async def test_dollars_hold_for_a_calendar_window_and_begin_anew_with_the_next(limits, clock):
    budget = Limit("tenant:acme", "usd_per_hour", usd("0.0020"))
    clock.turn(3599)
    first = await admitted(limits, *(clock.wish(budget) for _ in range(5)))
    assert len(first) == 2
    refused = (await limits.reserve(clock.wish(budget))).exceeded
    assert (refused.current, refused.wanted) == (usd("0.0016"), usd("0.0008"))
    assert refused.reset_s == pytest.approx(1.0)
    clock.turn(1)
    assert len(await admitted(limits, *(clock.wish(budget) for _ in range(5)))) == 2
    # What belongs to the window before makes no room in this one.
    await limits.settle(first[0], UNUSED)
    assert await admitted(limits, clock.wish(budget)) == []


@pytest.mark.parametrize(("kind", "days"), [("usd_per_day", 1), ("usd_per_month", 31)])
async def test_days_and_months_begin_at_midnight_utc(limits, clock, kind, days):
    budget = Limit("tenant:acme", kind, usd("0.0008"))
    assert await admitted(limits, clock.wish(budget))
    clock.turn(days * 86_400 - 12 * 3600 - 1)
    assert not await admitted(limits, clock.wish(budget))
    clock.turn(1)
    assert await admitted(limits, clock.wish(budget))


async def test_what_was_not_used_is_there_again(limits, clock):
    budget = Limit("tenant:acme", "usd_per_day", usd("0.0008"))
    tokens = Limit("tenant:acme", "tokens_per_minute", 3000, 3000)
    wish = clock.wish(budget, tokens)
    assert await admitted(limits, wish)
    assert not await admitted(limits, clock.wish(budget, tokens))
    await limits.settle(wish, Spent(1000, Decimal("0.0002")))
    assert not await admitted(limits, clock.wish(tokens, output_tokens=1, cost_usd=Decimal(0)))
    assert not await admitted(limits, clock.wish(budget, cost_usd=Decimal("0.000600001")))
    assert await admitted(limits, clock.wish(budget, tokens, output_tokens=0, cost_usd=Decimal("0.0006")))


async def test_what_was_used_beyond_the_reservation_counts(limits, clock):
    budget = Limit("tenant:acme", "usd_per_day", usd("0.0020"))
    tokens = Limit("tenant:acme", "tokens_per_minute", 6000, 6000)
    wish = clock.wish(budget, tokens)
    await limits.reserve(wish)
    await limits.settle(wish, Spent(4500, Decimal("0.0018")))
    refused = (await limits.reserve(clock.wish(budget, cost_usd=Decimal("0.0003")))).exceeded
    assert refused.current == usd("0.0018")
    assert (await limits.reserve(clock.wish(tokens, output_tokens=0))).exceeded.current == 4500


async def test_what_has_drained_meanwhile_is_not_given_back_twice(limits, clock):
    """Had it not been taken, the bucket would have been full, and the same draining lost."""
    tokens = Limit("tenant:acme", "tokens_per_minute", 3000, 3000)
    wish = clock.wish(tokens)
    await limits.reserve(wish)
    clock.turn(30)
    other = clock.wish(tokens, input_tokens=1500, output_tokens=0)
    assert await admitted(limits, other)
    await limits.settle(wish, UNUSED)
    assert (await limits.standing([tokens]))[0].remaining == 1500


async def test_everything_released_at_once_leaves_nothing_behind(limits, clock):
    every = (
        Limit("key:k1", "requests_per_minute", 600, 60),
        Limit("key:k1", "tokens_per_minute", 10**6, 10**6),
        Limit("tenant:acme", "concurrent_requests", 60),
        Limit("tenant:acme", "usd_per_hour", usd("1")),
        Limit("group:g", "usd_per_day", usd("1")),
        Limit("tier:auto", "usd_per_month", usd("1")),
    )
    before = await limits.standing(every)
    taken = await admitted(limits, *(clock.wish(*every) for _ in range(50)))
    assert len(taken) == 50
    assert [each.remaining for each in await limits.standing(every)][:3] == [10, 850_000, 10]
    await asyncio.gather(*(limits.settle(wish, UNUSED) for wish in taken))
    assert await limits.standing(every) == before


async def test_asking_how_limits_stand_changes_nothing(limits, clock):
    for _ in range(5):
        assert (await limits.standing([RPM, SLOT]))[0].remaining == 2
    assert len(await admitted(limits, clock.wish(RPM), clock.wish(RPM))) == 2


async def test_nothing_is_taken_anywhere_when_one_limit_refuses(limits, clock):
    outer = Limit("group:g", "usd_per_day", usd("0.0010"))
    inner = (Limit("key:k1", "usd_per_day", usd("1")), Limit("key:k1", "tokens_per_minute", 9000, 9000))
    assert await admitted(limits, clock.wish(*inner, outer))
    before = await limits.standing(inner)
    refused = (await limits.reserve(clock.wish(*inner, outer))).exceeded
    assert refused.limit == outer
    assert await limits.standing(inner) == before


async def test_of_several_refusals_the_longest_is_told(limits, clock):
    short, long = Limit("key:k1", "requests_per_minute", 60, 1), Limit("tenant:acme", "usd_per_day", usd("0.0010"))
    await limits.reserve(clock.wish(short, SLOT, long))
    assert (await limits.reserve(clock.wish(short, SLOT, long))).exceeded.limit == long
    assert (await limits.reserve(clock.wish(short))).exceeded.limit == short


async def test_a_wish_that_can_never_fit_has_no_reset(limits, clock):
    small = Limit("key:k1", "tokens_per_minute", 10_000, 2_999)
    refused = (await limits.reserve(clock.wish(small))).exceeded
    assert (refused.wanted, refused.reset_s) == (3000, None)
    assert (await limits.reserve(clock.wish(Limit("key:k1", "usd_per_day", 0)))).exceeded.reset_s is None


async def test_g041_of_many_first_calls_of_a_new_user_only_those_within_the_budget_are_admitted(limits, clock):
    """There is no counter yet when they come; making it is part of the same step."""
    budget = Limit("user:acme/bob", "usd_per_day", usd("0.0010"))
    start = asyncio.Barrier(8)

    async def call() -> bool:
        await start.wait()
        return (await limits.reserve(clock.wish(budget))).exceeded is None

    assert sum(await asyncio.gather(*(call() for _ in range(8)))) == 1


async def test_g043_a_refusal_names_the_limit_and_its_scope(limits, clock):
    """A key without a budget in a tenant with one: the tenant's is what is spent."""
    key, tenant = Limit("key:k1", "requests_per_minute", 100, 100), Limit("tenant:acme", "usd_per_month", usd("0.001"))
    await limits.reserve(clock.wish(key, tenant))
    refused = (await limits.reserve(clock.wish(key, tenant))).exceeded
    assert (refused.limit.scope, refused.limit.kind, refused.limit.most) == (
        "tenant:acme",
        "usd_per_month",
        usd("0.001"),
    )
    assert (refused.current, refused.wanted) == (usd("0.0008"), usd("0.0008"))
    assert refused.reset_s == pytest.approx(30.5 * 86_400)


async def test_g047_settling_twice_gives_back_once(limits, clock):
    budget = Limit("tenant:acme", "usd_per_day", usd("0.0016"))
    first, second = clock.wish(budget, SLOT), clock.wish(budget)
    await limits.reserve(first)
    await limits.reserve(second)
    await asyncio.gather(*(limits.settle(first, UNUSED) for _ in range(5)))
    await limits.settle(first, UNUSED)
    assert len(await admitted(limits, clock.wish(budget, SLOT), clock.wish(budget, SLOT))) == 1


async def test_g047_reserving_twice_takes_once(limits, clock):
    wish = clock.wish(RPM, SLOT)
    assert len(await admitted(limits, *[wish] * 5)) == 5
    assert (await limits.standing([RPM]))[0].remaining == 1
    await limits.settle(wish, Spent(10))
    assert (await limits.standing([SLOT]))[0].remaining == 1


async def test_g050_slots_of_calls_that_nobody_ended_come_back_when_they_expire(store, clock):
    slots = Limit("key:k1", "concurrent_requests", 10)
    limits = store.limits
    assert len(await admitted(limits, *(clock.wish(slots) for _ in range(12)))) == 10
    clock.turn(659)
    await store.look()
    assert await admitted(limits, clock.wish(slots)) == []
    clock.turn(2)
    await store.look()
    assert len(await admitted(limits, *(clock.wish(slots) for _ in range(12)))) == 10


async def test_g053_a_request_refused_by_concurrency_uses_up_no_rate(limits, clock):
    running = clock.wish(RPM, SLOT)
    assert await admitted(limits, running)
    assert not await admitted(limits, clock.wish(RPM, SLOT))
    await limits.settle(running, Spent(10))
    assert await admitted(limits, clock.wish(RPM, SLOT))


async def test_a_rate_is_never_over_while_hundreds_come_at_once_and_go(limits, clock):
    rate, slots = Limit("key:k1", "requests_per_minute", 600, 20), Limit("tenant:acme", "concurrent_requests", 7)
    taken: list[int] = []
    most_at_once = running = 0

    async def call() -> None:
        nonlocal most_at_once, running
        wish = clock.wish(rate, slots)
        if (await limits.reserve(wish)).exceeded is None:
            taken.append(clock.now_ms)
            running += 1
            most_at_once = max(most_at_once, running)
            await asyncio.sleep(0)
            running -= 1
            await limits.settle(wish, Spent(10))

    for _ in range(5):
        await asyncio.gather(*(call() for _ in range(100)))
        clock.turn(0.5)
    assert most_at_once <= 7
    assert len(taken) <= 20 + 10 * 2
    assert (await limits.standing([slots]))[0].remaining == 7
