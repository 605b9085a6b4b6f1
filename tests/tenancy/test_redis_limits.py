"""Limits of several gateways in one real Redis; the contract of all limit stores is in `tests/contracts`."""

import asyncio
import itertools
import random
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import redis
from hypothesis import given

from llmrouter.buckets import to_nano
from llmrouter.errors import ConfigError, StoreUnavailable, UsageError
from llmrouter.tenancy.redis_limits import RedisLimits
from llmrouter.types import Admission, Limit, Reservation, Spent
from tests.contracts.limit_stores import Clock, Store, usd
from tests.contracts.test_limits_laws import EXACT, RATES, Reserve, Settle, Teller, Wait, examples, stories
from tests.ledger.books import reservation
from tests.servers import RedisServer

UNUSED = Spent(requests=0)
SLOTS = Limit("tenant:acme", "concurrent_requests", 20)
DOLLARS = Limit("tenant:acme", "usd_per_day", usd("0.20"))
REQUESTS = Limit("key:k1", "requests_per_minute", 6000, 200)
TOKENS = Limit("group:g", "tokens_per_minute", 60_000_000, 600_000)

_numbers = itertools.count()


@dataclass
class Books:
    """What the ledger would say, by scope."""

    spent: Counter[str] = field(default_factory=Counter)
    asked: list[tuple[str, int]] = field(default_factory=list)
    away: bool = False

    async def spent_so_far(self, limit: Limit, window_ms: int) -> int:
        self.asked.append((limit.scope, window_ms))
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable("the books are away")
        return self.spent[limit.scope]


@dataclass
class Gateways:
    """Gateways on one Redis, each under a name of its own."""

    url: str
    books: Books
    stack: AsyncExitStack

    async def another(self, **changes: object) -> RedisLimits:
        given = {"grace_s": 0.0, "pause_s": 0.1, "timeout_s": 0.5, **changes}
        limits = RedisLimits(self.url, f"gateway-{next(_numbers)}", self.books.spent_so_far, **given)  # type: ignore[arg-type]
        self.stack.push_async_callback(limits.aclose)
        return limits


@pytest.fixture
async def gateways(redis_url):
    async with AsyncExitStack() as stack:
        yield Gateways(redis_url, Books(), stack)


def wish(*limits: Limit, **changes: object) -> Reservation:
    now = datetime.now(UTC)
    expires_at = now + timedelta(seconds=60)
    given: dict[str, Any] = {"request_id": f"w{next(_numbers)}", "ts": now, "expires_at": expires_at, "limits": limits}
    return reservation(**{**given, **changes})


