"""What kind of answer a request wants."""

import time
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrouter.routing.answer_kind import kind_of, kind_of_answers, kind_of_text, options_of
from llmrouter.routing.ask import Ask
from llmrouter.routing.evidence import AnswerKind
from llmrouter.types import ChatRequest

CAPITAL = "What is the capital of France?\nA. London\nB. Paris\nC. Rome\nAnswer:"
LITERAL = "Complete the assertion with a literal.\n[PYTHON]\ndef f(x):\n    return x\nassert f([1]) == ??\n[/PYTHON]"


def request(asked: str = "Hello", **fields: Any) -> ChatRequest:
    messages = [{"role": "user", "content": asked}]
    return ChatRequest("chat", "auto", {"model": "auto", "messages": messages, **fields}, last_user_text=asked)


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (CAPITAL, "choice"),
        ("Which is prime? (A) 4 (B) 5 (C) 6", "choice"),
        ("Pick the correct option: what boils first?", "choice"),
        ("What is 6 times 7?", "number"),
        ("A robe takes 2 bolts of blue fiber. How many bolts in total does it take?", "number"),
        ("Let $f(x) = 2x - 3$. Find $f(4)$.", "number"),
        ("Wie viele Tage hat ein Jahr mit 12 Monaten?", "number"),
        ("Combien font 3 + 4 ?", "number"),
        ("小明有 5 个苹果，吃了 2 个，还剩多少？", "number"),  # noqa: RUF001
        ("Give the result in \\boxed{}.", "number"),
        ("Write a Python function that sorts a list.", "code"),
        ("Implement quicksort as a function", "code"),
        (LITERAL, "code"),
        ("Return a JSON object with name and age: Ada, 36.", "json"),
        ("Classify the review as positive or negative: great food", "label"),
        ("Is it raining? Answer yes or no.", "label"),
        ("Prove that the sum of 2 odd numbers is even.", "text"),
        ("Write a poem about 3 cats.", "text"),
        ("What is the capital of France?", "text"),
        ("Translate to German: how are you?", "text"),
        ("", "text"),
    ],
)
def test_the_ask_tells_the_kind(asked: str, kind: AnswerKind):
    assert kind_of(request(asked)) == kind


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tool_call"),
        ({"functions": [{"name": "f"}]}, "tool_call"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none"}, "number"),
        ({"response_format": {"type": "json_object"}}, "json"),
        ({"response_format": {"type": "text"}}, "number"),
        ({"guided_choice": ["a", "b"]}, "label"),
        ({"guided_json": {}}, "json"),
    ],
)
def test_parameters_come_first(fields: dict[str, Any], kind: AnswerKind):
    assert kind_of(request("What is 6 times 7?", **fields)) == kind


def test_standing_instructions_count():
    messages = [
        {"role": "system", "content": "Classify the mail. Reply with one word."},
        {"role": "user", "content": "Hi!"},
    ]
    assert kind_of(request("Hi!", messages=messages)) == "label"


def test_options_are_read_off_their_lines():
    assert options_of(CAPITAL) == {"A": "London", "B": "Paris", "C": "Rome"}
    assert options_of("(A) one\n(B) two") == {"A": "one", "B": "two"}
    assert options_of("A: one\nB: two\nD: four") == {"A": "one", "B": "two"}
    assert options_of("A. Smith wrote it.\nI read it.") == {}


@pytest.mark.parametrize(
    ("ask", "answers", "kind"),
    [
        (Ask("How long is it?"), ["3.0", None, "-10000.0"], "number"),
        (Ask("How long is it?"), ["3.0", "4.0", "Cannot be determined"], "number"),
        (Ask("Which one?"), ["I", "D", None], "choice"),
        (Ask(CAPITAL), [None, None], "choice"),
        (Ask(LITERAL), ["4", "4", "5"], "code"),
        (Ask("Name the mood."), ["sad", "happy"], "label"),
        (Ask("What is 6 times 7?"), [], "number"),
        (Ask("Book it.", tools="book(date)"), ["x"], "tool_call"),
        (Ask("Write an essay."), ["word " * 100], "text"),
    ],
)
def test_the_answers_of_a_label_row_tell_the_kind(ask: Ask, answers: list[str | None], kind: AnswerKind):
    assert kind_of_answers(ask, answers) == kind


@given(st.text(), st.lists(st.none() | st.text(max_size=5), max_size=4))
@settings(deadline=None)
def test_any_text_has_a_kind(text: str, answers: list[str | None]):
    kinds = get_args(AnswerKind)
    assert kind_of(request(text)) in kinds
    assert kind_of_answers(Ask(text), answers) in kinds


@pytest.mark.parametrize("text", ["A. x\n" * 100_000, "(A) " * 100_000, "how many " * 100_000, "\ud800" * 100_000])
def test_hostile_asks_take_no_time(text: str):
    began = time.process_time()
    kind_of_text(text, text)
    assert time.process_time() - began < 0.2
