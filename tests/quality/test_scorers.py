"""Scorers: where the final answer is found, what equals what, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.quality.labels import Faulty
from llmrouter.quality.scorers import SCORERS, Scored, scorer_of

VALID: dict[str, Any] = {
    "number": 3,
    "numeric": "3",
    "choice": "B",
    "exact": "Rome",
    "contains": ["Rome", "Italy"],
    "json": {"a": 1},
    "regex": "R.me",
    "python_literal": "[1, 'a']",
}


@pytest.mark.parametrize(
    ("text", "expected", "answer"),
    [
        ("So 3 + 4 is 7.", 7, "7"),
        ("The answer is $1,234.50.", 1234.5, "1234.5"),
        ("Answer: 18\nCheck: 9 * 2 = 18, not 20", 18, "18"),
        ("First 5, then 6.\n#### 11", 11, "11"),
        ("Thus \\boxed{-42} of 100", -42, "-42"),
        ("It is \u221217", -17, "-17"),
        ("1e3 grams", "1,000", "1000"),
        ("**Answer:** 0.333333333", 1 / 3, "0.333333333"),
        ("half, .5", 0.5, "0.5"),
        ("12,345,678.9 at last", 12345678.9, "12345678.9"),
        ("the years 1999,2000", 2000, "2000"),
        ("10-3", 3, "3"),
    ],
)
def test_a_number_is_found_where_the_final_answer_stands(text, expected, answer):
    assert scorer_of("number", expected)(text) == Scored(1.0, answer)


@pytest.mark.parametrize("text", ["", "none", "The answer is 8", "7 and then 9"])
def test_another_number_or_none_scores_0(text):
    assert scorer_of("number", 7)(text).score == 0


def test_the_tolerance_of_a_number_can_be_said():
    assert scorer_of({"type": "number", "tolerance": 0.01}, 100)("about 100.9").score == 1


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("B. Because A is wrong", "B"),
        ("The answer is (B).", "B"),
        ("A is tempting. Answer: **B**", "B"),
        ("Let me see. A dog is no cat, so I choose B", "B"),
        ("The correct answer is: B) Rome", "B"),
        ("Not (A), rather (B)", "B"),
        ("\\boxed{B}", "B"),
        ("Some thoughts about A.\n\nB\n", "B"),
        ("I do not know. A dog barks", None),
        ("", None),
    ],
)
def test_a_choice_is_found_and_an_article_is_none(text, answer):
    assert scorer_of({"type": "choice", "choices": "ABCD"}, "b")(text) == Scored(float(answer == "B"), answer)


@pytest.mark.parametrize(("text", "score"), [("  rome!", 1), ("ROME", 1), ("Rome, Italy", 0), ("", 0)])
def test_exact_minds_neither_capitals_nor_the_punctuation_around(text, score):
    assert scorer_of("exact", ["Rome", "Roma"])(text).score == score


def test_exact_can_look_behind_a_mark():
    scorer = scorer_of({"type": "exact", "after": "Label:"}, "card lost")
    assert scorer("It was lost, so\nLabel: Card lost.\nBye") == Scored(1.0, "card lost")


def test_contains_wants_all_texts():
    scorer = scorer_of("contains", ["rome", "italy"])
    assert (scorer("Rome is in Italy").score, scorer("Rome").score) == (1, 0)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"b": [true], "a": 1.0}', 1),
        ('Here:\n```json\n{"a": 1, "b": [true]}\n```\nDone', 1),
        ('So {"a": 1, "b": [true]} it is', 1),
        ('{"a": 1, "b": [1]}', 0),
        ('{"a": 1}', 0),
        ("no", 0),
    ],
)
def test_json_is_compared_by_value(text, score):
    assert scorer_of("json", {"a": 1, "b": [True]})(text).score == score


def test_json_without_anything_expected_has_to_be_json():
    scorer = scorer_of("json", None)
    assert (scorer('["x"]').score, scorer("x").score) == (1, 0)


def test_a_regular_expression_is_searched():
    assert scorer_of("regex", "^R.me$")("Rome") == Scored(1.0, "Rome")


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("{'b': 2, 'a': (1,)}", 1),
        ("Answer: {'a': (1,), 'b': 2}", 1),
        ("assert f(1) == {'a': (1,), 'b': 2}", 1),
        ("So:\n```python\n{'a': (1,), 'b': 2}\n```", 1),
        ("{'a': [1], 'b': 2}", 0),
        ("{'a': (True,), 'b': 2}", 0),
        ("__import__('os')", 0),
        ("(" * 5000, 0),
    ],
)
def test_python_literals_are_compared_by_value_and_type_and_never_run(text, score):
    assert scorer_of("python_literal", "{'a': (1,), 'b': 2}")(text).score == score


@pytest.mark.parametrize(
    ("scorer", "expected", "message"),
    [
        ("judge", 1, "scorer: 'judge' is none of number"),
        (None, 1, "scorer: None is none of"),
        ({"type": "number", "tolerence": 1}, 1, "scorer.tolerence: is no option of number"),
        ({"type": "number", "tolerance": -1}, 1, "scorer.tolerance"),
        ("number", "none", "expected: must be a number"),
        ("number", True, "expected: must be a number"),
        ("choice", "Z", "expected: must be one of the letters"),
        ({"type": "choice", "choices": "xy"}, "x", "scorer.choices"),
        ("exact", [], "expected: must be a text"),
        ("contains", 7, "expected: must be a text"),
        ("regex", "(", "expected: .* is no regular expression"),
        ("python_literal", "f(x)", "expected: must be a Python literal"),
        ({"type": "exact", "after": 3}, "x", "scorer.after"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_key(scorer, expected, message):
    with pytest.raises(Faulty, match=message):
        scorer_of(scorer, expected)


def test_thoughts_are_no_answer():
    assert scorer_of("contains", "rome")("<think>Rome? No.</think>Paris").score == 0
    assert scorer_of("number", 7)("<think>The answer is 8? It is 7.</think>\nIt is 7.").score == 1


@pytest.mark.parametrize("name", SCORERS)
@given(text=st.text())
def test_any_text_gets_a_score_and_always_the_same(name, text):
    scorer = scorer_of(name, VALID[name])
    scored = scorer(text)
    assert 0 <= scored.score <= 1
    assert scorer(text) == scored


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**12), 10**12))
def test_a_number_that_is_written_is_found(number):
    assert scorer_of("number", number)(f"The answer is {number}").score == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    max_leaves=8,
)


@given(JSON.filter(lambda each: each is not None))
def test_json_equals_itself(given_value):
    assert scorer_of("json", given_value)(json.dumps(given_value)).score == 1
