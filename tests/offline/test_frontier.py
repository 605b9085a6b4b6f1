"""Cost and quality of policies against the reference."""

import numpy as np
import pytest

from llmrouter.offline.bootstrap import Bootstrap
from llmrouter.offline.frontier import points_of, routed, sweep
from llmrouter.offline.labels import Floats

COST = {"small": 1.0, "large": 10.0, "frontier": 100.0}


def actual_of(n: int = 400) -> dict[str, Floats]:
    rng = np.random.default_rng(0)
    return {role: (rng.random(n) < rate).astype(float) for role, rate in zip(COST, (0.5, 0.7, 0.85), strict=True)}


def test_costs_and_scores_of_direct_routes_are_added_up():
    actual = {"small": np.array([1.0, 0.0]), "large": np.array([1.0, 1.0])}
    policies = routed(("small", "large"), np.array([[0, 0], [0, 1], [1, 1]]), actual, COST)
    points = points_of(policies, actual["large"], 10.0)
    assert [point.cost for point in points] == [1.0, 5.5, 10.0]
    assert [point.quality_delta for point in points] == [-50.0, 0.0, 0.0]
    assert [point.cost_saving for point in points] == pytest.approx([0.9, 0.45, 0.0])
    assert points[1].shares == {"small": 0.5, "large": 0.5}


def test_a_sweep_goes_from_the_best_to_the_cheapest():
    actual = actual_of()
    points = points_of(sweep(actual, actual, COST), actual["frontier"], 100.0)
    costs = [point.cost for point in points]
    assert costs == sorted(costs, reverse=True)
    assert points[-1].shares["small"] == 1.0
    assert points[0].quality == max(point.quality for point in points)


def test_roles_of_one_cost_are_chosen_by_quality_alone():
    actual = actual_of()
    assert points_of(sweep(actual, actual, dict.fromkeys(COST, 1.0)), actual["frontier"], 1.0)[0].cost_saving == 0.0


def test_weights_and_a_slice_change_what_is_averaged():
    actual = {"small": np.array([1.0, 0.0, 0.0]), "large": np.ones(3)}
    policies = routed(("small", "large"), np.array([[0, 0, 1]]), actual, COST)
    weighted = points_of(policies, actual["large"], 10.0, weights=np.array([3.0, 1.0, 0.0]))[0]
    assert weighted.quality_delta == -25.0
    sliced = points_of(policies, actual["large"], 10.0, rows=np.array([False, True, True]))[0]
    assert (sliced.quality_delta, sliced.cost) == (-50.0, 5.5)


def test_intervals_hold_the_figures():
    actual = actual_of()
    bootstrap = Bootstrap([str(index) for index in range(400)], ["s"] * 400, replicates=200)
    point = points_of(sweep(actual, actual, COST), actual["frontier"], 100.0, bootstrap=bootstrap)[30]
    assert point.cost_saving_ci is not None
    assert point.cost_saving_ci.low <= point.cost_saving <= point.cost_saving_ci.high
    assert point.quality_delta_ci is not None
    assert point.quality_delta_ci.low <= point.quality_delta <= point.quality_delta_ci.high
