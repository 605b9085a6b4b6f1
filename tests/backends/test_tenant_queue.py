"""Turns of the tenants of one class."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from llmrouter.backends.tenant_queue import TenantQueue
from llmrouter.backends.waiting import Ticket, Waiter


def waiter(tenant_id: str, *, weight: float = 1.0, tokens: int = 1) -> Waiter:
    return Waiter(Ticket("standard", tenant_id, weight, tokens), None, (), since=0.0, deadline=1e9)


def serve(queue: TenantQueue) -> Waiter:
    first = queue.first()
    queue.take(first)
    return first


def filled(*waiters: Waiter) -> TenantQueue:
    queue = TenantQueue()
    for each in waiters:
        queue.add(each)
    return queue


async def test_one_tenant_is_served_in_the_order_of_arrival():
    waiters = [waiter("a", tokens=tokens) for tokens in (5, 1, 900, 2)]
    queue = filled(*waiters)
    assert [serve(queue) for _ in waiters] == waiters
    assert queue.count == 0


async def test_a_burst_of_one_tenant_does_not_hold_up_another():
    queue = filled(*(waiter("greedy") for _ in range(100)), waiter("modest"))
    assert "modest" in [serve(queue).ticket.tenant_id for _ in range(2)]


async def test_tenants_get_turns_by_weight():
    queue = filled(*(waiter(name, weight=weight) for name, weight in (("a", 3.0), ("b", 1.0)) for _ in range(100)))
    assert Counter(serve(queue).ticket.tenant_id for _ in range(100)) == {"a": 75, "b": 25}


async def test_tenants_get_equal_work_not_equal_calls():
    """Calls of four times the tokens are started a quarter as often."""
    queue = filled(
        *(waiter(name, tokens=tokens) for name, tokens in (("long", 400), ("short", 100)) for _ in range(90))
    )
    assert Counter(serve(queue).ticket.tenant_id for _ in range(100)) == {"long": 20, "short": 80}


async def test_a_pause_earns_no_turns():
    """Whoever comes late shares from now on; it does not catch up on what it never asked for."""
    queue = filled(*(waiter("steady") for _ in range(200)))
    for _ in range(100):
        serve(queue)
    for _ in range(100):
        queue.add(waiter("late"))
    assert Counter(serve(queue).ticket.tenant_id for _ in range(20)) == {"steady": 10, "late": 10}


async def test_coming_back_from_a_pause_earns_no_turns():
    queue = filled(waiter("early"), *(waiter("steady") for _ in range(200)))
    for _ in range(100):
        serve(queue)
    for _ in range(100):
        queue.add(waiter("early"))
    assert Counter(serve(queue).ticket.tenant_id for _ in range(20)) == {"steady": 10, "early": 10}


async def test_coming_back_at_once_does_not_wipe_out_the_last_turn():
    """A tenant that never has more than one call waiting gets every other turn, not every turn."""
    queue = filled(*(waiter("steady") for _ in range(100)), waiter("returning"))
    served: Counter[str] = Counter()
    for _ in range(40):
        tenant_id = serve(queue).ticket.tenant_id
        served[tenant_id] += 1
        if tenant_id == "returning":
            queue.add(waiter("returning"))
    assert served == {"steady": 20, "returning": 20}


async def test_one_who_leaves_costs_its_tenant_nothing():
    queue = filled(*(waiter("stays") for _ in range(20)))
    for _ in range(50):
        gone = waiter("fickle", tokens=10_000)
        queue.add(gone)
        assert queue.remove(gone)
        assert not queue.remove(gone), "it is out already"
    for _ in range(10):
        queue.add(waiter("fickle"))
    assert Counter(serve(queue).ticket.tenant_id for _ in range(10)) == {"stays": 5, "fickle": 5}


async def test_what_is_ahead_of_a_newcomer_is_its_own_and_the_turns_of_others_between():
    queue = filled(*(waiter("a", weight=2.0) for _ in range(4)), *(waiter("b") for _ in range(10)))
    assert queue.ahead_of(Ticket(tenant_id="new")) == 0, "a newcomer's first call is next"
    assert queue.ahead_of(Ticket(tenant_id="a", weight=2.0)) == 4 + 2
    assert queue.ahead_of(Ticket(tenant_id="b")) == 10 + 4, "the others have no more to bring in between"


async def test_the_largest_is_told_by_weight_and_gives_its_newest():
    light, heavy = [waiter("light") for _ in range(3)], [waiter("heavy", weight=10.0) for _ in range(9)]
    queue = filled(*light, *heavy)
    assert queue.newest_of_largest() is light[-1]


async def test_a_share_of_the_places_goes_by_weight():
    queue = filled(*(waiter("a", weight=3.0) for _ in range(8)))
    assert not queue.has_share_left(Ticket(tenant_id="a", weight=3.0)), "it has all places already"
    assert queue.has_share_left(Ticket(tenant_id="b")), "a quarter of eight is two"
    queue.add(waiter("b"))
    assert queue.has_share_left(Ticket(tenant_id="b"))
    queue.add(waiter("b"))
    assert not queue.has_share_left(Ticket(tenant_id="b"))


WEIGHTS = {"a": 1.0, "b": 3.0, "c": 0.5}


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "add", "serve", "leave"]), st.sampled_from("abc"), st.integers(1, 9)),
        max_size=120,
    )
)
def test_under_any_traffic_two_tenants_that_wait_get_work_by_weight(steps):
    """The bound of start-time fair queueing: while both wait, what two tenants got for their weight differs by no more
    than the largest call of each; and each tenant's own order holds."""

    async def play() -> None:
        queue = TenantQueue()
        waiting: dict[str, list[Waiter]] = {name: [] for name in WEIGHTS}
        work: dict[tuple[str, str], float] = {}

        def both_waited_anew(name: str) -> None:
            for pair in [pair for pair in work if name in pair]:
                del work[pair]

        for action, name, number in steps:
            if action == "add":
                waiting[name].append(waiter(name, weight=WEIGHTS[name], tokens=number))
                if len(waiting[name]) == 1:
                    both_waited_anew(name)
                queue.add(waiting[name][-1])
            elif action == "leave" and waiting[name]:
                assert queue.remove(waiting[name].pop(number % len(waiting[name])))
                if not waiting[name]:
                    both_waited_anew(name)
            elif action == "serve" and queue.count:
                served = serve(queue)
                tenant_id = served.ticket.tenant_id
                assert waiting[tenant_id].pop(0) is served
                for other in WEIGHTS:
                    if other != tenant_id and waiting[other]:
                        pair = (min(tenant_id, other), max(tenant_id, other))
                        got = served.ticket.tokens / WEIGHTS[tenant_id]
                        work[pair] = work.get(pair, 0.0) + (got if tenant_id == pair[0] else -got)
                        assert abs(work[pair]) <= 9 / WEIGHTS[pair[0]] + 9 / WEIGHTS[pair[1]] + 1e-6
                if not waiting[tenant_id]:
                    both_waited_anew(tenant_id)
            assert queue.count == sum(map(len, waiting.values()))

    asyncio.run(play())
