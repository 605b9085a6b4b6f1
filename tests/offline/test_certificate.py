"""Certificates hold as often as they say, and say what they would need."""

import math

import numpy as np
import pytest

from llmrouter.offline.certificate import broken_promise_estimate, certify, naive
from llmrouter.offline.labels import Floats

STEPS = 26


def rows_of(n: int, seed: int = 0) -> Floats:
    """Losses of policies that send more and more rows to a weak model, the harmless ones first."""
    rng = np.random.default_rng(seed)
    harm = rng.random(n)
    drawn = rng.random(n)
    loss = np.where(drawn < 0.02 + 0.16 * harm, 1.0, np.where(drawn > 0.94, -1.0, 0.0))
    routed = harm[None] <= np.linspace(0, 1, STEPS)[:, None]
    routed[0] = False
    return np.where(routed, loss, 0.0)


MANY = rows_of(20_000, 99)
SAVINGS = np.linspace(0, 1, STEPS)


@pytest.mark.parametrize("method", ["exact", "betting"])
def test_promises_are_broken_as_seldom_as_promised(method):
    """Twice as many draws as the confidence needs to tell 5 % from 10 %; a naive choice breaks about every second."""
    found = broken_promise_estimate(MANY, 0.02, 0.05, n=600, draws=400, method=method, savings=SAVINGS)
    assert found.broken <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 400)
    assert found.naive_broken > 0.3
    assert 0 < found.saving < found.naive_saving


def test_the_exact_test_keeps_more_of_the_saving_than_bets():
    kept = [
        broken_promise_estimate(MANY, 0.02, 0.05, n=1000, draws=60, method=method, savings=SAVINGS).saving
        for method in ("exact", "betting")
    ]
    assert kept[0] > 1.1 * kept[1]


@pytest.mark.parametrize("method", ["auto", "betting"])
def test_weighted_promises_are_kept_for_the_mix_they_are_weighted_to(method):
    """Rows that lose count four times: what looks harmless unweighted must not be certified."""
    weights = np.where(MANY[-1] == 1.0, 4.0, 1.0) * np.random.default_rng(1).uniform(0.5, 1.0, MANY.shape[1])
    truth = np.average(MANY, axis=1, weights=weights)
    broken = 0
    rng = np.random.default_rng(2)
    for draw in range(150):
        rows = rng.choice(MANY.shape[1], 600, replace=False)
        found = certify(MANY[:, rows], 0.05, 0.05, weights=weights[rows], method=method, seed=draw)
        broken += int(truth[found.index] > 0.05)
    assert broken / 150 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 150)


def test_the_way_of_weighting_follows_from_weights_and_scores_alone():
    losses = rows_of(900)
    even = np.random.default_rng(3).uniform(0.6, 1.0, 900)
    steep = np.where(np.arange(900) < 2, 10.0, 1.0)
    assert certify(losses, 0.02, 0.05, weights=even).method == "exact"
    assert certify(losses, 0.02, 0.05, weights=even).used < 900
    assert certify(losses, 0.02, 0.05, weights=steep).method == "betting"
    assert certify(losses / 2, 0.02, 0.05).method == "betting"
    assert certify(losses, 0.02, 0.05, weights=np.full(900, 7.0)).used == 900


def test_the_sequence_ends_at_the_first_policy_that_is_not_shown():
    """A bad policy in the middle stops it, although those behind it are as harmless as those before."""
    losses = np.zeros((6, 500))
    losses[3, :100] = 1.0
    found = certify(losses, 0.02, 0.05)
    assert (found.index, found.naive_index) == (2, 5)
    assert "number 3, loses 20.00 points" in found.reason


def test_too_few_labels_certify_the_reference_alone_and_say_how_many_would_do():
    found = certify(rows_of(100), 0.02, 0.05, savings=SAVINGS)
    assert (found.index, found.p_value, found.loss) == (0, 0.0, 0.0)
    assert found.labels_needed is not None
    assert found.labels_needed > 149
    assert "too near" in found.reason


@pytest.mark.parametrize("method", ["exact", "betting"])
def test_so_many_labels_as_are_asked_for_usually_do(method):
    population = rows_of(250, seed=5)
    few = certify(population, 0.02, 0.05, savings=SAVINGS, method=method)
    assert few.labels_needed
    goal = SAVINGS[few.naive_index] / 2
    assert SAVINGS[few.index] < goal
    rng = np.random.default_rng(6)
    reached = 0
    for _ in range(24):
        rows = rng.choice(250, few.labels_needed)
        reached += int(SAVINGS[certify(population[:, rows], 0.02, 0.05, method=method).index] >= goal)
    assert 0.5 < reached / 24 <= 1.0


