"""Features of an ask: the same for the same text wherever it stands, in any script, within a bounded window."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.routing.ask import Ask
from llmrouter.routing.features import CHAR_BITS, FEATURE_VERSION, HAND, HEAD, TAIL, WORD_BITS, features_of, terms_of


def words_of(text: str) -> list[str]:
    """The single words; pairs, of which there is one less, come behind them."""
    texts = terms_of(Ask(text)).texts
    return list(texts[: (len(texts) + 1) // 2])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello, World!", ["hello", "world"]),
        ("naïve Straße СКОЛЬКО", ["naïve", "straße", "сколько"]),
        ("日本語です abc中d", ["日", "本", "語", "で", "す", "abc", "中", "d"]),
        ("كم عمرك؟", ["كم", "عمرك؟"]),
        ("so 😀👍 nice", ["so", "😀", "👍", "nice"]),
        ("12 or 1999", ["00", "or", "0000"]),
        ("\uff21\uff22\uff23", ["abc"]),
        ("", []),
    ],
)
def test_words_of_every_script_are_told_apart(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_terms_are_those_that_features_are_made_of() -> None:
    ask = Ask("Which of these gases is noble? 气体 😀 Which of these?")
    terms = terms_of(ask)
    assert set(terms.buckets.tolist()) == set(features_of(ask).words.tolist())
    assert "of these" in terms.texts
    assert len(terms.texts) == len(terms.buckets)


@given(st.text(max_size=200), st.text(max_size=60))
def test_any_text_has_features_in_range(text: str, tools: str) -> None:
    found = features_of(Ask(text, history=text, tools=tools))
    for buckets, bits in ((found.words, WORD_BITS), (found.chars, CHAR_BITS)):
        assert len(set(buckets.tolist())) == len(buckets)
        assert not len(buckets) or (buckets.min() >= 0 and buckets.max() < 1 << bits)
    assert found.hand.shape == (len(HAND),)
    assert np.isfinite(found.hand).all()


@given(
    st.text(alphabet=st.characters(codec="utf-8"), max_size=40),
    st.lists(st.sampled_from(["alpha", "βeta", "中文"]), max_size=4),
)
def test_a_word_has_one_bucket_wherever_it_stands(before: str, words: list[str]) -> None:
    alone = set(features_of(Ask("gamma")).words.tolist())
    found = features_of(Ask(" ".join([before, *words, "gamma"])))
    assert alone <= set(found.words.tolist())


def test_no_two_of_many_words_are_thrown_together_more_than_chance_would() -> None:
    words = [f"{first}{second}{third}" for first in "abcdefghij" for second in "klmnopqrst" for third in "uvwxyzabcd"]
    terms = terms_of(Ask(" ".join(words)))
    singles = set(terms.buckets[: len(terms_of(Ask(" ".join(words))).texts) // 2].tolist())
    read = len(terms.texts) // 2
    assert len(singles) > 0.98 * read


def test_halves_of_surrogates_are_read_over() -> None:
    assert np.isfinite(features_of(Ask("\ud83d broken \udc00")).hand).all()


def test_only_the_window_is_read_but_the_length_is_the_whole() -> None:
    inside = Ask("a " * (HEAD // 2) + "tail " * (TAIL // 5))
    outside = Ask("a " * (HEAD // 2) + "hidden words " * 500 + "tail " * (TAIL // 5))
    assert "hidden" not in terms_of(outside).texts
    length = HAND.index("length")
    assert features_of(outside).hand[length] > features_of(inside).hand[length]


def test_a_very_long_text_of_wide_characters_is_bounded() -> None:
    assert len(features_of(Ask("😀" * 100_000)).words) < 10


def test_a_short_follow_up_is_read_with_what_was_said() -> None:
    assert "monoid" in terms_of(Ask("Why?", history="Explain the word monoid.")).texts
    assert "monoid" not in terms_of(Ask("Why? " * 40, history="Explain the word monoid.")).texts


def test_tools_are_words_of_their_own() -> None:
    plain, offered = (
        features_of(Ask("area of a triangle")),
        features_of(Ask("area of a triangle", tools="area: triangle")),
    )
    assert set(plain.words.tolist()) < set(offered.words.tolist())


def test_the_features_of_this_version_stay_as_they_are() -> None:
    """Weights in artefacts were fitted to these very numbers; whoever changes them raises the version."""
    found = features_of(Ask("What is 12 * 7? 答え"))
    assert FEATURE_VERSION == 1
    assert (int(found.words.sum()), int(found.chars.sum())) == (336134, 249397)
