"""The curve of quality by strong calls, its figures and their intervals."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.offline.bootstrap import Bootstrap
from llmrouter.offline.curves import Pair, chance_band, curve_of, measure


def pair_of(weak: Sequence[float], strong: Sequence[float], **costs: float) -> Pair:
    return Pair(np.array(weak, dtype=float), np.array(strong, dtype=float), **costs)


def rows_of(n: int, seed: int = 0) -> Pair:
    """A weak and a strong model that differ on a third of the rows, mostly to the strong one's favour."""
    rng = np.random.default_rng(seed)
    weak = rng.random(n) < 0.6
    strong = np.where(rng.random(n) < 0.35, rng.random(n) < 0.9, weak)
    return Pair(weak.astype(float), strong.astype(float))


def bootstrap_of(n: int, replicates: int = 200) -> Bootstrap:
    return Bootstrap([str(index) for index in range(n)], ["s"] * n, replicates=replicates)


def test_a_perfect_order_of_four_rows_is_measured_by_hand():
    """Two rows need the strong model: calling it for half of the rows recovers all, and the area is three quarters."""
    pair = pair_of([0, 0, 1, 1], [1, 1, 1, 1])
    found = measure(np.array([4.0, 3.0, 2.0, 1.0]), pair)
    assert found.apgr == pytest.approx(0.75)
    assert found.pgr == {0.2: pytest.approx(0.4), 0.5: pytest.approx(1.0), 0.8: pytest.approx(1.0)}
    assert found.crossing(50) == pytest.approx(0.25)
    assert found.crossing(80) == pytest.approx(0.4)
    assert (found.weak_quality, found.strong_quality, found.n) == (0.5, 1.0, 4)


def test_equal_scores_are_worth_what_chance_is():
    found = measure(np.zeros(500), rows_of(500))
    assert found.apgr == pytest.approx(0.5)
    assert found.crossing(80) == pytest.approx(0.8)


def test_the_order_of_rows_with_equal_scores_does_not_matter():
    pair = rows_of(300)
    score = np.round(np.random.default_rng(1).random(300), 1)
    turned = np.arange(300)[::-1]
    there = measure(score, pair)
    back = measure(score[turned], Pair(pair.weak[turned], pair.strong[turned]))
    assert there.apgr == pytest.approx(back.apgr)
    assert there.crossing(80) == pytest.approx(back.crossing(80))


def test_a_curve_that_falls_again_has_a_later_lasting_crossing():
    """One early gain, then a loss, then the rest of the gain."""
    found = measure(np.arange(5, 0, -1.0), pair_of([0, 1, 0, 0.5, 0.5], [1, 0, 1, 0.5, 0.5]))
    assert found.cpt[0.8].first == pytest.approx(0.16)
    assert found.cpt[0.8].lasting == pytest.approx(0.2 + 0.2 + 0.16)


def test_an_oracle_may_pass_one_where_the_weak_model_wins_some_rows():
    pair = pair_of([1, 0, 0, 1], [0, 1, 1, 1])
    found = measure(pair.oracle(), pair)
    assert found.pgr[0.5] == pytest.approx(2.0)
    assert found.apgr is not None
    assert found.apgr > 1


@pytest.mark.parametrize(("weak", "strong"), [([1, 1, 0], [1, 0, 0]), ([1, 0, 1], [1, 1, 0])])
def test_a_strong_model_that_is_not_better_gives_a_reason_and_no_figures(weak, strong):
    found = measure(np.array([3.0, 1.0, 2.0]), pair_of(weak, strong), bootstrap=bootstrap_of(3))
    assert found.apgr is None
    assert (dict(found.pgr), dict(found.cpt), dict(found.saving)) == ({}, {}, {})
    assert found.crossing(95) is None
    assert found.reason is not None
    assert "not better" in found.reason
    assert set(found.intervals) <= {"weak_quality", "strong_quality", "gap"}


def test_no_rows_give_a_reason():
    found = measure(np.array([]), pair_of([], []), bootstrap=bootstrap_of(0))
    assert found.apgr is None
    assert found.reason == "there are no rows that count"


def test_a_score_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="not a number"):
        measure(np.array([1.0, np.nan]), pair_of([0, 1], [1, 1]))


def test_whole_weights_count_like_so_many_rows():
    pair, score = rows_of(60), np.random.default_rng(2).random(60)
    times = np.random.default_rng(3).integers(1, 4, 60)
    weighted = measure(score, pair, weights=times.astype(float))
    repeated = measure(np.repeat(score, times), Pair(np.repeat(pair.weak, times), np.repeat(pair.strong, times)))
    assert weighted.apgr == pytest.approx(repeated.apgr)
    assert weighted.crossing(50) == pytest.approx(repeated.crossing(50))


