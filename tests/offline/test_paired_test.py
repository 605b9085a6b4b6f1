"""Tests that a mean loss lies below a bound: their errors are as rare as they say, and they find what is there."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrouter.offline.labels import Floats
from llmrouter.offline.paired_test import BettingTest, ExactTest, is_three_valued


def trinomial(rng: np.random.Generator, points: int, n: int, lost: float, won: float) -> Floats:
    drawn = rng.random((points, n))
    return np.where(drawn < lost, 1.0, np.where(drawn < lost + won, -1.0, 0.0))


def chance_to_pass(test: ExactTest, n: int, lost: float, won: float) -> float:
    """By adding up every outcome of n rows."""
    total = 0.0
    for losses in range(n + 1):
        for wins in range(n + 1 - losses):
            if test.passes_counts(np.array([losses]), np.array([wins]))[0]:
                ways = math.comb(n, losses) * math.comb(n - losses, wins)
                total += ways * lost**losses * won**wins * (1 - lost - won) ** (n - losses - wins)
    return total


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 24), st.floats(0.05, 0.4), st.sampled_from([0.05, 0.1, 0.2]), st.floats(0, 1), st.floats(0, 1))
def test_the_exact_test_errs_no_more_than_it_may_on_any_distribution(n, eps, delta, won, more):
    """Every distribution whose mean loss is `eps` or more, by enumeration."""
    winning = won * (1 - eps) / 2
    losing = winning + eps + more * (1 - 2 * winning - eps)
    assert chance_to_pass(ExactTest(n, eps, delta), n, losing, winning) <= delta + 1e-3


@pytest.mark.parametrize("won", [0.0, 0.003, 0.03, 0.2])
def test_the_exact_test_errs_no_more_than_it_may_with_many_rows(won):
    test = ExactTest(800, 0.02, 0.05)
    losses = trinomial(np.random.default_rng(0), 4000, 800, won + 0.02, won)
    assert test.passes(losses).mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 4000)


def test_the_exact_test_is_about_as_sharp_as_a_normal_approximation():
    assert 1.64 < ExactTest(1000, 0.02, 0.05).deviations < 1.70


@pytest.mark.parametrize("n", [50, 149, 600])
def test_without_any_loss_the_exact_test_needs_the_rows_of_the_rule_of_three(n):
    """A loss of 2 points could hide in rows that were not seen: (1 - 0.02) ** 149 is just below 0.05."""
    assert ExactTest(n, 0.02, 0.05).passes(np.zeros((1, n)))[0] == (n >= 149)


def test_the_p_value_is_the_smallest_delta_that_passes():
    losses = trinomial(np.random.default_rng(1), 1, 400, 0.03, 0.04)[0]
    value = ExactTest(400, 0.05, 0.05).p_value(losses)
    assert 0 < value < 0.05
    assert ExactTest(400, 0.05, value * 1.01).passes(losses[None])[0]
    assert not ExactTest(400, 0.05, value * 0.99).passes(losses[None])[0]


@pytest.mark.parametrize(("lost", "won"), [(0.02, 0.0), (0.12, 0.10), (0.51, 0.49)])
def test_bets_err_no_more_than_they_may(lost, won):
    losses = trinomial(np.random.default_rng(2), 1500, 400, lost, won)
    passed = [BettingTest(0.02, 0.05).passes(each[None])[0] for each in losses]
    assert np.mean(passed) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1500)


def test_weighted_bets_err_no_more_than_they_may():
    """Rows that lose are five times rarer than in the mix: unweighted they look harmless."""
    rng = np.random.default_rng(3)
    wrong_without, wrong_with = 0, 0
    for _ in range(600):
        heavy = rng.random(500) < 0.1
        losses = np.where(rng.random(500) < np.where(heavy, 0.1, 0.0), 1.0, 0.0)
        weights = np.where(heavy, 5.0, 5.0 / 9.0)
        wrong_without += int(BettingTest(0.05, 0.05).passes(losses[None])[0])
        wrong_with += int(BettingTest(0.05, 0.05, weights).passes(losses[None])[0])
    assert wrong_with / 600 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)
    assert wrong_without > 300


def test_bets_find_a_small_loss():
    losses = trinomial(np.random.default_rng(4), 1, 2000, 0.06, 0.06)
    test = BettingTest(0.03, 0.05)
    assert test.passes(losses)[0]
    assert test.p_value(losses[0]) <= 0.05


def test_bets_take_fractional_losses():
    losses = np.random.default_rng(5).uniform(-0.2, 0.2, (1, 1500))
    assert not is_three_valued(losses)
    assert BettingTest(0.02, 0.05).passes(losses)[0]


def test_bets_stop_at_the_first_point_that_fails():
    losses = np.zeros((50, 400))
    losses[20] = 1.0
    passed = BettingTest(0.02, 0.05).passes(losses)
    assert passed[:20].all()
    assert not passed[20]
    assert not passed[32:].any()


def test_no_row_makes_no_test():
    with pytest.raises(ValueError, match="at least one row"):
        ExactTest(0, 0.02, 0.05)


def test_a_missing_extra_is_named():
    program = (
        "import sys; sys.modules['scipy'] = None\n"
        "from llmrouter.offline.paired_test import ExactTest\n"
        "from llmrouter.errors import UsageError\n"
        "try: ExactTest(10, 0.1, 0.05)\n"
        "except UsageError as error: print(error.message)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "llmrouter[train]" in done.stdout
