"""A predictor and a policy run over labels row by row."""

from collections.abc import Sequence

import numpy as np
import pytest

from llmrouter.offline.prediction import direct_routes, predict_all
from llmrouter.routing.ask import Ask
from llmrouter.routing.evidence import Evidence, Move, Offers, Prediction
from tests.offline.label_rows import labels_of


class ByLength:
    """Predicts from the length of the ask alone."""

    def predict(self, ask: Ask) -> Prediction:
        return Prediction({"small": 1.0 / len(ask.text), "large": 0.9}, novelty=0.1 * len(ask.text))


class Cheapest:
    """Takes the first offered role that is predicted above one half."""

    def first(self, prediction: Prediction, offers: Offers) -> Move:
        assert not offers.checks
        good = [role for role in ("small", "large", "frontier") if role in offers.roles]
        return Move("route", next((role for role in good if prediction.quality.get(role, 1.0) > 0.5), good[-1]))

    def following(self, prediction: Prediction, offers: Offers, evidence: Sequence[Evidence]) -> Move:
        raise AssertionError("no check was offered")


def test_every_row_is_predicted_and_timed():
    ticks = iter([0.0, 1e-6, 1.0, 1.0 + 3e-6, 2.0, 2.0 + 8e-6])
    told: list[tuple[int, int]] = []
    found = predict_all(
        ByLength(), [Ask("x"), Ask("xx"), Ask("xxxx")], lambda: next(ticks), lambda done, of: told.append((done, of))
    )
    assert found.quality["small"].tolist() == [1.0, 0.5, 0.25]
    assert found.novelty.tolist() == pytest.approx([0.1, 0.2, 0.4])
    assert found.decision_us == pytest.approx(3.0, rel=1e-3)
    assert told == [(3, 3)]


def test_no_row_has_no_prediction():
    found = predict_all(ByLength(), [], lambda: 0.0)
    assert (found.quality, found.decision_us, len(found.novelty)) == ({}, 0.0, 0)


def test_a_policy_is_offered_the_models_of_the_row_and_no_check():
    quality: dict[str, list[float]] = {"small": [1, np.nan, 1], "large": [np.nan, 1, 1], "frontier": [1, 1, 1]}
    labels = labels_of(quality, asks=["xxx", "x", "x"])
    found = direct_routes(
        "policy", Cheapest(), predict_all(ByLength(), labels.asks, lambda: 0.0), labels, list(quality)
    )
    assert [found.roles[position] for position in found.choice] == ["frontier", "large", "small"]
