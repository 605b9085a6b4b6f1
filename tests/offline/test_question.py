"""Groups of questions: what counts as the same question, and what does not."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.offline.question import question_group

QUESTION = "Which planet of the solar system is the largest?"


@pytest.mark.parametrize(
    "other",
    [
        "which planet of the solar system is the largest",
        f"{QUESTION}\nA. Mars\nB. Jupiter\nAnswer:",
        f"{QUESTION}\n(A) Jupiter\n(B) Venus\n(C) Mars",
        f"{QUESTION}\nOptions:\nJupiter; Mars",
        f"  {QUESTION.replace(' ', '   ')}\n\n",
    ],
)
def test_layout_and_options_do_not_matter(other):
    assert question_group(other) == question_group(QUESTION)


@pytest.mark.parametrize(
    "other",
    [
        "Which planet of the solar system is the smallest?",
        f"{QUESTION} Say why.",
        "Do the following for the planets:\n1. name the largest",
    ],
)
def test_another_question_is_another_group(other):
    assert question_group(other) != question_group(QUESTION)


def test_a_numbered_list_is_no_list_of_options():
    assert question_group("Do these things:\n1. sing") != question_group("Do these things:\n1. dance")


def test_a_long_text_takes_no_longer_for_its_lines_that_look_like_options():
    started = time.process_time()
    question_group("A. no option\n" * 100_000)
    assert time.process_time() - started < 5


def test_options_alone_are_told_apart_by_all_of_their_text():
    assert question_group("A. one\nB. two") != question_group("A. one\nB. three")


@given(st.text())
def test_every_text_has_a_group_and_always_the_same(text):
    assert question_group(text) == question_group(text)
