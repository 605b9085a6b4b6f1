"""A pool under traffic of several classes and tenants, played in hand-turned time."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from llmrouter.backends.class_queue import RANKS
from llmrouter.backends.echo import EchoBackend
from llmrouter.backends.pool import Lease, Pool
from llmrouter.backends.waiting import Ticket
from llmrouter.config import ClassesConfig, PoolConfig
from llmrouter.errors import NoCapacity
from llmrouter.testing import HandClock
from llmrouter.types import Failure, LatencyClass
from tests.backends.simulation import FAR, Load, Served, Simulation

INTERACTIVE, STANDARD, BATCH = (Ticket(name, "t", 1.0, 100) for name in RANKS)


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[math.ceil(share * len(values)) - 1]


def poisson(per_s: float, seed: int) -> Iterator[float]:
    rng = random.Random(seed)
    return itertools.accumulate(rng.expovariate(per_s) for _ in itertools.count())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


# -- order


@pytest.mark.parametrize("slots", [1, 2, 10, 64])
async def test_with_every_class_backlogged_for_ever_each_gets_its_weight_of_the_starts(slots):
    simulation = Simulation(max_concurrency=slots)
    # Batch comes first and fills what it may.
    batch, standard, interactive = (
        simulation.backlog(Load(ticket, 1.0, 0.1), slots + 30) for ticket in (BATCH, STANDARD, INTERACTIVE)
    )
    await simulation.run(5)
    before = [len(each.started_at) for each in (interactive, standard, batch)]
    await simulation.run(420 / slots)
    starts = [len(each.started_at) - was for each, was in zip((interactive, standard, batch), before, strict=True)]
    await simulation.stop()
    assert [round(count / sum(starts) * 21, 1) for count in starts] == pytest.approx([16, 4, 1], rel=0.1)


async def test_no_class_starves_behind_a_flood_that_keeps_the_queue_full():
    """Far more interactive arrivals than the pool can serve; batch still gets its turns."""
    simulation = Simulation(max_concurrency=4, max_queue=42)
    flood = simulation.arrivals(Load(INTERACTIVE, 1.0, 0.1), poisson(40, seed=1))
    batch = simulation.arrivals(Load(BATCH, 1.0, 0.1), poisson(2, seed=2))
    await simulation.run(120)
    await simulation.stop()
    assert len(flood.refused) > 1000
    assert len(batch.started_at) >= 120 * 4 / 21 * 0.8


async def test_tenants_of_one_class_share_a_full_pool_by_weight():
    simulation = Simulation(max_concurrency=4)
    heavy = simulation.backlog(Load(Ticket("standard", "heavy", 3.0, 100), 1.0, 0.1), 40)
    light = simulation.backlog(Load(Ticket("standard", "light", 1.0, 100), 1.0, 0.1), 40)
    await simulation.run(100)
    await simulation.stop()
    assert len(heavy.started_at) / len(light.started_at) == pytest.approx(3, rel=0.05)


async def test_a_tenants_burst_hardly_delays_another_tenant_of_its_class():
    simulation = Simulation(max_concurrency=4)
    simulation.backlog(Load(Ticket("standard", "greedy", 1.0, 100), 1.0, 0.1), 200)
    modest = simulation.arrivals(Load(Ticket("standard", "modest", 1.0, 100), 1.0, 0.1), iter([5.5, 8.5, 11.5]))
    await simulation.run(20)
    await simulation.stop()
    assert max(modest.ttft_s) <= 0.1 + 1.0, "the next slot is its own, however many of the other's wait"


# -- shares


async def side_by_side(interactive_per_s: float) -> tuple[float, Served, Served, Served]:
    """The paced demonstration of benchmarks/classes in exact time: p95 of interactive calls alone, and what came of
    interactive, standard and batch calls together for 300 s, with batch always waiting."""
    interactive, standard, batch = Load(INTERACTIVE, 0.4, 0.2), Load(STANDARD, 0.5, 0.2), Load(BATCH, 1.0, 0.2)
    alone = Simulation(max_concurrency=16)
    unloaded = alone.arrivals(interactive, poisson(interactive_per_s, seed=5))
    await alone.run(300)
    await alone.stop()
    shared = Simulation(max_concurrency=16)
    flood = shared.backlog(batch, 40)
    between = shared.arrivals(standard, poisson(2, seed=6))
    loaded = shared.arrivals(interactive, poisson(interactive_per_s, seed=5))
    await shared.run(300)
    await shared.stop()
    assert not loaded.refused
    return quantile(unloaded.ttft_s, 0.95), loaded, between, flood


async def test_interactive_hardly_notices_that_batch_fills_the_pool():
    unloaded_s, loaded, between, flood = await side_by_side(2)
    assert len(loaded.ttft_s) > 500
    assert quantile(loaded.ttft_s, 0.95) <= 1.2 * unloaded_s
    rest = min(11, 16 - (between.busy_s + loaded.busy_s) / 300)
    assert flood.busy_s / 300 >= 0.9 * rest
    means = [sum(each.ttft_s) / len(each.ttft_s) for each in (loaded, between, flood)]
    assert means == sorted(means)


async def test_interactive_traffic_beyond_its_kept_slots_waits_for_the_next_free_one_not_behind_batch():
    """Ten calls a second are four slots' work, where two are kept: the queue's order does the rest."""
    _, loaded, _, flood = await side_by_side(10)
    assert quantile(loaded.ttft_s, 0.95) <= 0.2 + 1.0, "within one batch call's time"
    assert quantile(flood.ttft_s, 0.5) > 2.0


async def test_without_shares_and_turns_the_same_interactive_traffic_would_wait():
    """The counter-test: as one class, it queues behind batch."""
    shared = Simulation(max_concurrency=16)
    shared.backlog(Load(BATCH, 1.0, 0.2), 40)
    same = shared.arrivals(Load(BATCH, 0.4, 0.2), poisson(3, seed=5))
    await shared.run(60)
    await shared.stop()
    assert quantile(same.ttft_s, 0.95) > 5 * 0.2


async def test_slots_that_are_kept_for_urgent_classes_are_theirs_while_batch_waits():
    simulation = Simulation(max_concurrency=10)
    simulation.backlog(Load(BATCH, 100.0, 1.0), 20)
    await simulation.run(1)
    status = simulation.pool.status()
    assert (status.in_flight_by_class["batch"], status.queued_by_class["batch"]) == (7, 13)
    urgent = (STANDARD, INTERACTIVE, INTERACTIVE, INTERACTIVE)
    assert [simulation.pool.try_acquire(ticket) is not None for ticket in urgent] == [True, True, True, False]
    await simulation.stop()


# -- shedding


async def test_a_place_in_a_full_queue_goes_to_the_more_urgent_request():
    simulation = Simulation(max_concurrency=1, max_queue=1)
    pool = simulation.pool
    held = pool.try_acquire(BATCH)
    assert held is not None
    batch = asyncio.create_task(pool.acquire(BATCH, deadline=FAR))
    await settle()
    urgent = asyncio.create_task(pool.acquire(INTERACTIVE, deadline=FAR))
    with pytest.raises(NoCapacity, match="the place went to another request") as refused:
        await batch
    assert refused.value.retry_after_s == 3600
    held.succeed()
    (await urgent).succeed()


async def test_a_class_may_have_a_time_out_of_its_own():
    classes = ClassesConfig.model_validate({"batch": {"queue_timeout_s": 0.001}})
    simulation = Simulation(classes=classes, max_concurrency=1)
    held = simulation.pool.try_acquire(BATCH)
    assert held is not None
    with pytest.raises(NoCapacity, match="waited too long") as refused:
        await simulation.pool.acquire(BATCH, deadline=FAR)
    assert refused.value.retry_after_s == 0.001
    waiting = asyncio.create_task(simulation.pool.acquire(STANDARD, deadline=FAR))
    await settle()
    assert not waiting.done()
    held.succeed()
    (await waiting).succeed()


async def learnt(simulation: Simulation, *, service_s: float = 2.0, first_output_s: float = 0.5) -> None:
    """Let the pool see ten calls of this length, one after the other."""
    for _ in range(10):
        lease = simulation.pool.try_acquire(STANDARD)
        assert lease is not None
        simulation.clock.advance(first_output_s)
        lease.confirm()
        simulation.clock.advance(service_s - first_output_s)
        lease.succeed()


async def test_a_request_whose_wait_would_pass_its_deadline_is_sent_away_when_it_comes():
    simulation = Simulation(max_concurrency=1)
    await learnt(simulation)
    simulation.backlog(Load(STANDARD, 2.0, 0.5), 6)
    await simulation.run(0)
    with pytest.raises(NoCapacity, match=r"wait of about 10\.0 s would pass the request's deadline") as refused:
        await simulation.pool.acquire(STANDARD, deadline=simulation.clock() + 10)
    assert refused.value.retry_after_s == pytest.approx(10)
    patient = asyncio.create_task(simulation.pool.acquire(STANDARD, deadline=simulation.clock() + 20))
    await settle()
    assert not patient.done()
    patient.cancel()
    await simulation.stop()


async def test_a_request_whose_wait_would_pass_the_queues_time_out_is_sent_away_when_it_comes():
    simulation = Simulation(max_concurrency=1, queue_timeout_s=9)
    await learnt(simulation)
    simulation.backlog(Load(STANDARD, 2.0, 0.5), 6)
    await simulation.run(0)
    with pytest.raises(NoCapacity, match="would pass the queue's time-out"):
        await simulation.pool.acquire(STANDARD, deadline=FAR)
    assert simulation.pool.status().queued == 5
    await simulation.stop()


async def test_batch_that_may_have_few_slots_is_told_a_wait_for_those():
    """Interactive calls are short and many, but the batch queue does not move at their pace."""
    simulation = Simulation(max_concurrency=10, classes=ClassesConfig.model_validate({"batch": {"max_share": 0.2}}))
    short = simulation.arrivals(Load(INTERACTIVE, 0.1, 0.1), poisson(20, seed=3))
    long = simulation.backlog(Load(BATCH, 10.0, 1.0), 22)
    await simulation.run(120)
    assert len(short.started_at) > 1000
    with pytest.raises(NoCapacity) as refused:
        await simulation.pool.acquire(BATCH, deadline=simulation.clock() + 60)
    await simulation.stop()
    assert len(long.started_at) > 20
    assert refused.value.retry_after_s == pytest.approx(20 * 10 / 2, rel=0.1)


async def test_before_anything_is_known_nobody_is_sent_away_for_a_guess():
    simulation = Simulation(max_concurrency=1)
    simulation.backlog(Load(STANDARD, 2.0, 0.5), 50)
    await simulation.run(0)
    waiting = asyncio.create_task(simulation.pool.acquire(STANDARD, deadline=simulation.clock() + 1))
    await settle()
    assert not waiting.done()
    waiting.cancel()
    await simulation.stop()


async def test_a_free_slot_is_given_whatever_the_deadline():
    simulation = Simulation(max_concurrency=2)
    await learnt(simulation)
    (await simulation.pool.acquire(STANDARD, deadline=simulation.clock() + 0.01)).succeed()


async def test_a_waiter_that_could_not_begin_in_time_is_answered_instead_of_started():
    simulation = Simulation(max_concurrency=1)
    await learnt(simulation)
    held = simulation.pool.try_acquire(STANDARD)
    assert held is not None
    late = asyncio.create_task(simulation.pool.acquire(STANDARD, deadline=simulation.clock() + 2))
    patient = asyncio.create_task(simulation.pool.acquire(STANDARD, deadline=FAR))
    await settle()
    simulation.clock.advance(1.7)
    held.succeed()
    with pytest.raises(NoCapacity, match=r"deadline leaves 0\.3 s and its first output would take 0\.5 s"):
        await late
    (await patient).succeed()
    assert simulation.pool.status().in_flight == 0


async def test_a_waiter_that_is_answered_instead_of_started_costs_its_tenant_no_turn():
    simulation = Simulation(max_concurrency=1)
    await learnt(simulation)
    held = simulation.pool.try_acquire(STANDARD)
    assert held is not None
    unlucky, other = (Ticket("standard", name, 1.0, 1000) for name in ("unlucky", "other"))
    late = asyncio.create_task(simulation.pool.acquire(unlucky, deadline=simulation.clock() + 2))
    waiting = [asyncio.create_task(simulation.pool.acquire(each, deadline=FAR)) for each in (unlucky, other)]
    await settle()
    simulation.clock.advance(1.7)
    held.succeed()
    with pytest.raises(NoCapacity):
        await late
    assert [task.done() for task in waiting] == [True, False], "the turn is still its tenant's"
    for task in waiting:
        (await task).succeed()


async def test_an_estimate_that_sends_all_waiters_away_is_corrected_by_those_that_find_a_slot():
    """The engine was slow and is fast again: requests with short deadlines are served again, not shed for ever."""
    simulation = Simulation(max_concurrency=2)
    await learnt(simulation, service_s=30.0, first_output_s=20.0)
    calls = simulation.arrivals(Load(STANDARD, 0.5, 0.1, patience_s=5.0), poisson(5, seed=4))
    await simulation.run(120)
    early, before = len(calls.refused), len(calls.started_at)
    await simulation.run(60)
    await simulation.stop()
    assert early > 0
    assert len(calls.started_at) - before > 60 * 4 * 0.85, "nearly all that two slots can serve"


# -- laws

CLASSES = st.sampled_from(list(RANKS))


class PoolMachine(RuleBasedStateMachine):
    """Any interleaving of arrivals, ends, leaves, failures, time and reloads: no slot is lost or given twice, nobody
    waits beside a slot that is theirs, and the queue never passes its bound."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = HandClock(1000.0)
        self.asking: list[asyncio.Task[Lease]] = []
        self.held: list[Lease] = []

    @initialize(slots=st.integers(1, 6), places=st.integers(0, 8))
    def build(self, slots: int, places: int) -> None:
        self.backends = [(EchoBackend(name=name, model="m"), f"http://{name}/v1") for name in "ab"]
        self.places, self.slots = places, slots
        self.pool = Pool.with_replicas("p", self._config(), self.backends, now=self.clock, rng=random.Random(1))

    def _config(self) -> PoolConfig:
        fields = {"max_concurrency": self.slots, "max_queue": self.places, "queue_timeout_s": 3600}
        breaker = {"failures": 3, "open_s": 5}
        return PoolConfig.model_validate({"model": "m", "urls": ["http://e/v1"], "breaker": breaker, **fields})

    @rule(
        latency_class=CLASSES, tenant_id=st.sampled_from("xyz"), tokens=st.integers(0, 900), left_s=st.integers(0, 40)
    )
    def ask(self, latency_class: LatencyClass, tenant_id: str, tokens: int, left_s: int) -> None:
        ticket = Ticket(latency_class, tenant_id, 1.0 + "xyz".index(tenant_id), tokens)

        async def start() -> None:
            self.asking.append(asyncio.create_task(self.pool.acquire(ticket, deadline=self.clock() + left_s * 10)))

        self.runner.run(start())

    @rule(latency_class=CLASSES)
    def ask_at_once(self, latency_class: LatencyClass) -> None:
        async def start() -> None:
            lease = self.pool.try_acquire(Ticket(latency_class, "w", 1.0, 10))
            if lease is not None:
                self.held.append(lease)

        self.runner.run(start())

    @rule(pick=st.integers(0, 99), end=st.sampled_from(["succeed", "release", "fail", "stream"]))
    def end(self, pick: int, end: str) -> None:
        async def finish() -> None:
            if self.held:
                lease = self.held.pop(pick % len(self.held))
                if end == "stream":
                    lease.confirm()
                    lease.succeed()
                else:
                    lease.fail(Failure.SERVER) if end == "fail" else getattr(lease, end)()

        self.runner.run(finish())

    @rule(picks=st.lists(st.integers(0, 99), min_size=1, max_size=4), then_end=st.booleans())
    def leave(self, picks: list[int], then_end: bool) -> None:
        """Clients go, and perhaps a slot is freed before their tasks have noticed."""

        async def go() -> None:
            for pick in picks:
                if self.asking:
                    self.asking[pick % len(self.asking)].cancel()
            if then_end and self.held:
                self.held.pop().succeed()

        self.runner.run(go())

    @rule(seconds=st.integers(1, 20))
    def later(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(more=st.integers(1, 3), places=st.integers(0, 8), share=st.sampled_from([0.2, 0.5, 1.0]))
    def reload(self, more: int, places: int, share: float) -> None:
        self.slots += more
        self.places = max(self.places, places)
        classes = ClassesConfig.model_validate({"batch": {"max_share": share}})

        async def change() -> None:
            self.pool.reconfigure(self._config(), self.backends, classes)

        self.runner.run(change())

    @rule()
    def let_everybody_run(self) -> None:
        self.runner.run(settle())
        for task in [task for task in self.asking if task.done()]:
            self.asking.remove(task)
            with suppress(NoCapacity, asyncio.CancelledError):
                self.held.append(task.result())
        status = self.pool.status()
        assert status.in_flight == len(self.held) == sum(one.in_flight for one in status.replicas)
        assert status.queued == len(self.asking)
        assert not (status.queued and self._may_start()), "somebody waits beside a slot that is theirs"

    def _may_start(self) -> bool:
        """Whether a waiter of any class could be started now, by asking as each class that has one."""
        waiting = self.pool.status().queued_by_class
        for latency_class in [name for name, count in waiting.items() if count]:
            lease = self.pool.try_acquire(Ticket(latency_class))
            if lease is not None:
                return True
        return False

    @invariant()
    def bounds_hold(self) -> None:
        if not hasattr(self, "pool"):
            return
        status = self.pool.status()
        assert status.in_flight <= self.slots
        assert status.queued <= self.places
        assert status.in_flight == sum(status.in_flight_by_class.values())
        assert status.queued == sum(status.queued_by_class.values())

    def teardown(self) -> None:
        async def close() -> None:
            for task in self.asking:
                task.cancel()
            await asyncio.gather(*self.asking, return_exceptions=True)
            for task in self.asking:
                if not task.cancelled() and task.exception() is None:
                    task.result().release()
            for lease in self.held:
                lease.release()

        self.runner.run(close())
        self.runner.close()
        if hasattr(self, "pool"):
            status = self.pool.status()
            assert (status.in_flight, status.queued) == (0, 0)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
