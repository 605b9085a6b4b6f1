"""Choice, queueing, drain and reconfiguration of a pool; every clock is turned by hand."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrouter.backends.breaker import BreakerState
from llmrouter.backends.echo import EchoBackend
from llmrouter.backends.engine_metrics import EngineLoad
from llmrouter.backends.pool import Health, Lease, Pool, Replica
from llmrouter.config import PoolConfig
from llmrouter.errors import ConfigError, NoCapacity, UsageError
from llmrouter.protocols import Backend
from llmrouter.types import Failure

FAR = 1e9


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def config(**changes: object) -> PoolConfig:
    return PoolConfig.model_validate({"model": "m", "urls": ["http://engine/v1"], **changes})


def members(*names: str) -> list[tuple[Backend, str | None]]:
    return [(EchoBackend(name=name, model="m"), f"http://{name}/v1") for name in names]


def make(*names: str, clock: Clock | None = None, **changes: object) -> Pool:
    rng = random.Random(7)
    return Pool.with_replicas("small", config(**changes), members(*names), now=clock or Clock(), rng=rng)


def take(pool: Pool, affinity: int | None = None, exclude: tuple[str, ...] = ()) -> Lease:
    lease = pool.try_acquire(affinity=affinity, exclude=exclude)
    assert lease is not None
    return lease


def break_down(pool: Pool, name: str, retry_after_s: float = 30.0) -> None:
    """Open one replica's breaker by an asked-for pause."""
    others = tuple(replica.name for replica in pool.replicas if replica.name != name)
    lease = take(pool, exclude=others)
    assert lease.replica.name == name
    lease.fail(Failure.OVERLOADED, retry_after_s)


def replica(pool: Pool, name: str) -> Replica:
    return next(found for found in pool.replicas if found.name == name)


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


# -- leases


@pytest.mark.parametrize("end", ["succeed", "fail", "release"])
def test_a_lease_frees_its_slot_once_whatever_is_called_after(end):
    pool = make("a")
    lease = take(pool)
    assert (pool.status().in_flight, lease.replica.in_flight) == (1, 1)
    lease.fail(Failure.SERVER) if end == "fail" else getattr(lease, end)()
    lease.succeed()
    lease.fail(Failure.SERVER)
    lease.release()
    lease.confirm()
    assert (pool.status().in_flight, lease.replica.in_flight) == (0, 0)


def test_only_the_first_verdict_reaches_the_breaker():
    pool = make("a", breaker={"failures": 1})
    lease = take(pool)
    lease.succeed()
    lease.fail(Failure.SERVER)
    assert pool.status().replicas[0].breaker is BreakerState.CLOSED


def test_a_failed_lease_opens_the_breaker_and_a_good_trial_closes_it():
    clock = Clock()
    pool = make("a", clock=clock, breaker={"failures": 1, "open_s": 10})
    take(pool).fail(Failure.CONNECT)
    assert pool.try_acquire() is None
    clock.seconds += 10
    take(pool).succeed()
    assert pool.status().replicas[0].breaker is BreakerState.CLOSED


def test_a_trial_released_without_verdict_can_be_taken_again():
    clock = Clock()
    pool = make("a", clock=clock)
    break_down(pool, "a", retry_after_s=10)
    clock.seconds += 10
    trial = take(pool)
    assert pool.try_acquire() is None
    trial.release()
    take(pool).succeed()


def test_a_confirmed_trial_opens_the_replica_to_others_while_its_stream_goes_on():
    clock = Clock()
    pool = make("a", clock=clock, breaker={"failures": 1})
    break_down(pool, "a", retry_after_s=10)
    clock.seconds += 10
    stream = take(pool)
    stream.confirm()
    other = take(pool)
    assert pool.status().in_flight == 2
    other.succeed()
    stream.fail(Failure.RESET)
    assert pool.status().replicas[0].breaker is BreakerState.OPEN


# -- choice


def test_the_less_busy_of_two_wins():
    pool = make("a", "b")
    leases = [take(pool) for _ in range(10)]
    assert Counter(lease.replica.name for lease in leases) == {"a": 5, "b": 5}


def test_what_waits_inside_the_engine_counts_as_load_while_it_is_fresh():
    clock = Clock()
    pool = make("a", "b", clock=clock)
    replica(pool, "a").note_load(EngineLoad(waiting=3), until=clock.seconds + 15)
    assert [take(pool).replica.name for _ in range(3)] == ["b"] * 3


