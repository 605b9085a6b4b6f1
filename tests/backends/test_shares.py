"""Slots by latency class."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.backends.shares import Shares
from llmrouter.config import ClassesConfig

KEPT = ClassesConfig.model_validate({"standard": {"max_share": 0.9}})
"""A tenth of the slots is kept for interactive."""


@pytest.mark.parametrize(
    ("slots", "bounds"),
    [
        (1, (1, 1, 1)),
        (2, (2, 2, 1)),
        (3, (3, 3, 2)),
        (4, (4, 4, 3)),
        (5, (5, 5, 4)),
        (10, (10, 9, 7)),
        (64, (64, 58, 45)),
    ],
)
def test_a_share_is_rounded_to_the_nearest_slot_and_is_one_at_least(slots, bounds):
    shares = Shares(slots, KEPT)
    assert tuple(shares.bound(rank) for rank in range(3)) == bounds


def test_less_urgent_classes_count_against_the_more_urgent_ones_bound():
    """Standard and batch together leave the slots that are kept for interactive."""
    shares = Shares(10, KEPT)
    for _ in range(9):
        shares.start(1)
    assert shares.open_classes() == 1, "batch holds nothing, and still may not take the last slot"
    shares.start(0)
    assert shares.open_classes() == 0
    shares.end(1)
    assert shares.open_classes() == 3


def test_a_class_with_a_larger_share_than_a_more_urgent_one_gets_no_more_than_that():
    shares = Shares(10, ClassesConfig.model_validate({"standard": {"max_share": 0.5}, "batch": {"max_share": 0.9}}))
    assert shares.bound(2) == 5


def test_without_a_bound_every_class_may_start():
    shares = Shares(None, ClassesConfig())
    for rank in (2, 2, 1):
        shares.start(rank)
    assert (shares.open_classes(), shares.bound(2), shares.in_use) == (3, None, 3)


@given(slots=st.integers(1, 30), asks=st.lists(st.integers(0, 2), max_size=80))
def test_no_order_of_starts_takes_what_is_kept_for_more_urgent_classes(slots, asks):
    classes = ClassesConfig()
    shares = Shares(slots, classes)
    held = [0, 0, 0]
    for rank in asks:
        if rank < shares.open_classes():
            shares.start(rank)
            held[rank] += 1
    assert [shares.used_by(rank) for rank in range(3)] == held
    for rank in range(3):
        bound = shares.bound(rank)
        assert bound is not None
        assert sum(held[rank:]) <= bound