def test_a_slice_is_measured_as_if_it_were_alone():
    pair, score = rows_of(200), np.random.default_rng(4).random(200)
    rows = np.arange(200) % 3 == 0
    alone = measure(score[rows], Pair(pair.weak[rows], pair.strong[rows]))
    assert measure(score, pair, rows=rows, bootstrap=bootstrap_of(200)).apgr == pytest.approx(alone.apgr)


def test_costs_turn_a_crossing_into_a_saving():
    pair = pair_of([0, 0, 1, 1], [1, 1, 1, 1], weak_cost=1.0, strong_cost=10.0)
    found = measure(np.array([4.0, 3.0, 2.0, 1.0]), pair)
    assert found.saving[0.5] == pytest.approx(0.9 * 0.75)
    assert curve_of(np.array([4.0, 3.0, 2.0, 1.0]), pair).cost[[0, -1]].tolist() == [1.0, 10.0]


def test_intervals_hold_the_figure_and_shrink_with_more_rows():
    widths: list[float] = []
    for n in (200, 3200):
        pair = rows_of(n)
        found = measure(pair.oracle() + np.random.default_rng(5).normal(0, 1, n), pair, bootstrap=bootstrap_of(n))
        interval = found.intervals["apgr"]
        assert found.apgr is not None
        assert interval.low < found.apgr < interval.high
        widths.append(interval.high - interval.low)
    assert widths[1] < widths[0] / 2.5


def test_intervals_are_those_of_plain_resampling():
    """The vectorised replicates agree with the figures of rows that were really repeated."""
    pair, score = rows_of(80), np.random.default_rng(6).random(80)
    bootstrap = bootstrap_of(80, replicates=25)
    drawn = np.concatenate(list(bootstrap.multiplicities()))
    repeated = [np.repeat(np.arange(80), times.astype(int)) for times in drawn]
    plain = [measure(score[rows], Pair(pair.weak[rows], pair.strong[rows])).weak_quality for rows in repeated]
    areas = [measure(score[rows], Pair(pair.weak[rows], pair.strong[rows])).apgr for rows in repeated]
    found = measure(score, pair, bootstrap=bootstrap).intervals
    for name, values in (("weak_quality", plain), ("apgr", areas)):
        low, high = np.quantile(np.array(values, dtype=float), (0.025, 0.975))
        assert (found[name].low, found[name].high) == pytest.approx((low, high))


def test_groups_are_drawn_whole_and_each_stratum_keeps_its_size():
    groups = [f"g{index // 3}" for index in range(30)]
    strata = ["a"] * 15 + ["b"] * 15
    for drawn in Bootstrap(groups, strata, replicates=50).multiplicities():
        assert (drawn.reshape(-1, 10, 3) == drawn.reshape(-1, 10, 3)[:, :, :1]).all()
        assert (drawn[:, :15].sum(axis=1) == 15).all()
        assert (drawn[:, 15:].sum(axis=1) == 15).all()


def test_a_bootstrap_draws_the_same_every_time_and_tells_how_far_it_is():
    told: list[tuple[int, int]] = []
    bootstrap = bootstrap_of(50, replicates=30)
    first = np.concatenate(list(bootstrap.multiplicities(progress=lambda done, of: told.append((done, of)))))
    assert (first == np.concatenate(list(bootstrap.multiplicities()))).all()
    assert told[-1] == (30, 30)


def test_chance_band_holds_one_half_and_leaves_a_good_score_out():
    pair = rows_of(400)
    band = chance_band(pair, replicates=100)
    assert band is not None
    assert band.low < 0.5 < band.high
    best = measure(pair.oracle(), pair).apgr
    assert best is not None
    assert best > band.high


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.25, 0.5, 1.0]),
            st.sampled_from([0.0, 0.5, 1.0]),
            st.integers(0, 5),
            st.integers(1, 3),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_the_oracle_is_never_beaten_and_shares_rise(rows):
    weak, strong, score, weights = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    pair = Pair(weak, strong)
    curve = curve_of(score, pair, weights)
    assert (np.diff(curve.share) >= 0).all()
    assert curve.share[-1] == pytest.approx(1.0)
    best, found = measure(pair.oracle(), pair, weights=weights), measure(score, pair, weights=weights)
    assert (best.reason is None) == (found.reason is None)
    if best.apgr is not None and found.apgr is not None:
        assert found.apgr <= best.apgr + 1e-9
        assert best.apgr >= 0.5 - 1e-9
        for level in found.cpt:
            assert found.cpt[level].first <= found.cpt[level].lasting + 1e-9
            assert 0 <= best.cpt[level].first <= found.cpt[level].first + 1e-9