def test_g089_a_queue_figure_that_stops_coming_is_forgotten():
    """Overload was seen, then the figure vanished: after its time the replica takes calls as before."""
    clock = Clock()
    pool = make("a", "b", clock=clock)
    replica(pool, "a").note_load(EngineLoad(waiting=500), until=clock.seconds + 15)
    for _ in range(50):
        take(pool).succeed()
    clock.seconds += 15
    assert pool.status().replicas[0].engine is None
    names: Counter[str] = Counter()
    for _ in range(50):
        lease = take(pool)
        names[lease.replica.name] += 1
        lease.succeed()
    assert names["a"] > 10
    replica(pool, "a").note_load(EngineLoad(running=9), until=FAR)
    assert replica(pool, "a").load(clock.seconds) == 0, "an unreported queue is unknown"


def test_replicas_that_are_down_draining_or_broken_get_no_calls():
    pool = make("a", "b", "c", "d")
    replica(pool, "a").probe_missed(FAR, said_so=True)
    replica(pool, "b").draining = True
    break_down(pool, "c")
    assert {take(pool).replica.name for _ in range(20)} == {"d"}


def test_g089_a_down_verdict_expires_when_nobody_probes_any_more():
    clock = Clock()
    pool = make("a", clock=clock)
    replica(pool, "a").probe_missed(clock.seconds + 15, said_so=True)
    assert pool.try_acquire() is None
    clock.seconds += 15
    assert replica(pool, "a").health(clock.seconds) is Health.UNKNOWN
    take(pool).succeed()


def test_an_excluded_replica_is_taken_only_when_no_other_is_usable():
    pool = make("a", "b")
    assert {take(pool, exclude=("a",)).replica.name for _ in range(10)} == {"b"}
    break_down(pool, "b")
    assert take(pool, exclude=("a",)).replica.name == "a"


# -- prefix affinity


def test_one_prefix_stays_on_one_replica_while_load_allows():
    pool = make("a", "b", "c")
    names = set()
    for _ in range(30):
        lease = take(pool, affinity=42)
        names.add(lease.replica.name)
        lease.succeed()
    assert len(names) == 1


def test_a_replica_that_goes_moves_only_its_own_prefixes():
    pool = make("a", "b", "c", "d", "e")

    def homes() -> dict[int, str]:
        found = {}
        for prefix in range(200):
            lease = take(pool, affinity=prefix * 0x1234567)
            found[prefix] = lease.replica.name
            lease.succeed()
        return found

    before = homes()
    break_down(pool, "c")
    after = homes()
    assert {p for p in before if before[p] != after[p]} == {p for p in before if before[p] == "c"}


def test_prefixes_have_the_same_home_in_every_worker():
    one, other = make("a", "b", "c"), make("c", "a", "b")
    for prefix in range(50):
        assert take(one, affinity=prefix).replica.name == take(other, affinity=prefix).replica.name
        one, other = make("a", "b", "c"), make("c", "a", "b")


def test_g090_independent_prompts_spread_evenly_over_five_replicas():
    """500 prompts, 20 at a time, each with a prefix of its own; no replica gets twice another's share."""
    pool = make(*"abcde")
    rng, held = random.Random(3), []
    counts: Counter[str] = Counter()
    for _ in range(500):
        lease = take(pool, affinity=rng.getrandbits(64))
        counts[lease.replica.name] += 1
        held.append(lease)
        if len(held) == 20:
            held.pop(rng.randrange(20)).succeed()
    assert len(counts) == 5
    assert max(counts.values()) / min(counts.values()) < 2


def test_g090_independent_prompts_that_all_stay_in_flight_spread_evenly():
    pool = make(*"abcde")
    rng = random.Random(4)
    counts = Counter(take(pool, affinity=rng.getrandbits(64)).replica.name for _ in range(500))
    assert max(counts.values()) / min(counts.values()) < 2


@pytest.mark.parametrize("slack", [1.0, 1.5, 3.0])
def test_g090_one_hot_prefix_spills_over_before_it_saturates_its_replica(slack):
    """The busiest replica never holds much more than the bound allows, and nobody idles.

    The 3 is what choosing between two at random adds to a perfectly even spread.
    """
    pool = make(*"abcde", affinity_slack=slack)
    for taken in range(1, 301):
        take(pool, affinity=1)
        loads = [found.in_flight for found in pool.replicas]
        assert max(loads) <= slack * (taken / 5 + 1) + 3
    assert min(loads) > 300 / 5 / 4


