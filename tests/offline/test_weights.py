"""What each row counts for."""

import numpy as np
import pytest

from llmrouter.errors import UsageError
from llmrouter.offline.weights import one_per_group, parse_weights, row_weights


def test_a_mix_gives_each_source_its_part_and_leaves_the_others_out():
    weights = row_weights(["a", "a", "b", "c"], np.ones(4), {"a": 3, "b": 1})
    assert weights.tolist() == pytest.approx([1.125, 1.125, 0.75, 0.0])


def test_a_row_that_was_rarely_chosen_counts_more():
    assert row_weights(["a", "a"], np.array([0.5, 0.25])).tolist() == pytest.approx([2 / 3, 4 / 3])


def test_within_a_mix_rows_still_count_by_how_they_were_chosen():
    weights = row_weights(["a", "a", "b"], np.array([0.5, 0.25, 1.0]), {"a": 1, "b": 1})
    assert weights[1] == pytest.approx(2 * weights[0])
    assert weights[:2].sum() == pytest.approx(weights[2])


def test_a_source_that_no_row_is_of_is_named_with_those_that_are_there():
    with pytest.raises(UsageError, match=r"names z, but no label is of it; sources here: a, b"):
        row_weights(["a", "b"], np.ones(2), {"a": 1, "z": 1})


def test_weights_are_read_as_given():
    assert parse_weights("a=65, b=0.5,c=x=1") == {"a": 65.0, "b": 0.5, "c=x": 1.0}


@pytest.mark.parametrize("text", ["a", "a=", "a=0", "a=-1", "a=inf", "a=nan", "=1", "a=1,", "a=1,a=2", ""])
def test_weights_that_are_none_are_refused(text):
    with pytest.raises(UsageError, match="--weights"):
        parse_weights(text)


def test_one_row_stands_for_its_group_with_the_weight_of_all():
    rows, weights = one_per_group(["a", "b", "a", "c", "a"], np.array([1.0, 2.0, 3.0, 0.0, 1.0]))
    assert weights[rows == 1].tolist() == [2.0]
    assert [weight for row, weight in zip(rows, weights, strict=True) if row in (0, 2, 4)] == [5.0]
    assert 3 not in rows
    assert rows.tolist() == sorted(rows.tolist())


def test_rows_of_a_group_are_drawn_by_their_weight():
    drawn = [one_per_group(["a", "a"], np.array([1.0, 3.0]), seed)[0][0] for seed in range(400)]
    assert 0.65 < np.mean(drawn) < 0.85


def test_the_mean_over_one_row_a_group_estimates_that_over_all_rows():
    rng = np.random.default_rng(0)
    groups = [f"g{number}" for number in rng.integers(0, 40, 200)]
    weights, losses = rng.uniform(0.5, 2.0, 200), rng.random(200)
    means = []
    for seed in range(300):
        rows, grouped = one_per_group(groups, weights, seed)
        means.append(np.average(losses[rows], weights=grouped))
    assert np.mean(means) == pytest.approx(np.average(losses, weights=weights), abs=0.01)


def test_no_rows_make_no_groups():
    rows, weights = one_per_group([], np.array([]))
    assert (len(rows), len(weights)) == (0, 0)
