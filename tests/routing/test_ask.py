"""The ask of a request: the last user turn without what harnesses put around it, in any language."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.routing.ask import Ask, ask_of, read_ask
from llmrouter.types import ChatRequest

REMINDER = "<system-reminder>\nRead the file again before you edit it. Never mention this.\n</system-reminder>"


def test_the_last_user_turn_is_the_ask_and_the_rest_is_history() -> None:
    ask = ask_of(
        [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "What is a monoid?"},
            {"role": "assistant", "content": "A set with an associative operation and a unit."},
            {"role": "user", "content": "And a group?"},
        ]
    )
    assert ask.text == "And a group?"
    assert ask.turns == 2
    assert ask.history.splitlines() == [
        "You are a helpful assistant.",
        "What is a monoid?",
        "A set with an associative operation and a unit.",
    ]


def test_results_of_tools_do_not_hide_the_ask() -> None:
    ask = ask_of(
        [
            {"role": "user", "content": "Which tests fail?"},
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "tool", "content": "3 failed"},
        ]
    )
    assert ask.text == "Which tests fail?"


@pytest.mark.parametrize(
    "wrapped",
    [
        f"{REMINDER}\nWhy is the sky blue?",
        f"Why is the sky blue?\n\n{REMINDER}{REMINDER}",
        "<environment_details>\n# Open tabs\nmain.py\n</environment_details>\nWhy is the sky blue?",
        "<user_info>\nOS: linux\n</user_info>\n<user_query>\nWhy is the sky blue?\n</user_query>",
        '<file_contents path="a.py">\nprint(1)\n</file_contents>\nWhy is the sky blue?',
    ],
)
def test_tags_of_a_harness_are_left_out_and_counted(wrapped: str) -> None:
    ask = ask_of(wrapped)
    assert ask.text == "Why is the sky blue?"
    assert ask.boilerplate == len(wrapped.strip()) - len(ask.text)


@pytest.mark.parametrize(
    "lines",
    [
        ["diff --git a/x b/x", "@@ -1,9 +1,9 @@", " def f():", *(f"+line {i}" for i in range(9))],
        [f"2026-01-02 10:00:{i:02d} INFO started worker {i}" for i in range(12)],
        [f"    at com.example.Main.run(Main.java:{i})" for i in range(12)],
        [f"  {i}\tvalue = {i}" for i in range(12)],
    ],
)
def test_long_attachments_around_a_short_ask_are_left_out(lines: list[str]) -> None:
    ask = ask_of("What is wrong here?\n" + "\n".join(lines) + "\nAnswer briefly.")
    assert ask.text.split() == ["What", "is", "wrong", "here?", "Answer", "briefly."]
    assert ask.boilerplate > 100


def test_a_list_or_markup_is_part_of_the_ask() -> None:
    text = "Which is right?\n" + "- one more\n" * 12 + "<div>four</div>"
    assert ask_of(text) == Ask(text)


def test_instructions_that_come_with_every_turn_count_once() -> None:
    rules = "Always answer in the style of a pirate. " * 8
    ask = ask_of(
        [
            {"role": "user", "content": f"{rules}\n\nName a fish."},
            {"role": "assistant", "content": "Cod, arr."},
            {"role": "user", "content": f"{rules}\n\nName a bird."},
        ]
    )
    assert ask.text == "Name a bird."
    assert ask.boilerplate > len(rules)


def test_an_ask_that_is_all_boilerplate_stays() -> None:
    assert ask_of(REMINDER) == Ask(REMINDER)


def test_a_request_gives_its_tools_and_its_cap() -> None:
    tools = [{"type": "function", "function": {"name": "area", "description": "Area of a triangle."}}, {"odd": 1}, 7]
    fields = {"messages": [{"role": "user", "content": [{"type": "text", "text": "base 3, height 4"}]}], "tools": tools}
    request = ChatRequest("chat", "auto", fields, max_output_tokens=64)
    assert read_ask(request) == Ask("base 3, height 4", tools="area: Area of a triangle.\n: ", max_output_tokens=64)


def test_the_extract_of_a_long_conversation_is_bounded_and_keeps_the_newest() -> None:
    turns = [{"role": role, "content": f"turn {i} " * 200} for i in range(40) for role in ("user", "assistant")]
    ask = ask_of([*turns, {"role": "user", "content": "go on"}])
    assert len(ask.history) < 1400
    assert "turn 39" in ask.history
    assert "turn 3 " not in ask.history


@pytest.mark.parametrize(
    "text",
    [
        "</x>" + "<task>" * 60_000,
        "</x>" + "<system-reminder>" * 20_000,
        "</x>" + "<env a>" * 50_000,
        "\n" * 400_000,
        " at x" * 80_000,
        "\n".join(["2026-01-02 10:00"] * 7 + ["x"]) * 4000,
        "@@ -1 +1 @@\n" * 30_000,
        "a\n\n" * 100_000,
    ],
)
def test_no_text_takes_long_to_read(text: str) -> None:
    """Against a plain look at every character, which takes a few milliseconds for these."""
    begun = time.process_time()
    sum(map(ord, text))
    plain = time.process_time() - begun
    begun = time.process_time()
    ask_of([{"role": "user", "content": text}] * 2)
    assert time.process_time() - begun < 30 * plain + 0.05


def test_the_middle_of_a_very_long_turn_is_passed_over() -> None:
    ask = ask_of("begin " + "x" * 200_000 + " end")
    assert ask.text.startswith("begin ")
    assert ask.text.endswith(" end")
    assert ask.boilerplate == 200_010 - len(ask.text)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "text"]), inner),
    max_leaves=8,
)


@given(json_values, json_values)
def test_any_json_has_an_ask(messages: Any, tools: Any) -> None:
    request = ChatRequest("chat", "auto", {"messages": messages, "tools": tools})
    assert isinstance(read_ask(request).text, str)
