"""What is handed to the ledger's thread arrives in order, and wakes it once for all of a turn of the loop."""

from __future__ import annotations

import asyncio
import threading

from hypothesis import given
from hypothesis import strategies as st

from llmrouter.ledger.inbox import Inbox


def never(_: object) -> bool:
    return False


async def test_what_is_put_in_one_turn_of_the_loop_is_taken_together():
    inbox: Inbox[int] = Inbox()
    loop = asyncio.get_running_loop()
    batches: list[list[int]] = []

    def read() -> None:
        while sum(map(len, batches)) < 3 and inbox.wait(5.0):
            batches.append(inbox.take(10, never))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(3):
        inbox.put(number, loop)
    await asyncio.to_thread(reader.join, 5.0)
    assert batches == [[0, 1, 2]]


def test_without_a_loop_the_reader_is_woken_at_once():
    inbox: Inbox[int] = Inbox()
    inbox.put(1)
    assert inbox.wait(0.0)
    assert (inbox.take(10, never), len(inbox)) == ([1], 0)


def test_a_wait_ends_when_its_time_is_over():
    inbox: Inbox[int] = Inbox()
    assert not inbox.wait(0.01)
    inbox.put(1)
    inbox.take(10, never)
    assert not inbox.wait(0.01), "a wake-up for what was taken already is none"


def test_a_loop_that_closed_before_it_rang_holds_up_nobody_else():
    inbox: Inbox[int] = Inbox()
    dead = asyncio.new_event_loop()
    inbox.put(1, dead)
    dead.close()
    assert inbox.wait(0.0)
    assert inbox.take(10, never) == [1]


@given(items=st.lists(st.integers(0, 3)), most=st.integers(1, 4))
def test_items_come_in_order_and_none_of_a_batch_after_an_end(items, most):
    inbox: Inbox[int] = Inbox()
    for item in items:
        inbox.put(item)
    batches = []
    while batch := inbox.take(most, lambda item: item == 0):
        batches.append(batch)
    assert [item for batch in batches for item in batch] == items
    assert all(len(batch) <= most and 0 not in batch[:-1] for batch in batches)
