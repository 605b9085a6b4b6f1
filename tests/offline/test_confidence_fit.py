"""A confidence is learned from answers whose score is known."""

import math
import random

import pytest

from llmrouter.errors import UsageError
from llmrouter.offline.confidence_fit import LEAST_ROWS, fit_confidence, read_signals
from llmrouter.types import TokenSignals

pytest.importorskip("sklearn")


def rows(count: int, seed: int = 0) -> tuple[list[TokenSignals], list[float], list[float]]:
    """Signals, scores and the true probabilities of a model that is right more often where it is sure."""
    draw = random.Random(seed)
    signals, scores, truth = [], [], []
    for _ in range(count):
        mean = -draw.expovariate(1.5)
        probability = 1 / (1 + math.exp(-(2.0 + 3.0 * mean)))
        margin = max(0.0, 4.0 + 2.0 * mean + draw.gauss(0, 1))
        signals.append(TokenSignals(draw.randrange(1, 60), mean, 3 * mean, mean + draw.gauss(0, 0.1), margin, -mean))
        scores.append(float(draw.random() < probability))
        truth.append(probability)
    return signals, scores, truth


def test_the_fitted_probability_is_near_the_true_one():
    signals, scores, _ = rows(3000)
    confidence = fit_confidence(signals, scores)
    fresh, _, truth = rows(1000, seed=1)
    gaps = [abs(confidence.probability(each) - expected) for each, expected in zip(fresh, truth, strict=True)]
    assert sum(gaps) / len(gaps) < 0.03
    assert confidence.rows == 3000


def test_the_same_rows_give_the_same_weights():
    signals, scores, _ = rows(200)
    assert fit_confidence(signals, scores) == fit_confidence(signals, scores)


def test_a_constant_feature_gets_no_weight():
    signals = [TokenSignals(9, each, each, each) for each in (-0.1 * (k % 17) for k in range(100))]
    confidence = fit_confidence(signals, [float(each.mean_logprob > -0.8) for each in signals])
    assert confidence.weights[4:] == (0.0, 0.0, 0.0, 0.0)


def test_half_a_score_is_half_right_and_half_wrong():
    signals, _, _ = rows(200)
    confidence = fit_confidence([*signals, *signals], [0.5] * 400)
    assert confidence.probability(signals[0]) == pytest.approx(0.5, abs=1e-6)


def test_weights_count_as_repeated_rows():
    signals, scores, _ = rows(100)
    twice = fit_confidence([*signals, *signals[:50]], [*scores, *scores[:50]])
    weighted = fit_confidence(signals, scores, weights=[2.0] * 50 + [1.0] * 50)
    at = signals[0]
    assert weighted.probability(at) == pytest.approx(twice.probability(at), abs=0.02)


@pytest.mark.parametrize(
    ("scores", "says"),
    [([1.0, 0.0], "too few"), ([1.0] * LEAST_ROWS, "same score"), ([2.0] * LEAST_ROWS, "from 0 to 1")],
)
def test_labels_that_teach_nothing_are_refused(scores: list[float], says: str):
    with pytest.raises(UsageError, match=says):
        fit_confidence([TokenSignals(1, -1.0, -1.0, -1.0)] * len(scores), scores)


def test_signals_are_read_off_a_label_row():
    row = {"tokens": 3, "mean_logprob": -0.5, "min_logprob": -1, "first_logprob": -0.5, "mean_margin": None}
    assert read_signals(row) == TokenSignals(3, -0.5, -1, -0.5)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (None, "must be an object"),
        ({"tokens": 3}, r"`signals\.mean_logprob` must be a number"),
        ({"tokens": "3"}, r"`signals\.tokens` must be a number"),
        ({"entropy": 3}, "unknown field 'entropy'"),
    ],
)
def test_a_row_without_them_is_refused(row: object, says: str):
    with pytest.raises(UsageError, match=says):
        read_signals(row)
