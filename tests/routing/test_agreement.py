"""Who agrees with whom."""

from typing import get_args

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrouter.routing.agreement import agreement, majority, vote
from llmrouter.routing.evidence import AnswerKind
from llmrouter.routing.normalise import canonical
from llmrouter.routing.text_form import embed, like, like_by

FORMS = st.lists(st.one_of(st.none(), st.sampled_from(["1", "2", "3", "x y z"])), max_size=9)
EXACT = st.sampled_from([kind for kind in get_args(AnswerKind) if kind != "text"])


@given(FORMS, EXACT)
def test_equal_forms_and_only_they_agree(forms, kind):
    votes = vote(forms, kind)
    for one, first in zip(forms, votes, strict=True):
        for other, second in zip(forms, votes, strict=True):
            assert (first == second and first >= 0) == (one == other and one is not None)


@given(FORMS, EXACT, st.randoms())
def test_the_order_of_answers_changes_no_group(forms, kind, random):
    order = list(range(len(forms)))
    random.shuffle(order)
    votes, shuffled = vote(forms, kind), vote([forms[at] for at in order], kind)
    pairs = {(votes[at], shuffled[place]) for place, at in enumerate(order)}
    assert len(pairs) == len(set(votes)) == len(set(shuffled))


@given(st.lists(st.one_of(st.none(), st.text("ab ", max_size=12)), max_size=8), st.sampled_from(get_args(AnswerKind)))
@settings(deadline=None)
def test_further_answers_leave_the_votes_so_far(forms, kind):
    votes = vote(forms, kind)
    for length in range(len(forms)):
        assert vote(forms[:length], kind) == votes[:length]


@given(FORMS)
def test_groups_are_numbered_in_order_of_appearance(forms):
    groups = [each for each in vote(forms, "label") if each >= 0]
    assert list(dict.fromkeys(groups)) == list(range(len(set(groups))))


def test_texts_agree_that_say_nearly_the_same():
    said = [
        "The capital of France is Paris.",
        "Paris is the capital of France!",
        "The capital of France is Lyon.",
        "The capital of France is not Paris.",
    ]
    assert vote([canonical("text", each) for each in said], "text") == (0, 0, 1, 2)


def test_long_texts_agree_by_likeness_but_not_with_other_numbers():
    long = " ".join(f"Step {each}: mix the flour with water and let it rest in a warm place." for each in range(9))
    same = canonical("text", long.replace("mix", "stir", 1))
    other = canonical("text", long.replace("Step 3", "Step 30"))
    assert vote([canonical("text", long), same, other], "text") == (0, 0, 1)


@given(st.text(max_size=200))
@settings(deadline=None)
def test_a_text_is_like_itself_and_its_vector_has_length_one(text):
    form = canonical("text", text)
    if form is not None:
        assert like(form, form)
        assert abs(float(embed(form) @ embed(form)) - 1) < 1e-9


def test_a_likeness_of_ones_own_is_used():
    assert vote(["a", "b", "c"], "text", similar=lambda one, other: {one, other} == {"a", "c"}) == (0, 1, 0)


def test_another_embedding_may_say_what_is_alike():
    moods = {
        "glad": (2.0, 0.1),
        "happy": (1.0, 0.0),
        "sad": (-1.0, 0.0),
        "no mood": (0.0, 0.0),
        "not happy": (1.0, 0.0),
    }
    similar = like_by(lambda text: np.array(moods[text]), 0.9)
    assert vote(list(moods), "text", similar=similar) == (0, 0, 1, 2, 3)


def test_the_majority_is_the_largest_group_the_earliest_of_equals():
    assert majority((0, 1, 1, -1)) == 1
    assert majority((0, 1, 1, 0)) == 0
    assert majority((-1, -1)) is None
    assert majority(()) is None


def test_agreement_is_counted():
    counted = agreement((0, 1, 1, -1, 2))
    assert (counted.largest, counted.second, counted.groups, counted.with_first, counted.unusable) == (2, 1, 3, 1, 1)
    assert counted.share == 0.4
    assert agreement(()).share == 0
    assert agreement((-1, 0)).with_first == 0
