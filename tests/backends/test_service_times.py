"""What is learnt of how long calls take."""

from __future__ import annotations

import pytest

from llmrouter.backends.service_times import Mean, ServiceTimes


def test_a_few_values_are_not_worth_a_word():
    mean = Mean()
    for _ in range(7):
        mean.add(2.0)
        assert mean.known is None
    mean.add(10.0)
    assert mean.known == pytest.approx(3.0)


def test_a_mean_follows_a_change_within_some_ten_dozen_values():
    mean = Mean()
    for _ in range(1000):
        mean.add(10.0)
    for _ in range(120):
        mean.add(1.0)
    assert mean.known == pytest.approx(1.0, abs=0.3)


def test_classes_are_told_apart_and_all_together_are_the_mean_of_the_calls():
    times = ServiceTimes()
    for _ in range(8):
        times.note(0, 1.0, 0.1)
        times.note(2, 9.0, None)
    assert [times.hold_s(rank) for rank in (0, 1, 2, None)] == [1.0, None, 9.0, 5.0]
    assert [times.first_output_s(rank) for rank in (0, 2)] == [0.1, None]