# -- the queue


async def test_a_full_pool_makes_calls_wait_and_serves_them_in_order():
    clock = Clock()
    pool = make("a", clock=clock, max_concurrency=2)
    first, second = take(pool), take(pool)
    assert pool.try_acquire() is None
    waiting = [asyncio.create_task(pool.acquire(deadline=FAR)) for _ in range(3)]
    await settle()
    assert pool.status().queued == 3
    clock.seconds += 4
    first.succeed()
    await settle()
    assert [task.done() for task in waiting] == [True, False, False]
    second.fail(Failure.RESET)
    served = await waiting[0]
    assert served.queue_s == 4.0
    served.release()
    for task in waiting[1:]:
        (await task).succeed()
    assert (pool.status().in_flight, pool.status().queued) == (0, 0)


async def test_a_newcomer_does_not_overtake_those_who_wait():
    pool = make("a", max_concurrency=1)
    held = take(pool)
    waiting = asyncio.create_task(pool.acquire(deadline=FAR))
    await settle()
    held.succeed()
    assert pool.try_acquire() is None, "the free slot already belongs to the waiter"
    (await waiting).succeed()
    take(pool).succeed()


async def test_a_call_that_need_not_wait_has_no_queue_time():
    pool = make("a", max_concurrency=1)
    assert (await pool.acquire(deadline=FAR)).queue_s == 0.0


async def test_a_full_queue_sheds_at_once_with_a_retry_hint():
    pool = make("a", max_concurrency=1, max_queue=1, queue_timeout_s=8)
    held = take(pool)
    waiting = asyncio.create_task(pool.acquire(deadline=FAR))
    await settle()
    with pytest.raises(NoCapacity, match="queue is full") as refused:
        await pool.acquire(deadline=FAR)
    assert refused.value.retry_after_s == 8
    held.succeed()
    (await waiting).succeed()


async def test_no_queue_at_all_is_a_setting():
    pool = make("a", max_concurrency=1, max_queue=0)
    take(pool)
    with pytest.raises(NoCapacity, match="queue is full"):
        await pool.acquire(deadline=FAR)


async def test_waiting_ends_with_the_queues_time_out():
    pool = make("a", max_concurrency=1, queue_timeout_s=0.001)
    take(pool)
    with pytest.raises(NoCapacity, match="waited too long") as refused:
        await pool.acquire(deadline=FAR)
    assert refused.value.retry_after_s == 0.001
    assert pool.status().queued == 0


async def test_waiting_ends_with_the_requests_own_deadline():
    clock = Clock()
    pool = make("a", clock=clock, max_concurrency=1)
    take(pool)
    with pytest.raises(NoCapacity, match="waited too long"):
        await pool.acquire(deadline=clock.seconds + 0.001)
    with pytest.raises(NoCapacity, match="deadline has passed"):
        await pool.acquire(deadline=clock.seconds)


async def test_g037_a_client_that_leaves_the_queue_frees_its_place_at_once():
    pool = make("a", max_concurrency=1, max_queue=1)
    held = take(pool)
    gone = asyncio.create_task(pool.acquire(deadline=FAR))
    await settle()
    gone.cancel()
    await settle()
    assert pool.status().queued == 0
    waiting = asyncio.create_task(pool.acquire(deadline=FAR))
    await settle()
    held.succeed()
    (await waiting).succeed()
    assert pool.status().in_flight == 0


async def test_g037_a_slot_granted_to_a_client_that_is_just_leaving_goes_to_the_next():
    """The slot is handed over and the task cancelled before it could run again."""
    pool = make("a", max_concurrency=1)
    held = take(pool)
    gone = asyncio.create_task(pool.acquire(deadline=FAR))
    waiting = asyncio.create_task(pool.acquire(deadline=FAR))
    await settle()
    held.succeed()
    gone.cancel()
    await settle()
    assert gone.cancelled()
    (await waiting).succeed()
    assert pool.status().in_flight == 0


async def test_a_slot_freed_while_the_first_in_line_is_leaving_skips_it():
    pool = make("a", max_concurrency=1)
    held = take(pool)
    gone = asyncio.create_task(pool.acquire(deadline=FAR))
    waiting = asyncio.create_task(pool.acquire(deadline=FAR))
    await settle()
    gone.cancel()
    held.succeed()
    await settle()
    (await waiting).succeed()
    assert pool.status().in_flight == 0


