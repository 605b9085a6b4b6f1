"""Signals from log-probabilities, and what they are worth."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.routing.confidence import (
    CONFIDENCE_FEATURES,
    Confidence,
    SignalCollector,
    confidence_features,
    signals_from_logprobs,
)
from llmrouter.types import TokenSignals

NUMBERS = st.one_of(st.none(), st.floats(), st.integers(), st.booleans(), st.just(-9999.0), st.just(10**400))
ALTERNATIVES = st.one_of(st.none(), st.lists(st.one_of(st.none(), st.builds(lambda p: {"logprob": p}, NUMBERS))))
ENTRIES = st.lists(
    st.one_of(
        st.none(),
        st.text(max_size=3),
        st.builds(lambda p, top: {"token": "x", "logprob": p, "top_logprobs": top}, NUMBERS, ALTERNATIVES),
    )
)


def entry(logprob: Any, *alternatives: float) -> dict[str, Any]:
    told = [{"token": f"t{at}", "logprob": each} for at, each in enumerate(alternatives)]
    return {"token": "t0", "bytes": None, "logprob": logprob, "top_logprobs": told}


def test_signals_are_means_over_the_tokens():
    signals = signals_from_logprobs([entry(each) for each in (-1.0, -2.0, -3.0, -4.0, -5.0, -21.0)])
    assert signals == TokenSignals(tokens=6, mean_logprob=-6.0, min_logprob=-21.0, first_logprob=-3.0)


def test_alternatives_give_margin_and_entropy():
    half = math.log(0.25)
    signals = signals_from_logprobs([entry(half, half, half), entry(-0.1, -0.1, -2.1, -9999.0)])
    assert signals is not None
    assert signals.mean_margin == pytest.approx((0 + 2) / 2)
    certain = 1 / (1 + math.exp(-2))
    apart = -certain * math.log(certain) - (1 - certain) * math.log(1 - certain)
    assert signals.mean_entropy == pytest.approx((math.log(2) + apart) / 2)


@pytest.mark.parametrize("told", [None, [], {}, "x", [None], [{"logprob": None}], [{"logprob": float("nan")}], [{}]])
def test_where_nothing_is_told_there_are_no_signals(told: Any):
    assert signals_from_logprobs(told) is None


@pytest.mark.parametrize("impossible", [float("-inf"), -9999.0, -1e300, -(10**400)])
def test_what_an_engine_calls_impossible_has_a_floor(impossible: float):
    signals = signals_from_logprobs([entry(impossible, impossible)])
    assert signals == TokenSignals(tokens=1, mean_logprob=-100.0, min_logprob=-100.0, first_logprob=-100.0)


@given(ENTRIES)
def test_signals_are_finite_whatever_an_engine_says(entries: list[Any]):
    signals = signals_from_logprobs(entries)
    if signals is not None:
        features = confidence_features(signals)
        assert len(features) == len(CONFIDENCE_FEATURES)
        assert all(math.isfinite(each) for each in features)
        assert signals.min_logprob <= signals.mean_logprob <= 0


@given(ENTRIES, st.integers(0, 9))
def test_a_stream_gives_the_signals_of_the_whole(entries: list[Any], at: int):
    collector = SignalCollector()
    collector.add(entries[:at])
    collector.add(entries[at:])
    assert collector.signals() == signals_from_logprobs(entries)


def test_a_confidence_is_read_back_from_its_table():
    confidence = Confidence(tuple(0.1 * each for each in range(len(CONFIDENCE_FEATURES))), -0.3, rows=120)
    assert Confidence.of(confidence.table()) == confidence


def test_more_certain_signals_have_a_higher_probability():
    confidence = Confidence((2.0, *[0.0] * (len(CONFIDENCE_FEATURES) - 1)), 1.0)
    sure, unsure = TokenSignals(9, -0.1, -0.2, -0.1), TokenSignals(9, -3.0, -9.0, -2.0)
    assert 0 < confidence.probability(unsure) < confidence.probability(sure) < 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"features": ["mean"]}, "not of the features"),
        ({"weights": [1.0]}, "finite weights"),
        ({"weights": [float("nan")] * len(CONFIDENCE_FEATURES)}, "finite weights"),
        ({"intercept": None}, "finite weights"),
        ({"rows": -1}, "`rows`"),
    ],
)
def test_a_table_that_is_not_one_is_refused(change: dict[str, Any], says: str):
    table = Confidence((0.0,) * len(CONFIDENCE_FEATURES), 0.0).table() | change
    with pytest.raises(ValueError, match=says):
        Confidence.of(table)
