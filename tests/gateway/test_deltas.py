"""Tool-call deltas of every shape seen in the wild, in the one shape that clients can fold."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.gateway.deltas import ToolCalls
from llmrouter.testing.content import ToolCall, ToolShape, shape_tool_deltas

WEATHER = ToolCall("weather", '{"city": "Köln", "unit": "C"}', id="c0")
CLOCK = ToolCall("clock", '{"zone": "CET"}', id="c1")
SHAPES: tuple[ToolShape, ...] = (
    "dense",
    "whole",
    "duplicate_index",
    "index_once",
    "no_index",
    "repeated_id",
    "index_from_one",
    "one_index",
)


def normalised(chunks: list[Any]) -> list[list[dict[str, Any]]]:
    calls = ToolCalls()
    return [calls.normalise(fragments) for fragments in chunks]


def folded(chunks: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What a client makes of normalised chunks; strict about all that makes the SDK stumble."""
    calls: list[dict[str, Any]] = []
    for fragments in chunks:
        indexes = [fragment["index"] for fragment in fragments]
        assert len(set(indexes)) == len(indexes), f"one index twice in a chunk: {fragments}"
        for fragment in fragments:
            index = fragment["index"]
            body = fragment.get("function") or fragment.get("custom") or {}
            if index == len(calls):
                calls.append({"id": fragment["id"], "type": fragment["type"], "name": None, "text": ""})
            else:
                assert 0 <= index < len(calls), f"call {index} begins before call {len(calls)}"
                assert not {"id", "type"} & fragment.keys(), f"id or type twice: {fragment}"
            if "name" in body:
                assert calls[index]["name"] is None, f"name twice: {fragment}"
                calls[index]["name"] = body["name"]
            calls[index]["text"] += body.get("arguments") or body.get("input") or ""
    return calls


def made(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "name": call.name, "text": call.arguments}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_folds_to_the_calls_that_were_made(shape):
    chunks = shape_tool_deltas((WEATHER, CLOCK), shape)
    assert folded(normalised(chunks)) == [made(WEATHER), made(CLOCK)]


@pytest.mark.parametrize("shape", ["dense", "whole"])
def test_a_right_shape_stays_as_it_is(shape):
    chunks = shape_tool_deltas((WEATHER, CLOCK), shape)
    assert normalised(chunks) == chunks


def test_g022_two_entries_of_one_call_in_a_chunk_become_one():
    chunk = [
        {"index": 0, "id": "c0", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a"'}},
        {"index": 0, "function": {"arguments": ": 1}"}},
    ]
    assert normalised([chunk]) == [
        [{"index": 0, "id": "c0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    ]


@pytest.mark.parametrize("first", [{"name": "f", "arguments": None}, {"name": "f"}, None])
def test_g022_merging_loses_nothing_when_the_first_entry_has_no_arguments(first):
    chunk = [
        {"index": 0, "id": "c0", "type": "function", "function": first},
        {"index": 0, "function": {"arguments": "{}"}},
    ]
    ((call,),) = normalised([chunk])
    assert call["function"]["arguments"] == "{}"


def test_g024_a_continuation_with_nothing_but_the_id_belongs_to_its_call():
    chunks = [
        [{"index": 0, "id": "c0", "type": "function", "function": {"name": "f", "arguments": ""}}],
        [{"index": 1, "id": "c1", "type": "function", "function": {"name": "g", "arguments": ""}}],
        [{"id": "c0", "function": {"arguments": '{"a"'}}],
        [{"id": "c1", "function": {"arguments": "{}"}}],
        [{"id": "c0", "function": {"arguments": ": 1}"}}],
    ]
    assert [call["text"] for call in folded(normalised(chunks))] == ['{"a": 1}', "{}"]


def test_g025_a_second_id_on_an_index_begins_a_second_call():
    chunks = shape_tool_deltas((WEATHER, CLOCK), "one_index")
    assert [call["id"] for call in folded(normalised(chunks))] == ["c0", "c1"]


def test_g025_a_call_without_an_id_gets_one_and_keeps_it():
    chunks = [
        [{"index": 0, "id": "", "function": {"name": "f", "arguments": "{"}}],
        [{"index": 0, "id": None, "function": {"arguments": "}"}}],
        [{"index": 1, "function": {"name": "g", "arguments": "{}"}}],
    ]
    one, two = folded(normalised(chunks))
    assert (one["text"], two["text"]) == ("{}", "{}")
    assert one["id"].startswith("call_")
    assert one["id"] != two["id"]


def test_g025_an_id_that_comes_late_names_the_call_but_is_not_told_again():
    chunks = [
        [{"index": 0, "function": {"name": "f", "arguments": ""}}],
        [{"index": 0, "id": "late", "function": {"arguments": "{"}}],
        [{"id": "late", "function": {"arguments": "}"}}],
    ]
    (call,) = folded(normalised(chunks))
    assert call["text"] == "{}"


def test_a_name_that_comes_late_is_told_once():
    chunks = [
        [{"index": 0, "id": "c0", "type": "function", "function": {"name": None, "arguments": ""}}],
        [{"index": 0, "function": {"name": "f"}}],
        [{"index": 0, "function": {"name": "f", "arguments": "{}"}}],
    ]
    assert folded(normalised(chunks)) == [{"id": "c0", "type": "function", "name": "f", "text": "{}"}]


def test_a_custom_tool_keeps_its_type_and_input():
    chunks = [
        [{"index": 0, "id": "c0", "type": "custom", "custom": {"name": "sh", "input": "l"}}],
        [{"index": 0, "custom": {"name": "sh", "input": "s"}}],
    ]
    assert folded(normalised(chunks)) == [{"id": "c0", "type": "custom", "name": "sh", "text": "ls"}]


def test_a_type_that_is_missing_is_taken_from_what_the_call_holds():
    ((function,), (custom,)) = normalised([[{"id": "a", "function": {"name": "f"}}], [{"id": "b", "custom": {}}]])
    assert (function["type"], custom["type"]) == ("function", "custom")


@pytest.mark.parametrize("junk", [None, 7, "text", [], True])
def test_what_is_no_fragment_is_left_out(junk):
    assert normalised([[junk]]) == [[]]


ARGUMENTS = st.text(max_size=20).map(lambda text: json.dumps({"a": text}))


@given(st.lists(ARGUMENTS, min_size=1, max_size=4), st.sampled_from(SHAPES), st.data())
def test_g025_any_calls_in_any_shape_and_any_chunking_fold_alike(arguments, shape, data):
    calls = tuple(ToolCall(f"f{number}", text, id=f"c{number}") for number, text in enumerate(arguments))
    entries = list(itertools.chain(*shape_tool_deltas(calls, shape)))
    chunks = []
    while entries:
        size = data.draw(st.integers(1, len(entries)))
        chunks.append(entries[:size])
        entries = entries[size:]
    assert folded(normalised(chunks)) == [made(call) for call in calls]


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1, 3), st.sampled_from(["", "c0", "f"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from(["index", "id", "type", "function", "custom", "name", "arguments"]), inner, max_size=5
        ),
    ),
    max_leaves=12,
)


@given(st.lists(st.lists(JUNK, max_size=4), max_size=4))
def test_rubbish_never_raises_and_indexes_stay_dense(chunks):
    seen = 0
    for fragments in normalised(chunks):
        indexes = [fragment["index"] for fragment in fragments]
        assert len(set(indexes)) == len(indexes)
        for index in indexes:
            assert 0 <= index <= seen
            seen = max(seen, index + 1)
