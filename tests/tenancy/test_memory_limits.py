"""What the store in memory does beyond the contract."""

from llmrouter.tenancy.memory_limits import MemoryLimits
from llmrouter.types import Limit, Spent
from tests.contracts.limit_stores import Clock

SLOTS = Limit("tenant:acme", "concurrent_requests", 5)
TOKENS = Limit("tenant:acme", "tokens_per_minute", 10_000, 10_000)


async def remaining(limits: MemoryLimits) -> list[int]:
    return [each.remaining for each in await limits.standing([SLOTS, TOKENS])]


async def test_burying_takes_back_all_but_what_the_open_calls_are_billed():
    clock = Clock()
    limits = MemoryLimits(clock, owner_name="one")
    wishes = [clock.wish(SLOTS, TOKENS) for _ in range(3)]
    for wish in wishes:
        await limits.reserve(wish)
    assert await remaining(limits) == [2, 1000]
    billed = [(wishes[0], Spent(500)), (wishes[1], Spent(3000))]
    for _ in range(2):
        await limits.bury("one", billed)
        assert await remaining(limits) == [5, 6500]


async def test_burying_another_owner_leaves_our_own_calls_alone():
    clock = Clock()
    limits = MemoryLimits(clock, owner_name="one")
    await limits.reserve(clock.wish(SLOTS, TOKENS))
    await limits.bury("two", [])
    assert await remaining(limits) == [4, 7000]


async def test_a_request_id_is_forgotten_when_its_reservation_has_expired():
    clock = Clock()
    limits = MemoryLimits(clock)
    wish = clock.wish(SLOTS, TOKENS)
    await limits.reserve(wish)
    await limits.settle(wish, Spent(100))
    await limits.reserve(wish)
    assert await remaining(limits) == [5, 9900]
    clock.turn(700)
    await limits.reserve(wish)
    assert await remaining(limits) == [4, 7000]
