"""Predictions from arrays: read from an artefact or refused, in words on request, fast, and without heavy libraries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llmrouter.errors import ArtefactError
from llmrouter.routing.ask import Ask
from llmrouter.routing.features import CHAR_BITS, HAND, WORD_BITS, terms_of
from llmrouter.routing.predictor import Predictor

ROLES = ["small", "frontier"]


def trained(**changes: Any) -> Any:
    """Heads that know one word: "prove" lowers small."""
    words = np.zeros((1 << WORD_BITS, 2), dtype=np.float16)
    words[terms_of(Ask("prove")).buckets[0], 0] = -0.25
    line = np.linspace(0.0, 1.0, 5)
    arrays = {
        "head_words": words,
        "head_chars": np.zeros((1 << CHAR_BITS, 2), dtype=np.float16),
        "head_word_idf": np.ones(1 << WORD_BITS, dtype=np.float16),
        "head_char_idf": np.ones(1 << CHAR_BITS, dtype=np.float16),
        "head_hand": np.zeros((len(HAND), 2)),
        "head_hand_mean": np.zeros(len(HAND)),
        "head_hand_scale": np.ones(len(HAND)),
        "head_bias": np.array([0.7, 0.9]),
        "head_tree_features": np.zeros((0, 7), dtype=np.int16),
        "head_tree_bounds": np.zeros((0, 7)),
        "head_tree_values": np.zeros((0, 8)),
        "head_tree_counts": np.zeros(0, dtype=np.int32),
        "head_curves": np.array([[-1.0, 1.0, *(2 * line - 1)], [0.0, 1.0, *line]]),
        "head_novelty_axes": np.zeros((len(HAND) + 3, 2)),
        "head_novelty_centres": np.zeros((3, 2)),
        "head_novelty_distances": np.array([0.5, 1.0]),
    } | {name: value for name, value in changes.items() if name.startswith("head_")}
    heads = {"version": 1, "roles": ROLES, "reference": "frontier", "tree_share": 0.0, "tree_roles": []}
    heads |= {name: value for name, value in changes.items() if not name.startswith("head_")}
    return SimpleNamespace(manifest={"heads": heads}, arrays=arrays)


def test_a_known_word_moves_its_role_and_no_other() -> None:
    predictor = Predictor.of(trained())
    usual, hard = predictor.predict(Ask("name it")), predictor.predict(Ask("prove"))
    assert usual.quality == pytest.approx({"small": 0.7, "frontier": 0.9})
    assert hard.quality == pytest.approx({"small": 0.45, "frontier": 0.9})
    assert list(usual.quality) == ROLES


def test_it_is_told_in_words() -> None:
    assert Predictor.of(trained()).explain(Ask("prove")) == ['"prove" lowers small by 0.250']
    assert Predictor.of(trained()).explain(Ask("")) == []


def test_qualities_stay_between_0_and_1() -> None:
    predictor = Predictor.of(trained(head_bias=np.array([-9.0, 9.0])))
    assert predictor.predict(Ask("prove")).quality == {"small": 0.0, "frontier": 1.0}


def test_trees_count_for_their_share() -> None:
    grown = {
        "head_tree_features": np.full((2, 1), HAND.index("questions"), dtype=np.int16),
        "head_tree_bounds": np.full((2, 1), 0.1),
        "head_tree_values": np.array([[0.7, 0.3], [0.9, 0.9]]),
        "head_tree_counts": np.array([1, 1]),
    }
    predictor = Predictor.of(trained(**grown, tree_share=0.5, tree_roles=ROLES))
    assert predictor.predict(Ask("plain")).quality["small"] == pytest.approx(0.7)
    assert predictor.predict(Ask("plain?")).quality["small"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "version 2, this llmrouter reads 1"),
        ({"roles": []}, "name no roles"),
        ({"reference": "large"}, "not whole"),
        ({"tree_share": None}, "not whole"),
        ({"head_words": np.zeros((4, 2))}, "head_words has the shape"),
        ({"head_bias": np.zeros(3)}, "head_bias has the shape"),
        ({"head_hand_scale": np.zeros(len(HAND))}, "a scale is not above 0"),
        ({"head_curves": np.array([[1.0, 0.0, 0.1, 0.2]] * 2)}, "no table of curves"),
        ({"head_novelty_centres": np.zeros((0, 2))}, "novelty are empty"),
        ({"head_tree_values": np.zeros((1, 8))}, "not whole"),
    ],
)
def test_heads_that_do_not_fit_together_are_refused(changes, said) -> None:
    with pytest.raises(ArtefactError, match=said):
        Predictor.of(trained(**changes))


def test_a_missing_array_is_named() -> None:
    artefact = trained()
    del artefact.arrays["head_chars"]
    with pytest.raises(ArtefactError, match="head_chars"):
        Predictor.of(artefact)


def test_heads_that_are_no_table_are_refused() -> None:
    with pytest.raises(ArtefactError, match="heads"):
        Predictor.of(SimpleNamespace(manifest={"heads": []}, arrays={}))