def test_when_no_policy_saves_within_the_promise_more_labels_are_not_asked_for():
    losses = np.zeros((3, 400))
    losses[1:, ::4] = 1.0
    found = certify(losses, 0.02, 0.05)
    assert (found.index, found.naive_index, found.labels_needed) == (0, 0, None)
    assert "no policy is seen to lose less than 2" in found.reason


def test_a_sequence_that_is_all_good_is_certified_to_its_end():
    found = certify(np.zeros((4, 300)), 0.02, 0.05)
    assert (found.index, found.labels_needed) == (3, 0)
    assert found.reason == "every policy of the sequence keeps the promise"


def test_a_slice_that_suffers_stops_what_the_whole_would_allow():
    losses = np.zeros((4, 2000))
    losses[2:, :200:8] = 1.0
    slices = ["math"] * 200 + ["chat"] * 1800
    assert certify(losses, 0.03, 0.05).index == 3
    found = certify(losses, 0.03, 0.05, slices=slices)
    assert found.index == 1
    assert [(each.name, each.n) for each in found.slices] == [("chat", 1800), ("math", 200)]
    assert found.p_value == max(each.p_value for each in found.slices)
    assert found.labels_needed is None


def test_small_slices_make_more_labels_needed():
    losses = rows_of(1500)
    slices = ["rare" if row % 15 == 0 else "usual" for row in range(1500)]
    alone = certify(losses, 0.03, 0.05, savings=SAVINGS)
    sliced = certify(losses, 0.03, 0.05, savings=SAVINGS, slices=slices)
    assert sliced.index < alone.index
    assert sliced.labels_needed is None or sliced.labels_needed > 1500


def test_one_row_certifies_nothing():
    found = certify(np.zeros((3, 1)), 0.02, 0.05)
    assert found.index == 0
    assert found.labels_needed == 149


def test_naive_takes_the_largest_saving_whose_observed_loss_is_allowed():
    losses = np.array([[0.0] * 4, [1.0, 0, 0, 0], [0.0] * 4])
    assert naive(losses, 0.1) == 2
    assert naive(losses, 0.3, savings=np.array([0.0, 0.9, 0.5])) == 1
    assert naive(losses, 0.3, weights=np.array([9.0, 1, 1, 1]), savings=np.array([0.0, 0.9, 0.5])) == 2


@pytest.mark.parametrize(
    ("losses", "eps", "says"),
    [
        (np.zeros((2, 0)), 0.02, "need policies and rows"),
        (np.full((2, 3), 2.0), 0.02, "between -1 and 1"),
        (np.full((2, 3), np.nan), 0.02, "between -1 and 1"),
        (np.ones((2, 3)), 0.02, "not the reference"),
        (np.zeros((2, 3)), 0.0, "promise must lie"),
    ],
)
def test_losses_that_make_no_sense_are_refused(losses, eps, says):
    with pytest.raises(ValueError, match=says):
        certify(losses, eps, 0.05)


def test_an_exact_test_of_fractions_is_refused():
    with pytest.raises(ValueError, match="needs losses of -1, 0 and 1"):
        certify(rows_of(50) / 3, 0.02, 0.05, method="exact")


def test_rows_that_count_nothing_are_refused():
    with pytest.raises(ValueError, match="no row counts"):
        certify(rows_of(50), 0.02, 0.05, weights=np.zeros(50))


def test_an_estimate_is_the_same_at_every_run_and_tells_how_far_it_is():
    told: list[tuple[int, int]] = []
    first = broken_promise_estimate(
        MANY, 0.02, 0.05, n=300, draws=20, progress=lambda done, of: told.append((done, of))
    )
    assert first == broken_promise_estimate(MANY, 0.02, 0.05, n=300, draws=20)
    assert told[-1] == (20, 20)


def test_an_estimate_cannot_draw_more_rows_than_there_are_without_repeating_any():
    with pytest.raises(ValueError, match="cannot be drawn"):
        broken_promise_estimate(rows_of(50), 0.02, 0.05, n=60, replace=False)


def test_a_loss_that_is_as_high_as_promised_is_shown_by_no_number_of_labels():
    losses = np.zeros((2, 200))
    losses[1, :2] = 1.0
    found = certify(losses, 0.01, 0.05)
    assert (found.index, found.naive_index, found.labels_needed) == (0, 1, None)
