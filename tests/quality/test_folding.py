"""The chunks of a stream, put together again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.quality.folding import fold


def stream(*chunks: dict[str, Any]) -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks) + b"data: [DONE]\n\n"


def delta(index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": index, "delta": fields, "finish_reason": finish}]}


@given(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=5)), max_size=20))
def test_the_words_of_each_choice_come_in_their_order(pieces: list[tuple[int, str]]):
    events = stream(*(delta(index, content=text) for index, text in pieces))
    expected = {index: "".join(text for each, text in pieces if each == index) for index, _ in pieces}
    assert {choice["index"]: choice["message"]["content"] for choice in fold(events)} == expected


def test_tool_calls_are_put_together():
    events = stream(
        delta(role="assistant"),
        delta(tool_calls=[{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a'}}]),
        delta(tool_calls=[{"index": 1, "id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '": 1}'}}]),
        delta(finish="tool_calls"),
    )
    [choice] = fold(events)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]


def test_plain_completions_and_comments_and_usage_are_understood():
    events = b": keep-alive\n\n" + stream(
        {"choices": [{"index": 0, "text": "ab"}]},
        {"choices": [{"index": 0, "text": "c", "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 1}},
    )
    assert fold(events) == [{"index": 0, "finish_reason": "stop", "text": "abc"}]


@pytest.mark.parametrize("events", [b"data: {broken\n\n", b"data: 5\n\n", stream({"error": {"message": "no"}})])
def test_what_is_no_stream_of_an_answer_is_refused(events: bytes):
    with pytest.raises(ValueError):
        fold(events)
