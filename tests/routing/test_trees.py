"""Trees as flat arrays give what walking down each tree gives."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.routing.trees import MOST_DEPTH, Trees


def walked(features: np.ndarray, bounds: np.ndarray, values: np.ndarray, numbers: np.ndarray) -> float:
    total = 0.0
    for tree in range(len(values)):
        node = 0
        while node < features.shape[1]:
            node = 2 * node + 1 + int(numbers[features[tree, node]] > bounds[tree, node])
        total += values[tree, node - features.shape[1]]
    return total


@given(st.integers(0, 10_000), st.integers(1, MOST_DEPTH), st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_all_trees_of_all_heads_are_walked_at_once(seed: int, depth: int, heads: list[int]) -> None:
    rng = np.random.default_rng(seed)
    trees, nodes = sum(heads), (1 << depth) - 1
    features = rng.integers(0, 6, (trees, nodes)).astype(np.int16)
    bounds, values = rng.normal(size=(trees, nodes)), rng.normal(size=(trees, nodes + 1))
    numbers = rng.normal(size=6)
    found = Trees.of(features, bounds, values, np.array(heads)).scores(numbers)
    ends = np.cumsum([0, *heads])
    expected = [walked(features[a:b], bounds[a:b], values[a:b], numbers) for a, b in pairwise(ends)]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_number_equal_to_the_bound_goes_left() -> None:
    trees = Trees.of(np.zeros((1, 1)), np.array([[0.5]]), np.array([[1.0, 2.0]]), np.array([1]))
    assert trees.scores(np.array([0.5])).tolist() == [1.0]
    assert trees.scores(np.array([0.5 + 1e-9])).tolist() == [2.0]


@pytest.mark.parametrize(
    ("features", "bounds", "values", "heads"),
    [
        (np.zeros((1, 2)), np.zeros((1, 2)), np.zeros((1, 2)), [1]),
        (np.zeros((1, 1)), np.zeros((2, 1)), np.zeros((1, 2)), [1]),
        (np.zeros((1, 1)), np.zeros((1, 1)), np.zeros((1, 2)), [2]),
        (np.zeros((1, 1)), np.zeros((1, 1)), np.zeros((1, 2)), [1, 0]),
        (np.zeros((1, 2)), np.zeros((1, 2)), np.zeros((1, 3)), [1]),
        (np.zeros((1, 15)), np.zeros((1, 15)), np.zeros((1, 16)), [1]),
    ],
)
def test_arrays_that_are_no_complete_trees_are_refused(features, bounds, values, heads) -> None:
    with pytest.raises(ValueError):
        Trees.of(features, bounds, values, np.array(heads))
