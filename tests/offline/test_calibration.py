"""Curves from scores to qualities: right on average, never turning the order of predicted gains round."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrouter.offline.calibration import POINTS, calibrate, fit_curves, reference_of


def drawn(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores of two roles that are half as spread as the truth, and outcomes."""
    rng = np.random.default_rng(seed)
    truth = np.column_stack([rng.uniform(0.1, 0.6, n), rng.uniform(0.6, 0.95, n)])
    return 0.4 + 0.5 * (truth - 0.5), (rng.random((n, 2)) < truth).astype(float)


@pytest.mark.parametrize("n", [200, 5000])
def test_predictions_are_right_on_average_where_scores_are_not(n: int) -> None:
    raw, outcomes = drawn(n)
    quality = calibrate(fit_curves(raw, outcomes, 1), raw, 1)
    np.testing.assert_allclose(quality.mean(axis=0), outcomes.mean(axis=0), atol=0.01)
    assert abs(raw.mean() - outcomes.mean()) > 0.05


@given(st.integers(0, 50), st.sampled_from([12, 300, 5000]))
@settings(max_examples=15)
def test_the_order_of_predicted_gains_stays(seed: int, n: int) -> None:
    raw, outcomes = drawn(n, seed)
    quality = calibrate(fit_curves(raw, outcomes, 1), raw, 1)
    order = np.argsort(raw[:, 1] - raw[:, 0])
    inside = np.all((quality > 0.0) & (quality < 1.0), axis=1)
    gains = (quality[:, 1] - quality[:, 0])[order][inside[order]]
    assert (np.diff(gains) > -1e-12).all()


def test_rows_without_a_label_do_not_count() -> None:
    raw, outcomes = drawn(300)
    holes = outcomes.copy()
    holes[200:, 0] = np.nan
    found = fit_curves(raw, holes, 1)
    np.testing.assert_allclose(found[0], fit_curves(raw[:200], outcomes[:200], 1)[0])
    assert found.shape == (2, POINTS + 2)


def test_equal_scores_and_no_labels_give_curves_all_the_same() -> None:
    raw = np.full((5, 2), 0.3)
    found = fit_curves(raw, np.array([[np.nan, 1.0]] * 5), 1)
    assert np.isfinite(found).all()
    assert calibrate(found, raw, 1)[0, 1] == pytest.approx(1.0, abs=1e-3)


def test_the_best_main_role_is_the_reference() -> None:
    assert reference_of(("small", "large", "peer1")) == 1
    assert reference_of(("frontier", "small", "large")) == 0
