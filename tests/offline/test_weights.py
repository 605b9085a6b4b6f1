"""What each row counts for."""

import numpy as np
import pytest

from llmrouter.errors import UsageError
from llmrouter.offline.weights import parse_weights, row_weights


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
