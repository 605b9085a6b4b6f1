"""What is wrong with an answer's form."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrouter.routing.formats import FAULTS, format_faults, is_refusal, repeats
from llmrouter.types import ChatRequest, Observation

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def request(asked="What is it?", **fields: Any) -> ChatRequest:
    return ChatRequest("chat", "auto", {"model": "auto", **fields}, last_user_text=asked)


def seen(text="", *, finish: str | None = "stop", calls=(), refused=False, whole=True) -> Observation:
    return Observation((text,), (finish,), (tuple(calls),), (refused,), whole=whole)


def faults(text="", *, asked="What is it?", finish: str | None = "stop", calls=(), **fields: Any) -> tuple[str, ...]:
    return format_faults(request(asked, **fields), seen(text, finish=finish, calls=calls))


def test_an_answer_in_order_has_no_fault():
    assert faults("It is 42.") == ()
    assert faults("It is 42.", tools=[WEATHER], tool_choice="auto") == ()
    assert faults(calls=[("weather", '{"city": "Rome"}')], tools=[WEATHER], tool_choice="required") == ()


@pytest.mark.parametrize("text", ["", " \n", "<think>hm</think>\n"])
def test_nothing_said_is_empty(text: str):
    assert faults(text) == ("empty",)


def test_a_prefix_without_text_is_not_yet_empty():
    assert format_faults(request(), seen("", finish=None, whole=False)) == ()


def test_an_answer_that_hit_the_cap_is_truncated_and_not_blamed_for_half_a_json():
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    assert faults('{"n": ', finish="length", response_format=wanted) == ("truncated",)
    assert faults(finish="length", calls=[("weather", '{"ci')], tools=[WEATHER]) == ("truncated",)


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't assist with that request.",
        "I\u2019m sorry, I can\u2019t help with that.",
        "I cannot provide instructions for this.",
        "As an AI language model, I cannot create such content.",
        "Sorry, but I am not able to fulfill this request.",
        "I must respectfully decline.",
        "Es tut mir leid, aber dabei kann ich nicht helfen.",
        "Je suis désolé, mais je ne peux pas vous aider avec cela.",
        "Lo siento, pero no puedo ayudar con eso.",
        "Desculpe, mas não posso ajudar com isso.",
        "Mi dispiace, ma non posso aiutarti.",
        "К сожалению, я не могу помочь с этим.",  # noqa: RUF001
        "抱歉，我无法提供这方面的帮助。",  # noqa: RUF001
        "申し訳ありませんが、そのご要望にはお答えできません。",
        "죄송하지만 도와드릴 수 없습니다.",
    ],
)
def test_set_phrases_of_refusing_are_known(text: str):
    assert faults(text) == ("refusal",)


@pytest.mark.parametrize(
    "text",
    [
        "I cannot find any error in your code.",
        "I'm unable to see a difference between the two lines.",
        "I can help with that.",
        "The letter says: I'm sorry, but I can't assist you.",
        "Sorry to hear that! Here is what you can do.",
        "I can't help with the first part without the file, but here is the rest. " + "It goes on and on. " * 100,
        "No puedo creerlo: es verdad.",
        "抱歉让您久等了。答案是 42。",
    ],
)
def test_other_answers_are_not_taken_for_refusals(text: str):
    assert not is_refusal(text)


def test_the_engine_may_say_that_it_refused():
    assert format_faults(request(), seen("", refused=True)) == ("refusal",)


@pytest.mark.parametrize("text", ["yes", "```json\n{}\n```", "[1]", '{"a": NaN}', "[" * 50_000])
def test_json_that_is_none_is_found(text: str):
    assert "json" in faults(text, response_format={"type": "json_object"})


def test_an_answer_is_held_against_the_schema():
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    assert faults('{"n": 3}', response_format=wanted) == ()
    assert faults('{"n": "3"}', response_format=wanted) == ("schema",)
    assert faults("n: 3", response_format=wanted) == ("json",)


def test_a_call_is_held_against_its_tool():
    assert faults(calls=[("weather", '{"city": 3}')], tools=[WEATHER]) == ("tool_arguments",)
    assert faults(calls=[("weather", "{}")], tools=[WEATHER]) == ("tool_arguments",)
    assert faults(calls=[("weather", '{"city": "Rome"')], tools=[WEATHER]) == ("tool_arguments",)
    assert faults(calls=[("wether", '{"city": "Rome"}')], tools=[WEATHER]) == ("unknown_tool",)
    legacy = [WEATHER["function"]]
    assert faults(calls=[("weather", '{"city": 3}')], functions=legacy) == ("tool_arguments",)


def test_a_custom_tool_takes_any_text():
    assert faults(calls=[("run", "not json")], tools=[{"type": "custom", "custom": {"name": "run"}}]) == ()


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "function": {"name": "weather"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
    ],
)
def test_a_call_that_had_to_be_made_is_missed(choice: Any):
    assert faults("Sunny.", tools=[WEATHER], tool_choice=choice) == ("missing_tool",)


def test_another_call_than_the_one_that_had_to_be_made_is_no_substitute():
    other = {"type": "function", "function": {"name": "news"}}
    choice = {"type": "function", "function": {"name": "weather"}}
    assert faults(calls=[("news", "{}")], tools=[WEATHER, other], tool_choice=choice) == ("missing_tool",)


def test_a_call_that_the_engine_left_in_the_text_is_missed():
    written = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    assert faults(written, tools=[WEATHER]) == ("missing_tool",)
    assert faults(written) == ()


@pytest.mark.parametrize(
    "text", ["Well. " + "I do not know. " * 40, "!" * 400, "Step one.\n" + "and then he said\n" * 30, "ha" * 200]
)
def test_a_loop_at_the_end_is_a_repetition(text: str):
    assert faults(text) == ("repetition",)


@pytest.mark.parametrize(
    "text",
    [
        "-" * 900,
        "| --- | --- |\n" * 60,
        "[" + "0, " * 500 + "0]",
        " ".join(f"Line {each} of the list is new." for each in range(90)),
        "ha" * 60,
        "I do not know. " * 40 + "But then again I found out what it was that I had been looking for, and that was it.",
    ],
)
def test_rules_tables_and_lists_are_no_repetition(text: str):
    assert not repeats(text)


@pytest.mark.parametrize(
    "mark", ["<|im_end|>", "<|eot_id|>", "[/INST]", "<end_of_turn>", "</s>", "<\uff5cend of sentence\uff5c>"]
)
def test_a_leaked_marker_of_the_template_is_found(mark: str):
    assert faults(f"It is 42.{mark}") == ("control_tokens",)
    assert faults(f"`{mark}` ends a turn. {mark}", asked=f"What does {mark} mean?") == ()


def test_each_choice_is_judged_by_itself():
    both = Observation(("It is 42.", ""), ("stop", "length"))
    assert format_faults(request(), both, 0) == ()
    assert format_faults(request(), both, 1) == ("empty", "truncated")
    assert format_faults(request(), both, 7) == ("empty",)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "tools": JSON | st.just([WEATHER]),
        "tool_choice": JSON,
        "functions": JSON,
        "function_call": JSON,
        "response_format": JSON | st.fixed_dictionaries({"type": st.just("json_schema"), "json_schema": JSON}),
    },
)


@given(FIELDS, st.text(), st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), max_size=2))
@settings(deadline=None)
def test_faults_are_of_the_list_and_in_its_order_whatever_comes(fields: Any, text: str, calls: Any):
    found = faults(text, calls=calls, **fields)
    assert list(found) == [fault for fault in FAULTS if fault in found]


@pytest.mark.parametrize(
    "text", ["<|" * 100_000, "ab" * 100_000, "i'm sorry " * 50_000, "[" * 200_000, "<think>" * 40_000]
)
def test_hostile_texts_take_no_time(text: str):
    began = time.process_time()
    faults(text, response_format={"type": "json_object"}, tools=[WEATHER])
    assert time.process_time() - began < 0.3
