from __future__ import annotations

import pytest

from benchmarks.gateway.cases import PACE, Case
from benchmarks.gateway.figures import Figure, Figures, figures, is_held, rows
from benchmarks.gateway.measure import Idle, Measured
from benchmarks.gateway.targets import Start
from tests.benchmarks.measurements import client, measured, times

PACED = Case("paced-20", "", 1.0, rate=20, stream=True, pace=PACE)


def table(*of: Measured) -> Figures:
    return figures(of, [], {})


def test_cpu_is_stated_for_a_thousand_good_answers():
    few = client(issued=250, good=250)
    assert table(measured(client=few, cpu_s=0.5))["json-16.cpu"]["gateway"] == Figure((2.0,))


def test_rounds_make_a_median_with_its_spread():
    found = table(*(measured(round=n, cpu_s=s) for n, s in enumerate((0.9, 0.1, 0.2))))["json-16.cpu"]["gateway"]
    assert (found.least, found.median, found.most) == (0.1, 0.2, 0.9)


def test_the_share_of_the_first_process_is_stated_apart():
    found = table(measured(), measured(target="floor", root_cpu_s=0.5))["json-16.root"]
    assert found == {"gateway": Figure((0.01,))}


def test_added_time_is_what_comes_on_top_of_the_instruments_median():
    direct = measured("json-1", "direct", client=client(answer_ms={**times(0.04), "p99": 9.0}))
    through = measured("json-1", "gateway", client=client(answer_ms={**times(1.04), "p99": 3.04}))
    found = table(direct, through)
    assert found["json-1.added_p50"]["gateway"].median == pytest.approx(1.0)
    assert "direct" not in found["json-1.added_p50"]
    assert found["json-1.added_p99"]["gateway"].median == pytest.approx(3.0)


def test_without_the_direct_case_nothing_is_said_of_added_time():
    assert "json-1.added_p50" not in table(measured("json-1"))


def test_added_ttft_is_what_comes_on_top_of_the_engines():
    found = table(measured("paced-20", client=client(ttft_ms=times(203.5))))
    assert found["paced-20.ttft_p99"]["gateway"] == Figure((3.5,))


def test_a_target_that_answered_nothing_has_no_cost_but_failed_streams():
    found = table(measured("paced-20", client=client(good=0, ttft_ms=None, answer_ms=None, delay_ms=None, gap_ms=None)))
    assert found["paced-20.failed"]["gateway"] == Figure((1000.0,))
    assert found["paced-20.held"]["gateway"] == Figure((0.0,))
    assert "paced-20.cpu" not in found


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({}, True),
        ({"ttft_ms": times(349.9)}, True),
        ({"ttft_ms": times(350.0)}, False),
        ({"answer_ms": times(4608.9)}, True),
        ({"answer_ms": times(4609.0)}, False),
        ({"good": 999}, False),
    ],
)
def test_held_means_all_finished_begun_in_time_and_hardly_longer_than_they_should(changes, held):
    assert is_held(PACED, client(**{"ttft_ms": times(201), "answer_ms": times(4190), **changes})) is held


def test_idling_and_starting_have_rows():
    found = figures([], [Idle("gateway", 2.5, 120.0)], {"gateway": [Start(1.0, 0.5), Start(2.0, 0.7)]})
    assert found["idle.cpu"]["gateway"].median == 2.5
    assert found["start.wall"]["gateway"].median == 1.5


def test_every_figure_has_a_row_in_the_table():
    one = measured("paced-60", client=client(ttft_ms=times(200), answer_ms=times(4190)))
    found = figures(
        [one, measured("open-900", resident_mb=99.0), measured("stream-16"), measured("json-1")],
        [Idle("gateway", 1.0, 1.0)],
        {"gateway": [Start(1.0, 1.0)]},
    )
    keys = [row.key for row in rows()]
    assert set(found) <= set(keys)
    assert len(set(keys)) == len(keys)
