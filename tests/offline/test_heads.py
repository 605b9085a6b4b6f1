"""Heads: what is trained is what is served, small sets are used whole, and rows are predicted by heads that did not see
their group."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llmrouter.errors import UsageError
from llmrouter.offline.heads import FittedHeads, HeadSettings, folds_of, read_matrix, score, train_heads
from llmrouter.offline.labels import LabelSet, RoleLabels
from llmrouter.routing.ask import Ask
from llmrouter.routing.features import features_of
from llmrouter.routing.predictor import Predictor

TOPICS = ("prove that the matrix is singular", "name the capital of the country", "translate the sentence")
QUICK = HeadSettings(trees_from=10_000)


def filler(rng: np.random.Generator) -> str:
    return " ".join(
        f"{'abcdefgh'[a]}{'aeiou'[b]}{'klmnrstv'[c]}" for a, b, c in rng.integers(0, 5, (rng.integers(3, 15), 3))
    )


def labels_of(n: int, *, seed: int = 0, hole: int | None = None) -> LabelSet:
    """Questions of three topics; the small model knows little of the first, the frontier most of all."""
    rng = np.random.default_rng(seed)
    topics = rng.integers(0, 3, n)
    asks = tuple(Ask(f"Please {TOPICS[topic]} {filler(rng)}?") for topic in topics.tolist())
    chance = {"small": np.array([0.1, 0.9, 0.8])[topics], "frontier": np.array([0.8, 0.95, 0.9])[topics]}
    quality = {role: (rng.random(n) < of).astype(float) for role, of in chance.items()}
    if hole is not None:
        quality["small"][:hole] = np.nan
    nothing = np.full(n, np.nan)
    return LabelSet(
        ids=tuple(f"r{at}" for at in range(n)),
        sources=("toy",) * n,
        groups=tuple(f"g{at // 2}" for at in range(n)),
        splits=(None,) * n,
        asks=asks,
        inclusion=np.ones(n),
        roles={role: RoleLabels(each, (None,) * n, nothing, nothing) for role, each in quality.items()},
        models={"toy": {"small": "s", "frontier": "f"}},
    )


@pytest.fixture(scope="module")
def heads() -> FittedHeads:
    return train_heads(labels_of(300), settings=HeadSettings(trees=6, trees_from=200, tree_shares=(0.3,)))


def predictor_of(fitted: FittedHeads) -> Predictor:
    return Predictor.of(SimpleNamespace(manifest={"heads": fitted.manifest}, arrays=fitted.arrays))


def test_serving_gives_the_scores_of_training(heads: FittedHeads) -> None:
    asks = labels_of(60, seed=5).asks
    trained = score(heads.arrays, heads.manifest, read_matrix(asks))
    served = np.array([predictor_of(heads).raw_scores(features_of(ask)) for ask in asks])
    assert len(heads.arrays["head_tree_values"]) == 12
    np.testing.assert_allclose(served, trained, rtol=0, atol=1e-9)


def test_peers_have_no_trees_and_do_not_disturb_those_of_the_others() -> None:
    labels = labels_of(120)
    roles = {"peer1": labels.roles["small"], **labels.roles}
    given = LabelSet(**{**{name: getattr(labels, name) for name in labels.__slots__}, "roles": roles})
    settings = HeadSettings(trees=4, trees_from=50, tree_shares=(0.5,))
    found = train_heads(given, settings=settings)
    assert found.manifest["tree_roles"] == ["small", "frontier"]
    assert found.arrays["head_tree_counts"].tolist() == [4, 4]
    served = np.array([predictor_of(found).raw_scores(features_of(ask)) for ask in labels.asks])
    trained = score(found.arrays, found.manifest, read_matrix(labels.asks))
    np.testing.assert_allclose(served, trained, rtol=0, atol=1e-9)
    assert np.abs(served[:, 0] - served[:, 1]).max() > 1e-3


def test_it_learns_which_topic_the_small_model_fails_at(heads: FittedHeads) -> None:
    predictor = predictor_of(heads)
    hard, easy = (predictor.predict(Ask(f"Please {TOPICS[topic]} dan cel")) for topic in (0, 1))
    assert hard.quality["small"] < 0.35
    assert easy.quality["small"] > 0.7
    assert hard.quality["frontier"] > 0.6


def test_predictions_of_rows_are_calibrated_out_of_fold(heads: FittedHeads) -> None:
    small = labels_of(300).roles["small"].quality
    assert heads.quality.shape == (300, 2)
    assert abs(heads.quality[:, 0].mean() - small.mean()) < 0.05
    assert heads.manifest["calibration_error"]["small"] < 0.12


def test_pure_noise_is_not_learned() -> None:
    labels = labels_of(300)
    noise = np.random.default_rng(1).random(300).round()
    nothing = np.full(300, np.nan)
    given = {"small": RoleLabels(noise, (None,) * 300, nothing, nothing)}
    found = train_heads(
        LabelSet(**{**{f: getattr(labels, f) for f in labels.__slots__}, "roles": given}), settings=QUICK
    )
    assert abs(np.corrcoef(found.raw[:, 0], noise)[0, 1]) < 0.2


def test_the_same_seed_gives_the_same_arrays() -> None:
    first, second = (train_heads(labels_of(80), settings=QUICK, seed=3) for _ in range(2))
    assert first.arrays.keys() == second.arrays.keys()
    for name in first.arrays:
        np.testing.assert_array_equal(first.arrays[name], second.arrays[name])


def test_rows_without_a_label_of_a_role_are_skipped_and_still_predicted() -> None:
    found = train_heads(labels_of(120, hole=40), settings=QUICK)
    assert np.isfinite(found.quality).all()


def test_a_group_is_in_one_fold() -> None:
    groups = [f"g{at // 3}" for at in range(60)]
    folds = folds_of(groups, 5, seed=0)
    assert all(len(set(folds[at : at + 3].tolist())) == 1 for at in range(0, 60, 3))
    assert set(folds.tolist()) == set(range(5))


def test_too_few_questions_are_refused() -> None:
    with pytest.raises(UsageError, match="4 different questions; at least 5"):
        folds_of(["a", "b", "c", "d"], 5, 0)


def test_other_languages_and_other_texts_are_strange(heads: FittedHeads) -> None:
    predictor = predictor_of(heads)
    usual = np.mean([predictor.predict(ask).novelty for ask in labels_of(300, seed=9).asks])
    assert 0.3 < usual < 0.7
    for text in ("法国的首都是哪里 请详细说明。", "ما هي عاصمة فرنسا؟", "def f(x):\n    return {x: 1}\n" * 20):
        assert predictor.predict(Ask(text)).novelty > 0.95


@pytest.mark.parametrize("around", [{"max_output_tokens": 160}, {"turns": 4}])
def test_what_labels_lack_around_an_ask_does_not_make_it_strange(heads: FittedHeads, around: dict[str, Any]) -> None:
    predictor = predictor_of(heads)
    for ask in labels_of(20, seed=9).asks:
        wrapped = dataclasses.replace(ask, **around)
        assert predictor.predict(wrapped).novelty == pytest.approx(predictor.predict(ask).novelty, abs=0.2)


def test_an_explanation_names_words_and_roles(heads: FittedHeads) -> None:
    lines = predictor_of(heads).explain(Ask(f"Please {TOPICS[0]} dan cel"))
    assert any("small by" in line and ("prove" in line or "matrix" in line or "singular" in line) for line in lines)


def test_an_empty_ask_has_a_prediction(heads: FittedHeads) -> None:
    prediction = predictor_of(heads).predict(Ask(""))
    assert all(0 <= each <= 1 for each in prediction.quality.values())
