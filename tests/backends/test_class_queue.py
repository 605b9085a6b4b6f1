"""Turns between latency classes, and who has to go when the queue is full."""

from __future__ import annotations

from collections import Counter

import pytest

from llmrouter.backends.class_queue import RANKS, ClassQueue
from llmrouter.backends.waiting import Ticket, Waiter
from llmrouter.config import ClassesConfig
from llmrouter.errors import NoCapacity
from llmrouter.types import LatencyClass

ALL = len(RANKS)


def waiter(latency_class: LatencyClass, tenant_id: str = "t", weight: float = 1.0) -> Waiter:
    return Waiter(Ticket(latency_class, tenant_id, weight, 1), None, (), since=0.0, deadline=1e9)


def filled(limit: int, **counts: int) -> ClassQueue:
    """A queue with so many of each class, in the order given."""
    queue = ClassQueue(limit, ClassesConfig())
    for latency_class, count in counts.items():
        for _ in range(count):
            assert queue.join(waiter(latency_class)) is None  # type: ignore[arg-type]
    return queue


def serve(queue: ClassQueue, classes: int = ALL) -> Waiter:
    first = queue.first(classes)
    assert first is not None
    queue.take(first)
    return first


def names(queue: ClassQueue, count: int, classes: int = ALL) -> Counter[str]:
    return Counter(serve(queue, classes).ticket.latency_class for _ in range(count))


async def test_classes_that_all_wait_are_served_by_weight():
    queue = filled(1000, batch=300, standard=300, interactive=300)
    assert names(queue, 210) == {"interactive": 160, "standard": 40, "batch": 10}


async def test_the_more_urgent_class_is_first_after_a_quiet_time():
    queue = filled(10, batch=2, standard=2, interactive=2)
    assert serve(queue).ticket.latency_class == "interactive"


async def test_a_class_that_may_not_start_is_passed_over_and_saves_up_no_turns():
    queue = filled(1000, batch=300, standard=300)
    assert names(queue, 100, classes=2) == {"standard": 100}
    assert names(queue, 50) == {"standard": 40, "batch": 10}


async def test_a_class_that_did_not_wait_saves_up_no_turns():
    queue = filled(1000, batch=300)
    names(queue, 100)
    for _ in range(100):
        queue.join(waiter("standard"))
    assert names(queue, 50)["batch"] in (9, 10)


async def test_nobody_is_next_while_only_closed_classes_wait():
    queue = filled(10, batch=3)
    assert queue.first(2) is None
    assert len(queue) == 3


async def test_whoever_is_answered_already_is_passed_over():
    queue = ClassQueue(10, ClassesConfig())
    gone, stays = waiter("standard"), waiter("standard")
    queue.join(gone)
    queue.join(stays)
    gone.answer(NoCapacity("left"))
    assert queue.first(ALL) is stays
    assert len(queue) == 1
    queue.leave(gone)
    assert len(queue) == 1, "leaving twice is harmless"


async def test_a_full_queue_gives_a_batch_place_to_a_more_urgent_arrival():
    queue = ClassQueue(2, ClassesConfig())
    older, newer = waiter("batch"), waiter("batch")
    queue.join(older)
    queue.join(newer)
    assert queue.join(waiter("standard")) is newer
    assert queue.join(waiter("interactive")) is older
    assert len(queue) == 2


async def test_the_least_urgent_class_gives_first_and_there_the_tenant_with_the_most():
    queue = filled(12, standard=4)
    for tenant_id in ("few", "many", "many", "many", "few", "many"):
        queue.join(waiter("batch", tenant_id))
    queue.join(newest := waiter("batch", "many"))
    queue.join(waiter("batch", "few"))
    assert queue.join(waiter("interactive")) is newest


async def test_a_less_urgent_arrival_finds_a_full_queue_full():
    queue = filled(2, interactive=2)
    assert queue.join(late := waiter("batch")) is late
    assert len(queue) == 2


@pytest.mark.parametrize("limit", [3, 21, 256])
async def test_a_flood_of_a_more_urgent_class_leaves_every_class_its_places(limit):
    """Else a flood of interactive requests would keep batch out of the queue and so out of its turns."""
    queue = filled(limit, batch=limit)
    for _ in range(3 * limit):
        queue.join(waiter("interactive"))
        queue.join(waiter("standard"))
    weights = {"standard": 4, "batch": 1}
    assert all(queue.waiting(RANKS[name]) >= max(limit * share // 21, 1) for name, share in weights.items())  # type: ignore[index]
    assert len(queue) == limit


async def test_a_class_that_has_fewer_than_its_places_takes_one_back_from_a_full_queue():
    queue = filled(42, interactive=42)
    losers = [queue.join(waiter("batch")) for _ in range(2)]
    assert [loser.ticket.latency_class for loser in losers if loser] == ["interactive", "interactive"]
    third = waiter("batch")
    assert queue.join(third) is third, "its two places of 42 are taken"


async def test_a_tenant_with_less_than_its_share_gets_a_place_of_the_one_with_the_most():
    queue = ClassQueue(8, ClassesConfig())
    crowd = [waiter("standard", "greedy") for _ in range(8)]
    for each in crowd:
        queue.join(each)
    assert queue.join(late := waiter("standard", "greedy")) is late
    assert [queue.join(waiter("standard", "modest")) for _ in range(4)] == crowd[:3:-1]
    fifth = waiter("standard", "modest")
    assert queue.join(fifth) is fifth, "half of the places is its share"
    again = waiter("standard", "greedy")
    assert queue.join(again) is again, "the two do not push each other out in turn"


async def test_no_queue_at_all_takes_nobody():
    queue = ClassQueue(0, ClassesConfig())
    assert queue.join(one := waiter("interactive")) is one


async def test_other_weights_hold_from_the_reload_on_and_whoever_waits_stays():
    queue = filled(1000, batch=300, standard=300)
    queue.configure(1000, ClassesConfig.model_validate({"batch": {"weight": 4}}))
    assert names(queue, 100) == {"standard": 50, "batch": 50}


async def test_what_is_ahead_counts_the_turns_of_other_classes():
    queue = filled(1000, standard=8, interactive=100, batch=1)
    own, everything = queue.ahead_of(Ticket("standard", "t"))
    assert own == 8
    assert everything == 8 + 32 + 1, "four interactive turns for each of its own, and the one batch call there is"
    assert queue.ahead_of(Ticket("standard", "new")) == (0, 0)
