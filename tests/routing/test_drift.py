"""Drift is told when it is there, and hardly ever when it is not."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.routing.drift import DriftCounter, DriftReference, DriftState, DriftTest, statistics_of
from llmrouter.routing.evidence import Move, Prediction

CALIBRATION = np.random.default_rng(0).beta(4, 2, 5000)
STATISTICS = statistics_of(
    {"small": CALIBRATION, "large": CALIBRATION**0.5}, {"small": 0.6, "cascade": 0.3, "large": 0.1}
)


def reference() -> DriftReference:
    found = DriftReference.of(json.loads(json.dumps(STATISTICS)))
    assert found is not None
    return found


def counts_of(rng: np.random.Generator, n: int, small: float = 0.6, shift: float = 0.0) -> tuple[int, ...]:
    """So many decisions with scores like the calibration's, or shifted; counted by a worker."""
    counter = DriftCounter(reference())
    others = (1 - small) / 4
    routes = rng.choice(["small", "cascade", "large"], n, p=[small, 3 * others, others])
    for score, route in zip(np.clip(rng.beta(4, 2, n) - shift, 0, 1).tolist(), routes, strict=True):
        move = Move("check", "small", "agreement") if route == "cascade" else Move("route", route)
        counter.observe(Prediction({"small": score, "large": score**0.5}), move)
    return counter.counts()


def test_the_same_traffic_stays_steady_over_many_windows():
    test, state = DriftTest(reference()), DriftState()
    rng, totals = np.random.default_rng(1), np.zeros(reference().cells, dtype=int)
    for _ in range(30):
        totals += counts_of(rng, 500)
        state, verdict = test.advance(state, tuple(totals.tolist()))
        assert not verdict.drifted
    assert state.window == 4
    assert verdict.what == ""
    assert max(verdict.psi.values()) < 0.1


def test_traffic_at_the_very_edge_of_the_tolerance_is_rarely_called_drifted():
    """The worst case that still counts as the same, looked at after every 50 requests of 1,500, 400 times."""
    given = DriftReference.of({"rows": 10**9, "scores": {}, "routes": {"small": 0.5, "large": 0.5}})
    assert given is not None
    test = DriftTest(given, tolerance=0.05, alpha=0.2, least=50)
    rng = np.random.default_rng(2)
    alarms = 0
    for _ in range(400):
        small = np.cumsum(rng.random(1500) < 0.55)
        alarms += any(test.judge((int(small[n - 1]), int(n - small[n - 1]), 0)).drifted for n in range(50, 1501, 50))
    assert alarms / 400 <= 0.1 + 3 * (0.1 * 0.9 / 400) ** 0.5


def test_a_shift_of_scores_is_told_with_what_and_where():
    verdict = DriftTest(reference()).judge(counts_of(np.random.default_rng(3), 1000, shift=0.2))
    assert verdict.drifted
    assert verdict.what.startswith("predicted score of ")
    assert "of requests, 10% expected" in verdict.what
    assert verdict.psi["small"] > 0.25
    assert verdict.evidence >= verdict.needed


def test_a_change_of_routes_alone_is_told():
    verdict = DriftTest(reference()).judge(counts_of(np.random.default_rng(4), 1000, small=0.3))
    assert verdict.drifted
    assert "routed to" in verdict.what


def test_a_route_that_calibration_never_took_is_told():
    counter = DriftCounter(reference())
    for _ in range(500):
        counter.observe(Prediction({}), Move("route", "frontier"))
    verdict = DriftTest(reference()).judge(counter.counts())
    assert verdict.what == "routed to another role: 100% of requests, 0% expected"


def test_a_change_after_a_long_quiet_time_is_found_within_two_windows():
    test, state = DriftTest(reference()), DriftState(window=500)
    rng, totals = np.random.default_rng(5), np.array(counts_of(np.random.default_rng(6), 3000))
    state, verdict = test.advance(state, tuple(totals.tolist()))
    assert not verdict.drifted
    for _ in range(16):
        totals += counts_of(rng, 500, shift=0.2)
        state, verdict = test.advance(state, tuple(totals.tolist()))
        if verdict.drifted:
            break
    assert verdict.drifted


def test_a_verdict_stays_until_the_artefact_is_replaced():
    test = DriftTest(reference())
    state, _ = test.advance(DriftState(), counts_of(np.random.default_rng(7), 1000, shift=0.3))
    assert state.drifted
    state, verdict = test.advance(
        DriftState.from_json(json.loads(json.dumps(state.as_json()))), state.begun or (0,) * 24
    )
    assert verdict.drifted
    assert verdict.what == state.drifted


def test_few_requests_are_not_judged():
    assert not DriftTest(reference()).judge(counts_of(np.random.default_rng(8), 150, shift=0.6)).drifted


def test_counts_that_fell_begin_the_window_anew():
    """A worker that had counted a whole window is gone; what is left must not look like a change."""
    test = DriftTest(reference())
    state = DriftState(2, counts_of(np.random.default_rng(9), 3000))
    less = counts_of(np.random.default_rng(10), 800)
    state, verdict = test.advance(state, less)
    assert (state.window, state.begun, verdict.n, verdict.drifted) == (2, less, 0, False)


def test_the_counts_of_workers_are_added():
    rng = np.random.default_rng(11)
    parts = [counts_of(rng, 300, shift=0.2) for _ in range(3)]
    together = tuple(sum(cell) for cell in zip(*parts, strict=True))
    test = DriftTest(reference())
    assert test.judge(together).n == 900
    assert test.judge(together).evidence > max(test.judge(part).evidence for part in parts)


def test_counts_of_another_artefact_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        DriftTest(reference()).advance(DriftState(), (1, 2, 3))


def test_an_artefact_without_statistics_has_no_reference():
    assert DriftReference.of({}) is None
    assert DriftReference.of(statistics_of({})) is None


def test_scores_that_are_all_equal_make_one_cell_for_them():
    given = DriftReference.of(statistics_of({"small": np.full(100, 0.5)}))
    assert given is not None
    assert sum(given.channels[0].shares) == pytest.approx(1.0)
    counter = DriftCounter(given)
    counter.observe(Prediction({"small": 0.5}), Move("route", "small"))
    assert counter.counts() == (0, 1)


@given(st.lists(st.integers(0, 500), min_size=3, max_size=3))
def test_any_counts_are_judged_with_finite_figures(cells):
    test = DriftTest(DriftReference.of({"rows": 50, "scores": {}, "routes": {"small": 0.0, "large": 1.0}}))  # type: ignore[arg-type]
    verdict = test.judge(tuple(cells))
    assert np.isfinite(verdict.evidence)
    assert all(np.isfinite(size) for size in verdict.psi.values())
