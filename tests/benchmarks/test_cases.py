from __future__ import annotations

import pytest

from benchmarks.gateway.cases import FULL, PACE, QUICK, TARGETS, Case, select


def test_the_full_set_takes_less_than_ten_minutes_and_the_quick_one_less_than_a_minute_and_a_half():
    assert FULL.seconds(TARGETS) < 600
    assert QUICK.seconds(TARGETS[:3]) < 90


def test_every_case_of_the_quick_set_is_one_of_the_full_set():
    assert {case.name for case in QUICK.cases} <= {case.name for case in FULL.cases}


def test_a_case_is_either_a_closed_or_an_open_loop():
    assert all((case.connections > 0) != (case.rate > 0) for case in FULL.cases)


def test_a_paced_stream_lasts_until_its_last_token():
    assert PACE.duration_ms == 200 + 399 * 10
    assert Case("any", "any", 1.0, rate=1, stream=True, pace=PACE).drain_s > 2 * PACE.duration_ms / 1000


def test_nothing_named_selects_everything():
    assert select(FULL, []) == FULL


def test_named_cases_are_asked_of_all_targets():
    plan = select(FULL, ["json-16", "paced-60"])
    assert [case.name for case in plan.cases] == ["json-16", "paced-60"]
    assert all(case.asks(target) for case in plan.cases for target in TARGETS)


def test_two_workers_are_asked_for_the_highest_rate_only():
    assert [case.name for case in FULL.cases if case.asks("gateway-2")] == ["paced-120"]


def test_an_unknown_case_is_refused_by_name():
    with pytest.raises(ValueError, match="json-17"):
        select(FULL, ["json-17"])