# -- nothing usable


async def test_g080_all_breakers_open_is_no_capacity_with_the_soonest_retry():
    clock = Clock()
    pool = make("a", "b", clock=clock)
    break_down(pool, "a", retry_after_s=40)
    break_down(pool, "b", retry_after_s=25)
    opens = [found.breaker_opens for found in pool.status().replicas]
    clock.seconds += 5
    for _ in range(20):
        with pytest.raises(NoCapacity, match="no usable replica") as refused:
            await pool.acquire(deadline=FAR)
        assert (refused.value.status, refused.value.retry_after_s) == (503, 20.0)
    assert [found.breaker_opens for found in pool.status().replicas] == opens
    clock.seconds += 20
    assert take(pool).replica.name == "b"


async def test_g080_while_the_only_trial_is_under_way_others_are_asked_to_come_back_soon():
    clock = Clock()
    pool = make("a", clock=clock)
    break_down(pool, "a", retry_after_s=10)
    clock.seconds += 10
    trial = take(pool)
    with pytest.raises(NoCapacity) as refused:
        await pool.acquire(deadline=FAR)
    assert refused.value.retry_after_s == 1.0
    trial.succeed()
    (await pool.acquire(deadline=FAR)).succeed()


async def test_g080_a_pool_without_a_queue_still_says_that_nothing_is_usable():
    pool = make("a", max_queue=0)
    break_down(pool, "a", retry_after_s=40)
    with pytest.raises(NoCapacity, match="no usable replica") as refused:
        await pool.acquire(deadline=FAR)
    assert refused.value.retry_after_s == 40


async def test_replicas_that_are_down_are_worth_asking_again_after_the_next_probe():
    pool = make("a", probe_interval_s=5)
    replica(pool, "a").probe_missed(FAR, said_so=True)
    with pytest.raises(NoCapacity) as refused:
        await pool.acquire(deadline=FAR)
    assert refused.value.retry_after_s == 5


async def test_who_waits_is_sent_away_when_the_last_replica_breaks():
    pool = make("a", max_concurrency=1)
    held = take(pool)
    waiting = [asyncio.create_task(pool.acquire(deadline=FAR)) for _ in range(2)]
    await settle()
    held.fail(Failure.OVERLOADED, retry_after_s=30)
    for task in waiting:
        with pytest.raises(NoCapacity, match="no usable replica") as refused:
            await task
        assert refused.value.retry_after_s == 30
    assert pool.status().queued == 0


# -- drain


async def test_g120_a_draining_replica_gets_no_new_call_and_goes_when_its_last_one_ends():
    pool = make("a", "b", "c")
    streams: list[Lease] = []
    while len(streams) < 2:
        lease = take(pool)
        if lease.replica.name == "c":
            streams.append(lease)
    draining = asyncio.create_task(pool.drain("c", grace_s=60))
    await settle()
    assert [found.draining for found in pool.status().replicas] == [False, False, True]
    assert "c" not in {take(pool).replica.name for _ in range(30)}
    streams[0].succeed()
    await settle()
    assert not draining.done()
    streams[1].succeed()
    assert await draining is True
    assert [found.name for found in pool.replicas] == ["a", "b"]


async def test_g120_the_grace_time_ends_the_wait_and_the_last_lease_still_ends_well():
    pool = make("a", "b")
    stuck = take(pool)
    assert await pool.drain(stuck.replica.name, grace_s=0.001) is False
    assert len(pool.replicas) == 1
    stuck.succeed()
    assert pool.status().in_flight == 0


async def test_an_idle_replica_drains_at_once_and_two_drains_agree():
    pool = make("a", "b")
    assert await pool.drain("a", grace_s=60) is True
    held = take(pool)
    both = [asyncio.create_task(pool.drain("b", grace_s=60)) for _ in range(2)]
    await settle()
    held.succeed()
    assert await asyncio.gather(*both) == [True, True]
    with pytest.raises(UsageError, match="known: none"):
        await pool.drain("b", grace_s=60)


async def test_a_pool_whose_replicas_have_all_gone_says_so():
    pool = make("a", max_concurrency=1)
    held = take(pool)
    waiting = asyncio.create_task(pool.acquire(deadline=FAR))
    await settle()
    draining = asyncio.create_task(pool.drain("a", grace_s=60))
    with pytest.raises(NoCapacity, match="no usable replica"):
        await waiting
    held.succeed()
    assert await draining
    with pytest.raises(NoCapacity, match="no usable replica"):
        await pool.acquire(deadline=FAR)


