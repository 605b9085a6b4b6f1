from __future__ import annotations

import pytest

from benchmarks.gateway.figures import Figure, rows
from benchmarks.gateway.goals import GOALS, Goal, Verdict, verdicts

CPU = Goal("cpu", "json-16.cpu", "gateway", 0.42, nginx=0.045)
HELD = Goal("held", "paced-60.held", "gateway", 1.0, at_least=True)


def verdict(goal: Goal, **by: tuple[float, ...]) -> Verdict:
    (found,) = verdicts({goal.row: {name: Figure(values) for name, values in by.items()}}, [goal])
    return found


def test_a_cpu_limit_is_scaled_by_nginx_of_the_same_run():
    found = verdict(CPU, nginx=(0.09,), gateway=(0.8,))
    assert found.limit == pytest.approx(0.84)
    assert found.met
    assert not verdict(CPU, nginx=(0.045,), gateway=(0.8,)).met


def test_without_nginx_there_is_no_verdict_on_a_scaled_limit():
    assert verdicts({CPU.row: {"gateway": Figure((0.1,))}}, [CPU]) == []


def test_a_limit_of_time_is_taken_as_it_is():
    goal = Goal("ttft", "paced-20.ttft_p50", "gateway", 2.0)
    assert verdict(goal, gateway=(2.0,)).met
    assert not verdict(goal, gateway=(2.1,), nginx=(9.0,)).met


def test_a_rate_must_be_held_in_every_round():
    assert verdict(HELD, gateway=(1.0, 1.0)).met
    assert not verdict(HELD, gateway=(1.0, 1.0, 0.0)).met


def test_every_goal_is_about_a_row_of_the_table():
    assert {goal.row for goal in GOALS} <= {row.key for row in rows()}