async def eventually(holds: Callable[[], Awaitable[bool]], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await holds():
            await asyncio.sleep(0.01)


async def left(limits: RedisLimits, limit: Limit) -> int:
    (stands,) = await limits.standing([limit])
    return stands.remaining


@dataclass
class Tally:
    """What really happened, to hold against the limits."""

    began: float = field(default_factory=time.monotonic)
    admitted: int = 0
    refused: int = 0
    running: int = 0
    most_running: int = 0
    reserved_tokens: int = 0
    held_nano: int = 0
    spent_nano: int = 0

    def enter(self, call: Reservation) -> None:
        self.admitted += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.reserved_tokens += call.tokens
        self.held_nano += to_nano(call.cost_usd)
        assert self.running <= SLOTS.most
        assert self.held_nano + self.spent_nano <= DOLLARS.most
        passed_ms = (time.monotonic() - self.began) * 1000 + 1
        assert self.admitted <= REQUESTS.burst + REQUESTS.most * passed_ms / 60_000
        assert self.reserved_tokens <= TOKENS.burst + TOKENS.most * passed_ms / 60_000

    def leave(self, call: Reservation, spent: Spent) -> None:
        self.running -= 1
        self.held_nano -= to_nano(call.cost_usd)
        self.spent_nano += to_nano(spent.cost_usd)


async def test_two_gateways_and_hundreds_of_clients_are_never_over_any_limit(gateways):
    pair = [await gateways.another(), await gateways.another()]
    tally, dice = Tally(), random.Random(7)
    enough, give_up = DOLLARS.most * 0.95, time.monotonic() + 15

    async def client(limits: RedisLimits) -> None:
        while tally.spent_nano < enough and time.monotonic() < give_up:
            call = wish(REQUESTS, SLOTS, TOKENS, DOLLARS, cost_usd=Decimal("0.002"))
            if (await limits.reserve(call)).exceeded is not None:
                tally.refused += 1
                await asyncio.sleep(0.005)
                continue
            tally.enter(call)
            await asyncio.sleep(dice.random() * 0.01)
            spent = Spent(dice.randrange(call.tokens + 1), call.cost_usd * dice.randrange(5) / 10)
            # From here on its slot and dollars may be another's.
            tally.leave(call, spent)
            await limits.settle(call, spent)

    await asyncio.gather(*(client(limits) for limits in pair for _ in range(150)))
    assert tally.refused > 0
    assert tally.most_running > SLOTS.most * 0.8
    assert tally.spent_nano >= enough
    await asyncio.gather(*(limits.aclose() for limits in pair))
    late = await gateways.another()
    assert await left(late, SLOTS) == SLOTS.most
    assert await left(late, DOLLARS) == DOLLARS.most - tally.spent_nano


async def test_a_storm_of_cancels_loses_no_capacity(gateways):
    pair = [await gateways.another(), await gateways.another()]
    slots, dollars = Limit("key:k1", "concurrent_requests", 30), Limit("tenant:acme", "usd_per_month", usd("10"))
    dice = random.Random(3)
    spent_nano = 0

    async def client(limits: RedisLimits) -> None:
        nonlocal spent_nano
        for _ in range(20):
            call = wish(slots, dollars)
            admission = await limits.reserve(call)
            if admission.exceeded is None:
                spent = Spent(10, Decimal(dice.randrange(4)) / 10_000)
                spent_nano += to_nano(spent.cost_usd)
                # The pipeline settles in a `finally`, and a cancel does not take that back.
                await asyncio.shield(asyncio.ensure_future(limits.settle(call, spent)))
            await asyncio.sleep(0)

    clients = [asyncio.create_task(client(limits)) for limits in pair for _ in range(100)]
    for each in clients:
        asyncio.get_running_loop().call_later(dice.random() * 0.6, each.cancel)
    await asyncio.wait(clients)
    assert any(each.cancelled() for each in clients)

    async def all_back() -> bool:
        return await left(pair[0], slots) == slots.most and await left(pair[1], dollars) == dollars.most - spent_nano

    await eventually(all_back)


async def test_cancelling_at_any_step_of_a_reservation_takes_nothing(gateways):
    limits = await gateways.another(lease_s=0)
    slots = Limit("key:k1", "concurrent_requests", 1)
    for steps in range(40):
        call = wish(slots)
        task = asyncio.create_task(limits.reserve(call))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        try:
            admission = await task
        except asyncio.CancelledError:
            pass
        else:
            assert admission.exceeded is None
            await limits.settle(call, UNUSED)

        async def free() -> bool:
            return await left(limits, slots) == 1

        await eventually(free)


async def test_a_repeat_beside_a_cancelled_one_is_still_admitted(gateways):
    limits = await gateways.another()
    slots = Limit("key:k1", "concurrent_requests", 1)
    call = wish(slots)
    first, second = (asyncio.create_task(limits.reserve(call)) for _ in range(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).exceeded is None
    assert await left(limits, slots) == 0


_DIES = """
    import asyncio, sys
    from llmrouter.types import Spent
    from tests.tenancy.test_redis_limits import Books, DOLLARS, REQUESTS, SLOTS, TOKENS, wish
    from llmrouter.tenancy.redis_limits import RedisLimits
    from decimal import Decimal

    async def main():
        limits = RedisLimits(sys.argv[1], "doomed", Books().spent_so_far, grace_s=0)
        calls = [wish(SLOTS, DOLLARS, REQUESTS, TOKENS, request_id=f"d{n}") for n in range(10)]
        for call in calls:
            assert (await limits.reserve(call)).exceeded is None
        for call in calls[:6]:
            await limits.settle(call, Spent(100, Decimal("0.0003")))
        print("ready", flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())
"""


@pytest.fixture
def doomed(redis_url):
    """A process that has settled six calls, holds four open, and is killed with -9."""
    program = [sys.executable, "-c", textwrap.dedent(_DIES), redis_url]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    return "doomed"


def _open_calls(*limits: Limit) -> list[Reservation]:
    return [reservation(f"d{n}", ts=datetime.now(UTC), limits=limits) for n in range(6, 10)]


@pytest.mark.process
@pytest.mark.parametrize(("billed", "of_each"), [("0.0008", usd("0.0008")), ("0", 0)])
async def test_a_killed_process_is_buried_and_what_it_held_comes_back(gateways, doomed, billed, of_each):
    limits = await gateways.another()
    assert await left(limits, SLOTS) < SLOTS.most - 3
    unsettled = [(call, Spent(3000, Decimal(billed))) for call in _open_calls(SLOTS, DOLLARS, REQUESTS, TOKENS)]
    for _ in range(2):
        await limits.bury(doomed, unsettled)
        assert await left(limits, SLOTS) == SLOTS.most
        assert await left(limits, DOLLARS) == DOLLARS.most - 6 * usd("0.0003") - 4 * of_each


@pytest.mark.process
async def test_a_call_that_was_settled_just_before_the_death_counts_once(gateways, doomed):
    """It was settled but its entry not yet written, so the books take it for open."""
    limits = await gateways.another()
    of_window = Decimal("0.0008")
    late = reservation("d5", ts=datetime.now(UTC), limits=(SLOTS, DOLLARS))
    await limits.bury(doomed, [(call, Spent(3000, of_window)) for call in (late, *_open_calls(SLOTS, DOLLARS))])
    assert await left(limits, DOLLARS) == DOLLARS.most - 6 * usd("0.0003") - 4 * usd("0.0008")


async def test_slots_of_a_machine_that_vanished_come_back_when_its_calls_have_expired(redis_url, gateways):
    clock = Clock()
    gone, here = [await gateways.another(clock_ms=clock, lease_s=0) for _ in range(2)]
    slots = Limit("key:k1", "concurrent_requests", 2)
    dollars = Limit("key:k1", "usd_per_month", usd("1"))
    call = clock.wish(slots, dollars)
    assert (await gone.reserve(call)).exceeded is None
    gone._worker.cancel()
    clock.turn(659)
    assert await left(here, slots) == 1
    clock.turn(120)
    assert [each.remaining for each in await here.standing([slots, dollars])] == [2, usd("1") - usd("0.0008")]


async def test_most_requests_are_served_from_leases_where_limits_are_large(gateways):
    limits = await gateways.another()
    wide = (
        Limit("key:k1", "requests_per_minute", 600_000, 100_000),
        Limit("tenant:acme", "concurrent_requests", 10_000),
        Limit("tenant:acme", "usd_per_month", usd("1000")),
    )
    for _ in range(400):
        call = wish(*wide)
        assert (await limits.reserve(call)).exceeded is None
        await limits.settle(call, Spent(100, Decimal("0.0004")))
    assert limits.local / (limits.local + limits.asked) > 0.9
    narrow = Limit("key:k2", "requests_per_minute", 60, 60)
    asked = limits.asked
    for _ in range(10):
        await limits.reserve(wish(narrow))
    assert limits.asked == asked + 10


async def test_reservations_that_come_at_once_share_round_trips(gateways):
    limits = await gateways.another(lease_s=0)
    narrow = Limit("key:k2", "requests_per_minute", 600, 600)
    await limits.reserve(wish(narrow))
    before = limits.exchanges
    await asyncio.gather(*(limits.reserve(wish(narrow)) for _ in range(300)))
    assert limits.exchanges - before <= 5


@pytest.mark.parametrize(
    ("limit", "chunk"),
    [
        (Limit("key:k1", "requests_per_minute", 6000, 1600), 100),
        (Limit("key:k1", "usd_per_hour", 100_000_000), 1_000_000),
        (Limit("key:k1", "concurrent_requests", 640), 10),
    ],
)
async def test_what_a_process_keeps_for_later_is_at_most_a_chunk_and_goes_back_when_idle(
    gateways: Gateways, limit: Limit, chunk: int
) -> None:
    """A round trip after it was used, others find the bound; a period later all of it."""
    holder, other = await gateways.another(lease_s=1.0), await gateways.another(lease_s=1.0)
    call = wish(limit)
    await holder.reserve(call)
    needed = usd("0.0008") if limit.kind.startswith("usd") else 1
    cap = limit.burst or limit.most
    assert cap - needed - chunk <= await left(other, limit) < cap - needed

    async def all_back() -> bool:
        return await left(other, limit) >= cap - needed

    await eventually(all_back)
    await holder.settle(call, UNUSED)

    async def nothing_held() -> bool:
        return await left(other, limit) == cap

    await eventually(nothing_held)


async def test_near_the_limit_nothing_is_stranded(gateways):
    """From three quarters on every request asks, and leases are given back."""
    pair = [await gateways.another(lease_s=0.05), await gateways.another(lease_s=0.05)]
    slots = Limit("key:k1", "concurrent_requests", 640)
    admitted = 0
    while admitted < 640:
        admission = await pair[admitted % 2].reserve(wish(slots))
        if admission.exceeded is None:
            admitted += 1
        else:
            assert admitted >= 480
            await asyncio.sleep(0.01)
    assert await left(pair[0], slots) == 0
    assert (await pair[0].reserve(wish(slots))).exceeded.current == 640


async def test_closing_gives_back_what_is_held_for_later(gateways):
    limits, other = await gateways.another(), await gateways.another()
    wide = Limit("tenant:acme", "usd_per_day", usd("100"))
    call = wish(wide)
    await limits.reserve(call)
    await limits.settle(call, Spent(10, Decimal("0.0001")))
    await limits.aclose()
    await limits.aclose()
    assert await left(other, wide) == usd("100") - usd("0.0001")
    with pytest.raises(StoreUnavailable, match="closed"):
        await limits.reserve(wish(wide))


LEASED = (
    Limit("key:k1", "requests_per_minute", 90, 32),
    Limit("tenant:acme", "tokens_per_minute", 3000, 800),
    Limit("group:g", "usd_per_month", 700),
    Limit("tenant:acme", "concurrent_requests", 12),
)
"""Small enough to be reached within a story, large enough for leases of some requests."""


@pytest.mark.parametrize("count", [1, 2])
@examples(120)
@given(steps=stories(LEASED) | stories(RATES + EXACT))
def test_no_story_of_one_or_two_gateways_with_leases_goes_over_a_limit(redis_server, count, steps):
    asyncio.run(_told(redis_server, steps, count))


async def _told(server: RedisServer, steps: list[Reserve | Settle | Wait], count: int) -> None:
    """A story, each step of which another gateway is told."""
    server.clear()
    clock, books = Clock(), Books()
    # Small limits have no chunks; these leases are as large as the whole limit allows.
    stores = [
        RedisLimits(server.url, f"g{n}", books.spent_so_far, lease_s=5, grace_s=0, clock_ms=clock) for n in range(count)
    ]
    homes: dict[str, RedisLimits] = {}
    turns = itertools.cycle(stores)

    class Spread:
        async def reserve(self, call: Reservation) -> Admission:
            homes[call.request_id] = next(turns)
            return await homes[call.request_id].reserve(call)

        async def settle(self, call: Reservation, spent: Spent) -> None:
            await homes[call.request_id].settle(call, spent)

    teller = Teller(Store(Spread(), None), clock)  # type: ignore[arg-type]
    for step in steps:
        await teller.tell(step)
        teller.oracle.check()
    for store in stores:
        await store.aclose()


async def test_a_redis_that_hangs_costs_one_time_out_and_then_nothing(gateways, redis_server):
    limits = await gateways.another(timeout_s=0.2, pause_s=0.5)
    slots = Limit("key:k1", "concurrent_requests", 5)
    await limits.reserve(wish(slots))
    redis_server.freeze()
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="limits in 127"):
        await limits.reserve(wish(slots))
    assert time.monotonic() - began < 0.6
    began = time.monotonic()
    for _ in range(100):
        with pytest.raises(StoreUnavailable):
            await limits.reserve(wish(slots))
    assert time.monotonic() - began < 0.2
    redis_server.thaw()

    async def back() -> bool:
        try:
            return (await limits.reserve(wish(slots))).exceeded is None
        except StoreUnavailable:
            return False

    await eventually(back)

    # What was asked for meanwhile was taken by nobody, or given back.
    async def nothing_leaked() -> bool:
        return await left(limits, slots) == 3

    await eventually(nothing_leaked)


@pytest.mark.parametrize("end", ["freeze", "stop"])
async def test_what_was_settled_while_redis_was_away_is_told_once_when_it_is_back(gateways, redis_server, end):
    """Frozen, the server has the words in its buffer and acts on them later; they are said again all the same."""
    limits, other = await gateways.another(timeout_s=0.1), await gateways.another(timeout_s=0.1)
    budget = Limit("tenant:acme", "usd_per_day", usd("0.0100"))
    calls = [wish(budget) for _ in range(5)]
    for call in calls:
        await limits.reserve(call)
    await other.standing([budget])
    getattr(redis_server, end)()
    for call in calls[:4]:
        await limits.settle(call, Spent(10, Decimal("0.0003")))
    if end == "stop":
        gateways.books.spent["tenant:acme"] = 4 * usd("0.0003")
    redis_server.start()

    async def told() -> bool:
        try:
            found = await left(other, budget)
        except StoreUnavailable:
            return False
        # A Redis that lost all is told by the books and by the gateway: never less than the truth.
        return found == usd("0.0100") - 4 * usd("0.0003") - usd("0.0008") or (
            end == "stop" and found == usd("0.0100") - 8 * usd("0.0003") - usd("0.0008")
        )

    await eventually(told)


async def test_a_redis_that_lost_its_data_is_told_what_is_held_before_anybody_takes_more(gateways, redis_server):
    first = await gateways.another(grace_s=1.0, beat_s=0.1)
    second = await gateways.another(grace_s=1.0, beat_s=0.1)
    slots, budget = Limit("key:k1", "concurrent_requests", 2), Limit("tenant:acme", "usd_per_day", usd("0.0020"))
    for _ in range(2):
        assert (await first.reserve(wish(slots, budget))).exceeded is None
    gateways.books.spent["tenant:acme"] = usd("0.0001")
    redis_server.kill()
    redis_server.start()

    async def refused() -> bool:
        try:
            admission = await second.reserve(wish(slots, budget))
        except StoreUnavailable:
            return False
        assert admission.exceeded is not None
        return True

    await eventually(refused)
    stands = await second.standing([slots, budget])
    assert [each.remaining for each in stands] == [0, usd("0.0003")]


async def test_scripts_that_redis_forgot_are_sent_again(gateways, redis_server):
    limits = await gateways.another()
    await limits.reserve(wish(SLOTS))
    redis_server.clear()
    assert (await limits.reserve(wish(REQUESTS, SLOTS))).exceeded is None


async def test_a_new_dollar_counter_begins_with_what_the_books_say_and_they_are_asked_once(gateways):
    limits = await gateways.another()
    budget = Limit("user:acme/bob", "usd_per_month", usd("0.0020"))
    gateways.books.spent["user:acme/bob"] = usd("0.0010")
    outcomes = await asyncio.gather(*(limits.reserve(wish(budget)) for _ in range(50)))
    assert sum(outcome.exceeded is None for outcome in outcomes) == 1
    assert len(gateways.books.asked) == 1
    other = await gateways.another()
    assert await left(other, budget) == usd("0.0002")
    assert len(gateways.books.asked) == 1


async def test_the_books_are_asked_again_when_a_new_window_begins(gateways):
    clock = Clock()
    limits = await gateways.another(clock_ms=clock)
    budget = Limit("tenant:acme", "usd_per_hour", usd("0.0010"))
    assert (await limits.reserve(clock.wish(budget))).exceeded is None
    clock.turn(3600)
    assert (await limits.reserve(clock.wish(budget))).exceeded is None
    windows = [window for _, window in gateways.books.asked]
    assert windows == [clock.now_ms - 3_600_000, clock.now_ms]


async def test_while_the_books_cannot_be_asked_a_new_budget_admits_nothing(gateways):
    limits = await gateways.another()
    budget, slots = Limit("tenant:acme", "usd_per_day", usd("0.0010")), Limit("key:k1", "concurrent_requests", 1)
    gateways.books.away = True
    with pytest.raises(StoreUnavailable, match="books are away"):
        await limits.reserve(wish(slots, budget))
    gateways.books.away = False
    assert (await limits.reserve(wish(slots, budget))).exceeded is None


async def test_a_mere_question_leaves_no_trace_in_redis(gateways, redis_url):
    limits = await gateways.another()
    assert await left(limits, SLOTS) == SLOTS.most
    await limits.aclose()
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys("*") == [b"llmrouter:{limits}:epoch"]


async def test_all_keys_share_one_hash_tag_and_expire(gateways, redis_url):
    limits = await gateways.another()
    every = (SLOTS, DOLLARS, REQUESTS, TOKENS)
    call = wish(*every)
    await limits.reserve(call)
    await limits.reserve(wish(*every))
    await limits.settle(call, Spent(10, Decimal("0.0001")))
    with redis.Redis.from_url(redis_url) as client:
        keys = client.keys("*")
        assert len(keys) >= 7
        assert all(key.startswith(b"llmrouter:{limits}:") for key in keys)
        assert [key for key in keys if client.ttl(key) < 0] == [b"llmrouter:{limits}:epoch"]


async def test_idle_limits_take_no_memory_here(gateways):
    limits = await gateways.another(lease_s=0.05)
    for number in range(200):
        call = wish(Limit(f"user:acme/{number}", "requests_per_minute", 60_000, 60_000), SLOTS)
        await limits.reserve(call)
        await limits.settle(call, Spent(10))

    async def forgotten() -> bool:
        return not limits._leases and not limits._open and not limits._asking

    await eventually(forgotten)


async def test_a_missing_driver_is_said_in_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(UsageError, match=r"pip install '.\[redis\]'"):
        RedisLimits("redis://127.0.0.1:1", "g", Books().spent_so_far)


def test_an_address_of_no_server_is_a_configuration_error():
    with pytest.raises(ConfigError, match="limits_url"):
        RedisLimits("http://127.0.0.1:1", "g", Books().spent_so_far)


async def test_neither_messages_nor_logs_show_the_password(caplog):
    limits = RedisLimits("redis://me:s3cret@127.0.0.1:1/0", "g", Books().spent_so_far, pause_s=0.1)
    with pytest.raises(StoreUnavailable) as raised:
        await limits.reserve(wish(SLOTS))
    await limits.aclose()
    assert "s3cret" not in raised.value.message + caplog.text
    assert "127.0.0.1:1" in raised.value.message