# -- reconfiguration


def test_a_reload_keeps_breaker_health_and_calls_in_flight_of_replicas_that_stay():
    clock = Clock()
    pool = make("a", "b", "c", clock=clock)
    break_down(pool, "a", retry_after_s=60)
    replica(pool, "b").probe_missed(FAR, said_so=True)
    held = take(pool)
    fresh = members("b", "c", "a", "d")
    again = Pool.with_replicas("small", config(), fresh, pool, now=clock, rng=random.Random(1))
    assert again is pool
    states = {found.name: found for found in pool.status().replicas}
    assert states["a"].retry_in_s == 60
    assert states["b"].health is Health.DOWN
    assert (held.replica.name, states["c"].in_flight) == ("c", 1)
    assert replica(pool, "c").backend is fresh[1][0]
    held.succeed()
    assert replica(pool, "c").in_flight == 0


def test_a_replica_at_another_address_starts_afresh():
    pool = make("a")
    break_down(pool, "a")
    pool.reconfigure(config(), [(EchoBackend(name="a", model="m"), "http://elsewhere/v1")])
    assert pool.status().replicas[0].breaker is BreakerState.CLOSED


def test_a_replica_that_is_no_longer_listed_gets_no_new_call():
    pool = make("a", "b")
    held = [take(pool), take(pool)]
    pool.reconfigure(config(), members("b"))
    assert {take(pool).replica.name for _ in range(5)} == {"b"}
    for lease in held:
        lease.succeed()
    assert pool.status().in_flight == 5


async def test_a_reload_that_raises_the_limit_serves_those_who_wait():
    pool = make("a", max_concurrency=1)
    take(pool)
    waiting = [asyncio.create_task(pool.acquire(deadline=FAR)) for _ in range(3)]
    await settle()
    pool.reconfigure(config(max_concurrency=3), members("a"))
    await settle()
    assert [task.done() for task in waiting] == [True, True, False]
    pool.reconfigure(config(), members("a"))
    await asyncio.gather(*waiting)


def test_two_replicas_of_one_name_are_refused_and_nothing_changes():
    pool = make("a")
    with pytest.raises(ConfigError, match="two replicas are named 'b'"):
        pool.reconfigure(config(), members("b", "b"))
    assert [found.name for found in pool.replicas] == ["a"]


# -- laws


@settings(max_examples=60, deadline=None)
@given(
    limit=st.integers(1, 3),
    steps=st.lists(
        st.tuples(st.sampled_from(["ask", "end", "leave", "fail", "later"]), st.integers(0, 9)), max_size=50
    ),
)
def test_under_any_interleaving_slots_are_neither_lost_nor_given_twice(limit, steps):
    """In flight never passes the limit, nobody waits beside a free slot, and in the end everything is free again."""

    async def play() -> None:
        clock = Clock()
        pool = make("a", "b", clock=clock, max_concurrency=limit, max_queue=4, breaker={"failures": 2})
        asking: list[asyncio.Task[Lease]] = []
        held: list[Lease] = []
        for action, pick in steps:
            if action == "ask":
                asking.append(asyncio.create_task(pool.acquire(deadline=FAR)))
            elif action == "leave" and asking:
                asking[pick % len(asking)].cancel()
            elif action == "later":
                clock.seconds += pick
            elif held:
                lease = held.pop(pick % len(held))
                lease.fail(Failure.SERVER) if action == "fail" else lease.succeed()
            if pick % 2:
                await settle()
                held += collect(asking)
                status = pool.status()
                assert status.in_flight == len(held) == sum(found.in_flight for found in status.replicas)
                assert status.queued == 0 or status.in_flight == limit
            assert pool.status().in_flight <= limit
        for task in asking:
            task.cancel()
        await settle()
        for lease in held + collect(asking):
            lease.release()
        assert (pool.status().in_flight, pool.status().queued) == (0, 0)

    def collect(asking: list[asyncio.Task[Lease]]) -> list[Lease]:
        leases = []
        for task in [task for task in asking if task.done()]:
            asking.remove(task)
            with suppress(NoCapacity, asyncio.CancelledError):
                leases.append(task.result())
        return leases

    asyncio.run(play())
