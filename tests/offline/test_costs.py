"""Costs by role, as they are given on the command line."""

import pytest

from llmrouter.errors import UsageError
from llmrouter.offline.costs import parse_costs


def test_costs_are_read_as_given():
    assert parse_costs("small=1, large=10,frontier=1e2,peer2=0.5") == {
        "small": 1.0,
        "large": 10.0,
        "frontier": 100.0,
        "peer2": 0.5,
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "small",
        "small=",
        "small=0",
        "small=-1",
        "small=nan",
        "small=1e-300",
        "small=1e308",
        "big=1",
        "peer=1",
        "peer0=1",
        "small=1,small=2",
    ],
)
def test_costs_that_are_none_are_refused(text):
    with pytest.raises(UsageError, match="--costs"):
        parse_costs(text)
