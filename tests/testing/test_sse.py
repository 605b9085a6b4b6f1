"""The strict reader and the fold, on what they take and what they refuse."""

from typing import Any

import pytest

from llmrouter.testing import HandClock, event, fold_chunks, parse_sse


def chunk(*choices: Any, **fields: Any) -> dict[str, Any]:
    envelope = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**envelope, "choices": list(choices), **fields}


def part(delta: dict[str, Any], index: int = 0, finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish}


def role(index: int = 0) -> dict[str, Any]:
    return part({"role": "assistant", "content": ""}, index)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_events_comments_and_line_ends(end):
    raw = b': hi\n\ndata: {"a":\ndata: 1}\n\n: x\nevent: error\ndata:{}\n\ndata: [DONE]\n\n: bye\n\n'.replace(
        b"\n", end
    )
    assert parse_sse(raw) == [{"a": 1}, {}, "[DONE]"]


def test_nothing_is_no_event():
    assert parse_sse(b"") == []


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"id: 1\ndata: {}\n\n", "choke"),
        (b"retry: 3\n\n", "choke"),
        (b"dta: {}\n\n", "choke"),
        (b"event: ping\n\n", "without data"),
        (b"event: ping\n", "without data"),
        (b"data: {}\n", "lacks its blank line"),
        (b"data: {}", "ends inside a line"),
        (b"data: {\n\n", "no JSON"),
        (b"data: \xff\n\n", "UTF-8"),
        (b"data: [DONE]\n\ndata: {}\n\n", "after"),
        (b"data: [DONE]\n\ndata: [DONE]\n\n", "after"),
    ],
)
def test_g018_what_clients_choke_on_is_refused(raw, words):
    with pytest.raises(AssertionError, match=words):
        parse_sse(raw)


def test_an_event_is_what_the_reader_reads():
    assert parse_sse(event({"t": "北🌍é\n"})) == [{"t": "北🌍é\n"}]


def test_a_stream_folds_into_one_completion():
    call = {"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": ""}}
    whole = fold_chunks(
        [
            chunk(role()),
            chunk(role(1)),
            chunk(part({"content": "a", "reasoning": "r"}) | {"logprobs": {"content": [1], "refusal": None}}),
            chunk(part({"tool_calls": [call]}, 1)),
            chunk(part({"content": "b"}) | {"logprobs": {"content": [2], "refusal": None}}),
            chunk(part({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}, 1)),
            chunk(part({}, 0, "stop") | {"stop_reason": 5}),
            chunk(part({}, 1, "tool_calls")),
            chunk(usage={"total_tokens": 3}, system_fingerprint="s"),
            "[DONE]",
        ]
    )
    assert whole == {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "ab", "reasoning": "r"},
                "logprobs": {"content": [1, 2], "refusal": []},
                "finish_reason": "stop",
                "stop_reason": 5,
            },
            {
                "index": 1,
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
                "logprobs": None,
                "finish_reason": "tool_calls",
            },
        ],
        "usage": {"total_tokens": 3},
        "system_fingerprint": "s",
    }


def test_a_cut_stream_folds_to_a_choice_without_a_finish():
    assert fold_chunks([chunk(role())])["choices"][0]["finish_reason"] is None


def tool(index: int | None, **entry: Any) -> dict[str, Any]:
    return chunk(part({"tool_calls": [{**entry, "index": index}]}))


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([{"error": "x"}], "ends in an error: x"),
        ([chunk(role()) | {"object": "chat.completion"}], "not a chunk"),
        ([chunk(role()), chunk(role(1), id="other")], "id changes"),
        ([chunk(role()), chunk(usage={}), chunk(usage={"a": 1})], "usage is told twice"),
        ([chunk(part({"content": "x"}))], "begins without a role"),
        ([chunk(role(1))], "choice 1 begins before choice 0"),
        ([chunk(role()), chunk(part({}, 0, "stop")), chunk(part({"content": "x"}))], "goes on after its finish"),
        ([chunk(role()), tool(1, id="t", function={"name": "f"})], "call 1 begins before tool call 0"),
        ([chunk(role()), tool(0, function={"name": "f"})], "begins without an id"),
        ([chunk(role()), tool(0, id="t", function={})], "begins without a name"),
        ([chunk(role()), tool(None, id="t", function={"name": "f"})], "without an index"),
        ([chunk(role()), *[tool(0, id="t", function={"name": "f"})] * 2], "named twice"),
        ([chunk(role()), tool(0, id="t", function={"name": "f"}), tool(0, function={"name": "f"})], "named twice"),
        ([chunk(role()), chunk(part({"tool_calls": [{"index": 0, "id": "t"}, {"index": 0}]}))], "one index twice"),
    ],
)
def test_g025_g034_chunks_that_break_the_contract_are_refused(chunks, words):
    with pytest.raises(AssertionError, match=words):
        fold_chunks(chunks)


def test_the_hand_clock_moves_only_by_hand_and_only_forward():
    clock = HandClock(5.0)
    assert (clock(), clock()) == (5.0, 5.0)
    clock.advance(0.5)
    assert clock() == 5.5
    with pytest.raises(ValueError, match="go back"):
        clock.advance(-1)
