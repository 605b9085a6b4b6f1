"""The turns of a chat and the texts of a plain prompt: what is refused, what is measured, what it needs."""

from typing import Any

import pytest

from llmrouter.errors import RequestError
from llmrouter.gateway.messages import Prompt, read_messages, read_texts

USER = {"role": "user", "content": "Hi"}
CALL = {"id": "c0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}}


def read(*messages: Any, most: int = 10) -> tuple[Prompt, set[str]]:
    needs: set[str] = set()
    return read_messages(list(messages), most, needs), needs


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ({}, "messages"),
        ("Hi", "messages"),
        ([None], "messages[0].role"),
        (["Hi"], "messages[0].role"),
        ([{}], "messages[0].role"),
        ([{"role": "user2", "content": "Hi"}], "messages[0].role"),
        ([{"role": None, "content": "Hi"}], "messages[0].role"),
        ([{"role": ["user"], "content": "Hi"}], "messages[0].role"),
        ([{"role": {}, "content": "Hi"}], "messages[0].role"),
        ([USER, {"role": "user"}], "messages[1].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 7}], "messages[0].content"),
        ([{"role": "user", "content": {}}], "messages[0].content"),
        ([{"role": "assistant", "content": None}], "messages[0].content"),
        ([{"role": "tool", "tool_call_id": "c0"}], "messages[0].content"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "tool", "content": "x", "tool_call_id": 7}], "messages[0].tool_call_id"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": ["c0"]}], "messages[0].tool_calls"),
        ([{"role": "user", "content": ["Hi"]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "video"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": ["text"]}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [PNG, {"type": "text", "text": 7}]}], "messages[0].content[1].text"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": "http://x"}]}],
            "messages[0].content[0].image_url",
        ),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0].input_audio"),
        ([{"role": "user", "content": [{"type": "file", "file": []}]}], "messages[0].content[0].file"),
    ],
)
def test_a_bad_turn_is_named(messages, param):
    with pytest.raises(RequestError) as caught:
        read_messages(messages, 10, set())
    assert (caught.value.param, caught.value.status) == (param, 400)
    assert f"`{param}`" in caught.value.message


def test_g033_the_number_of_turns_is_capped():
    assert read(*[USER] * 3, most=3)[0].count == 3
    with pytest.raises(RequestError, match="4 turns; at most 3") as caught:
        read(*[USER] * 4, most=3)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "content": None, "audio": {"id": "a"}},
        {"role": "assistant", "content": None, "reasoning_content": "hm"},
        {"role": "assistant", "content": []},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "function", "name": "f", "content": None},
        {"role": "tool", "tool_call_id": "c0", "content": ""},
        {"role": "developer", "content": "Be terse", "name": "boss"},
    ],
)
def test_turns_that_are_legal_without_plain_content(message):
    assert read(message, USER)[0].count == 2


def test_g031_several_system_and_developer_turns_are_legal():
    prompt, needs = read(
        {"role": "system", "content": "a"},
        {"role": "system", "content": "b"},
        {"role": "developer", "content": "c"},
        USER,
    )
    assert (prompt.count, prompt.text_bytes, needs) == (4, 5, set())


@pytest.mark.parametrize(
    ("part", "need"),
    [
        (PNG, "vision"),
        ({"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}, "audio_input"),
        ({"type": "file", "file": {"file_id": "f"}}, "files"),
    ],
)
def test_g030_every_kind_of_media_is_a_need_and_counted(part, need):
    prompt, needs = read({"role": "user", "content": [{"type": "text", "text": "what?"}, part, part]})
    assert (needs, prompt.media_parts, prompt.text_bytes, prompt.last_user_text) == ({need}, 2, 5, "what?")


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ({"role": "user", "content": "abc"}, 3),
        ({"role": "user", "content": "北🌍é"}, 9),
        ({"role": "user", "content": [{"type": "text", "text": "ab"}, {"type": "text", "text": "é"}]}, 5),
        ({"role": "assistant", "content": "a", "reasoning_content": "北"}, 4),
        ({"role": "assistant", "content": None, "function_call": "北"}, 3),
        ({"role": "assistant", "content": "a", "tool_calls": None}, 1),
        ({"role": "user", "content": "a", "name": "bób"}, 5),
        ({"role": "user", "content": "a", "name": None}, 1),
        ({"role": "tool", "content": "a", "tool_call_id": "call_1"}, 7),
    ],
)
def test_the_size_of_a_turn_is_its_text_in_bytes(message, size):
    assert read(message)[0].text_bytes == size


def test_earlier_tool_calls_count_as_prompt():
    arguments = '{"city": "' + "北" * 100 + '"}'
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    size = read({"role": "assistant", "tool_calls": [call]})[0].text_bytes
    assert size >= len(arguments.encode())


def test_the_last_user_turn_is_what_routing_reads():
    prompt, _ = read(
        {"role": "user", "content": "one"}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "two"}
    )
    assert prompt.last_user_text == "two"


def test_a_conversation_is_known_by_its_turns_up_to_the_first_of_the_user():
    first = [{"role": "system", "content": "s"}, {"role": "user", "content": "u" * 5000}]
    later = [*first, {"role": "assistant", "content": "x"}, {"role": "user", "content": "more"}]
    assert read(*first)[0].opening == read(*later)[0].opening == "s" + "u" * 512


@pytest.mark.parametrize(
    ("value", "size", "texts", "first"),
    [
        ("Hi é", 5, 1, "Hi é"),
        ("", 0, 1, ""),
        (["a", "bc"], 3, 2, "a"),
        ([1, 2, 3], 9, 1, ""),
        ([[1, 2], [3]], 9, 2, ""),
    ],
)
def test_plain_prompts_are_measured(value, size, texts, first):
    prompt = read_texts(value, "prompt", 10)
    assert (prompt.text_bytes, prompt.texts, prompt.last_user_text) == (size, texts, first)
    assert prompt.count == texts, "each text has tokens of its own around it"


@pytest.mark.parametrize(
    "value", [None, [], {}, 7, True, [None], [[]], [True], [1.5], ["a", 1], [1, "a"], [[1], "a"], [["a"]]]
)
def test_a_bad_plain_prompt_is_named(value):
    with pytest.raises(RequestError) as caught:
        read_texts(value, "input", 10)
    assert (caught.value.param, caught.value.status) == ("input", 400)


def test_g033_the_number_of_texts_is_capped_and_that_of_token_ids_is_not():
    assert read_texts(list(range(100)), "prompt", 3).texts == 1
    with pytest.raises(RequestError, match="4 texts; at most 3"):
        read_texts(["a"] * 4, "prompt", 3)
