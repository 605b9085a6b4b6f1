"""From the bytes of an engine's stream to those of the client's."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.gateway.stream import DONE as OUR_DONE
from llmrouter.gateway.stream import KEEP_ALIVE, StreamRewriter, error_event
from llmrouter.testing import Answer, ToolCall, fold_chunks, parse_sse
from tests.gateway.upstream_bytes import (
    DIALECTS,
    DONE,
    FINISH,
    OURS,
    SPELLINGS,
    Rewritten,
    chunk,
    cut,
    events_of,
    lying_upstreams,
    rewrite,
    spelled,
    sse,
    tokens,
)

NASTY = (
    '"finish_reason":"stop"',
    'data: {"',
    '\n\ndata: {"id":"chatcmpl',
    '"usage":{"total_tokens":3}',
    '"error"',
    '"tool_calls"',
    "data: [DONE]",
    "\\",
    '\\"',
    '\\\\"',
    '"},"finish_reason":null}]}',
    "\n",
    "\r\n",
    "\u2028",
    "北🌍é",
    "\x00",
    "llmrouterProbe",
    "",
)
PIECES = st.lists(st.one_of(st.text(max_size=8), st.sampled_from(NASTY)), min_size=1, max_size=12)
CUTS = st.lists(st.integers(0, 5000), max_size=25)


def check_contract(result: Rewritten, *, include_usage: bool, n: int = 1) -> None:
    """What every complete stream to a client keeps, whatever the upstream."""
    assert result.raw.endswith(b"\n\n")
    assert all(line == b"" or line.startswith((b"data: ", b":")) for line in result.raw.split(b"\n"))
    *chunks, last = result.chunks
    chunks += [] if include_usage else [last]
    for value in [*chunks, last]:
        assert {name: value[name] for name in OURS} == OURS
        assert ("usage" in value) == include_usage
    if include_usage:
        assert (last["choices"], last["usage"]["total_tokens"]) == ([], 3)
        assert all(value["usage"] is None for value in chunks)
    begun: list[int] = []
    finished: list[int] = []
    for value in chunks:
        (choice,) = value["choices"]
        index = choice["index"]
        if index not in begun:
            assert index == len(begun)
            assert choice["delta"] == {"role": "assistant", "content": ""}
            begun.append(index)
        else:
            assert "role" not in choice["delta"]
        assert index not in finished
        finished += [index] if choice["finish_reason"] is not None else []
    assert sorted(finished) == begun == list(range(n))


@given(
    pieces=PIECES,
    offsets=CUTS,
    dialect=st.sampled_from(DIALECTS),
    spelling=st.sampled_from(sorted(SPELLINGS)),
    include_usage=st.booleans(),
)
def test_g020_the_fast_way_gives_the_events_of_the_slow_way(pieces, offsets, dialect, spelling, include_usage):
    events = spelled(events_of(Answer(pieces=tuple(pieces)), dialect), spelling)
    fast = rewrite(cut(b"".join(events), offsets), include_usage=include_usage)
    slow = rewrite(events, parse_all=True, include_usage=include_usage)
    assert fast.chunks == slow.chunks
    assert fast.text() == "".join(pieces)
    assert fast.rewriter.usage == slow.rewriter.usage
    assert fast.rewriter.output_chunks == slow.rewriter.output_chunks
    assert fast.rewriter.finish_reason == slow.rewriter.finish_reason == "stop"
    check_contract(fast, include_usage=include_usage)


@pytest.mark.parametrize("dialect", ["vllm", "llama_cpp"])
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("size", [1, 8])
def test_plain_events_are_not_parsed(dialect, spelling, size, monkeypatch):
    parsed = 0
    parse = StreamRewriter._parse

    def counting(self: StreamRewriter, data: bytes) -> Any:
        nonlocal parsed
        parsed += 1
        return parse(self, data)

    monkeypatch.setattr(StreamRewriter, "_parse", counting)
    pieces = tuple(f' "{number}"\n北\\' for number in range(200))
    events = spelled(events_of(Answer(pieces=pieces), dialect), spelling)
    blocks = [b"".join(events[at : at + size]) for at in range(0, len(events), size)]
    assert rewrite(blocks).text() == "".join(pieces)
    # The role chunk, the first text, the finish and the usage.
    assert parsed == 4


def test_an_envelope_that_changes_now_and_then_is_learned_anew():
    """llama.cpp writes the present second into every chunk."""
    events = [sse({**chunk({"content": "x"}), "created": number // 20}) for number in range(1000)]
    result = rewrite([*events, FINISH])
    assert result.text() == "x" * 1000
    assert result.rewriter._short_frames == 0


def test_an_envelope_that_always_changes_is_given_up_on():
    events = [sse({**chunk({"content": "x"}), "created": number}) for number in range(50)]
    result = rewrite([*events, FINISH])
    assert result.text() == "x" * 50
    assert result.rewriter._short_frames == 8


LIES = dict(lying_upstreams())


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("blocks", ["event", "byte", "whole", "pairs"])
def test_an_upstream_that_changes_its_events_midway_is_read_as_closely_as_from_the_start(lie, blocks):
    events = LIES[lie]
    whole = b"".join(events)
    sizes = {
        "event": events,
        "byte": [bytes([byte]) for byte in whole],
        "whole": [whole],
        "pairs": cut(whole, range(0, len(whole), 300)),
    }
    fast, slow = rewrite(sizes[blocks]), rewrite(events, parse_all=True)
    assert fast.chunks == slow.chunks
    assert (fast.rewriter.malformed, fast.rewriter.error) == (slow.rewriter.malformed, slow.rewriter.error)
    assert fast.rewriter.usage == slow.rewriter.usage


def test_a_wrong_order_of_keys_does_not_hide_text():
    assert rewrite(LIES["other key order"]).text() == "one two three four five six "
    assert rewrite(LIES["text after the finish"]).text() == "one two three "
    assert rewrite(LIES["end marker midway"]).text() == "one two three "


@pytest.mark.parametrize("dialect", DIALECTS)
def test_g002_usage_is_shown_once_when_asked_and_never_otherwise(dialect):
    events = events_of(Answer("one two"), dialect)
    check_contract(rewrite(events), include_usage=False)
    check_contract(rewrite(events, include_usage=True), include_usage=True)


def test_g005_usage_is_found_on_a_chunk_that_has_choices():
    usage = {"prompt_tokens": 300, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 256}}
    last = sse({**chunk({}), "choices": [{"index": 0, "delta": {}}], "usage": usage})
    result = rewrite([*tokens("hi"), FINISH, last, DONE])
    assert result.rewriter.usage == usage
    check_contract(result, include_usage=False)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_usage_that_counts_up_on_every_chunk_ends_with_the_last(dialect):
    events = events_of(Answer("one two three", usage_in="every"), dialect)
    result = rewrite(events)
    assert (result.rewriter.usage or {})["completion_tokens"] == 3
    check_contract(result, include_usage=False)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("chat", [True, False])
def test_usage_of_several_choices_is_that_of_all(dialect, chat):
    events = events_of(Answer(("one two", "three")), dialect, n=2, chat=chat)
    usage = rewrite(events, n=2, chat=chat).rewriter.usage or {}
    assert usage["completion_tokens"] == 3
    assert usage["total_tokens"] == usage["prompt_tokens"] + 3


def test_usage_of_several_prompts_is_their_sum():
    """As recorded from llama.cpp for two prompts, the event of `null` included."""
    ends = [
        {"choices": [{"text": "", "index": index, "logprobs": None, "finish_reason": "length"}], "usage": usage}
        for index, usage in enumerate(
            {
                "completion_tokens": 2,
                "prompt_tokens": p,
                "total_tokens": p + 2,
                "prompt_tokens_details": {"cached_tokens": 1},
            }
            for p in (3, 5)
        )
    ]
    texts = [{"choices": [{"text": "x", "index": index, "logprobs": None, "finish_reason": None}]} for index in (1, 0)]
    result = rewrite([sse(None), *map(sse, [*texts, *ends]), DONE], n=2, chat=False)
    assert result.rewriter.usage == {
        "prompt_tokens": 8,
        "completion_tokens": 4,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


@pytest.mark.parametrize("dialect", DIALECTS)
def test_g014_a_stream_cut_at_any_byte_is_complete_only_when_it_has_finished(dialect):
    events = events_of(Answer("one two"), dialect)
    finish = next(at for at, event in enumerate(events) if b'"stop"' in event)
    whole, finished_at = b"".join(events), len(b"".join(events[: finish + 1]))
    for size in range(len(whole)):
        result = rewrite([whole[:size]])
        # The blank line of the last event may be missing, and so may the line end before it.
        assert result.ends == (size >= finished_at - 2), whole[:size][-40:]
        if not result.ends:
            assert b"[DONE]" not in result.raw


@pytest.mark.parametrize("dialect", DIALECTS)
def test_g014_a_stream_of_two_choices_is_complete_only_when_both_have_finished(dialect):
    events = events_of(Answer("one two"), dialect, n=2)
    last = max(at for at, event in enumerate(events) if b'"stop"' in event)
    for size in range(len(events)):
        assert rewrite(events[:size], n=2).ends == (size > last)


def test_g014_an_error_event_is_what_the_sdk_raises_on():
    raw = error_event(
        {"error": {"message": "broke off", "type": "server_error", "param": None, "code": "upstream_error"}}
    )
    assert parse_sse(raw) == [
        {"error": {"message": "broke off", "type": "server_error", "param": None, "code": "upstream_error"}}
    ]


def test_g008_nothing_begins_before_there_is_output():
    preamble = [
        b": ping\n\n",
        sse(chunk({"role": "assistant", "content": ""})),
        sse(chunk({"role": "assistant", "content": None})),
        sse(chunk({"role": "assistant", "content": ""}, logprobs={"content": [], "refusal": None})),
        sse({**chunk({}), "choices": [], "prompt_filter_results": []}),
        sse(chunk({"content": ""})),
        sse(chunk(None)),
        sse(chunk({"tool_calls": []})),
    ]
    result = rewrite(preamble)
    assert (result.raw, result.rewriter.begun) == (b"", False)


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"reasoning": "x"},
        {"reasoning_content": "x"},
        {"refusal": "x"},
        {"function_call": {"name": "f", "arguments": ""}},
        {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"audio": {"id": "a"}},
    ],
)
def test_every_kind_of_output_begins_the_stream_and_counts(delta):
    result = rewrite([sse(chunk({"role": "assistant", **delta}))])
    assert result.rewriter.begun
    assert result.rewriter.output_chunks == 1
    assert result.deltas() == [{"role": "assistant", "content": ""}, delta]


def test_g030_a_token_without_text_still_brings_its_logprobs():
    entry = {"token": "<x>", "logprob": -0.1, "bytes": None, "top_logprobs": []}
    result = rewrite([sse(chunk({}, logprobs={"content": [entry]})), *tokens("a"), FINISH])
    told = [c["logprobs"]["content"] for value in result.chunks for c in value["choices"] if c.get("logprobs")]
    assert told == [[entry]]
    assert result.rewriter.output_chunks == 2


def test_g030_logprobs_come_with_every_token():
    asked = {"logprobs": True, "top_logprobs": 2}
    entry = [{"token": t, "logprob": -0.5, "bytes": [1], "top_logprobs": []} for t in "abc"]
    events = [sse(chunk({"content": e["token"]}, logprobs={"content": [e]})) for e in entry]
    folded = fold_chunks(rewrite([*events, FINISH]).chunks)
    assert folded["choices"][0]["logprobs"]["content"] == entry, asked


def test_reasoning_and_content_are_each_passed_on_under_their_name():
    events = events_of(Answer("the answer", reasoning="let me see"), "vllm")
    result = rewrite(events)
    assert (result.text(key="reasoning"), result.text()) == ("let me see", "the answer")


@pytest.mark.parametrize("finish", ["stop", "length", "content_filter", "tool_calls", "function_call"])
def test_the_finish_reason_is_the_engines(finish):
    result = rewrite([*tokens("a"), sse(chunk({}, finish=finish)), DONE])
    assert result.rewriter.finish_reason == finish
    check_contract(result, include_usage=False)


def test_an_answer_of_nothing_has_a_role_and_a_finish():
    result = rewrite([sse(chunk({"role": "assistant", "content": ""})), FINISH, DONE])
    assert result.deltas() == [{"role": "assistant", "content": ""}, {}]
    check_contract(result, include_usage=False)


def test_a_second_finish_and_what_follows_it_are_dropped():
    result = rewrite([*tokens("a"), FINISH, *tokens("b"), FINISH, sse(chunk({}, finish="length")), DONE])
    assert result.text() == "a"
    assert result.rewriter.finish_reason == "stop"
    check_contract(result, include_usage=False)


def test_an_empty_finish_reason_is_none_yet():
    """LocalAI was seen to write "" on every chunk."""
    events = [sse(chunk({"content": text}, finish="")) for text in ("a", "b", "c")]
    result = rewrite([*events, FINISH, DONE])
    assert result.text() == "abc"
    check_contract(result, include_usage=False)


@pytest.mark.parametrize("finish", ["abort", "error"])
def test_an_aborted_answer_is_an_error_and_not_an_end(finish):
    result = rewrite([*tokens("a"), sse(chunk({"content": "b"}, finish=finish)), DONE])
    assert result.rewriter.error == {"message": f"the engine ended the answer early (finish_reason `{finish}`)"}
    assert not result.rewriter.complete
    assert result.text() == "a"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"error": {"message": "boom", "code": 500}}, {"message": "boom", "code": 500}),
        ({"error": "boom"}, {"message": "boom"}),
        ({"error": {}}, {"error": {}}),
        ({"object": "error", "message": "boom", "code": 400}, {"object": "error", "message": "boom", "code": 400}),
        ({**chunk({"content": "b"}), "error": {"message": "boom"}}, {"message": "boom"}),
    ],
)
@pytest.mark.parametrize("line", [b"", b"event: error\n"])
def test_an_error_inside_the_stream_is_found(data, error, line):
    result = rewrite([*tokens("a"), line + sse(data), *tokens("c"), FINISH, DONE])
    assert result.rewriter.error == error
    assert (result.text(), result.ends) == ("a", False)


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n"])
def test_an_error_instead_of_a_stream_is_found(end):
    result = rewrite([b'{"error":\n {"message": "boom", "code": 400}}' + end])
    assert result.rewriter.error == {"message": "boom", "code": 400}


@pytest.mark.parametrize("framing", [b"%b", b"data: %b\n\n"])
def test_a_whole_answer_instead_of_a_stream_is_streamed(framing):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "Paris", "refusal": None, "tool_calls": [call]}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    whole = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
    result = rewrite([framing % json.dumps(whole).encode()])
    assert result.deltas()[1] == {"content": "Paris", "tool_calls": [{"index": 0, **call}]}
    assert result.rewriter.usage == usage
    check_contract(result, include_usage=False)


@pytest.mark.parametrize("raw", [b"", b"{", b'{"choices": []}', b"<html>", b"data: [DONE]\n\n"])
def test_what_is_no_stream_begins_nothing(raw):
    result = rewrite([raw])
    assert (result.raw, result.rewriter.begun, result.ends) == (b"", False, False)


@pytest.mark.parametrize("error", [None, "", {}, False])
def test_an_empty_error_beside_choices_is_none(error):
    result = rewrite([sse({**chunk({"content": text}), "error": error}) for text in "ab"] + [FINISH])
    assert result.text() == "ab"


@pytest.mark.parametrize("data", ["{oops", "[1]", "7", '"text"', "true", '{"a": ' + "[" * 2000])
def test_an_event_that_is_no_object_is_malformed(data):
    result = rewrite([*tokens("a"), sse(data), FINISH, DONE])
    assert result.rewriter.malformed == "an event of the stream is not a JSON object"
    assert (result.text(), result.ends) == ("a", False)


def test_an_event_too_deep_to_be_written_is_malformed():
    deep: Any = "x"
    for _ in range(300):
        deep = [deep]
    result = rewrite([*tokens("a"), sse(chunk({"content": "b"}, extra=deep)), FINISH])
    assert result.rewriter.malformed is not None
    assert result.text() == "a"


def test_an_event_without_end_is_given_up_on(monkeypatch):
    monkeypatch.setattr("llmrouter.gateway.stream._LARGEST_EVENT", 100)
    result = rewrite([*tokens("a"), b"data: " + b"x" * 60, b"x" * 60, *tokens("b")])
    assert result.rewriter.malformed == "an event of the stream is larger than 100 bytes"
    assert result.text() == "a"


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"choices": None},
        {"choices": {}},
        {"choices": [None, "x", 7]},
        {"choices": [{"index": "0"}]},
        {"choices": [{}]},
    ],
)
def test_a_chunk_without_usable_choices_is_skipped(value):
    result = rewrite([*tokens("a"), sse(value), *tokens("b"), FINISH])
    assert result.text() == "ab"


@pytest.mark.parametrize("choice", [{}, {"index": None}])
def test_a_choice_without_an_index_is_the_first(choice):
    value = {"choices": [{"delta": {"content": "a"}, **choice}]}
    assert rewrite([sse(value), FINISH]).text() == "a"


def test_fields_of_the_engine_are_passed_on_but_for_its_internals():
    extras = {"system_fingerprint": "fp", "service_tier": "default", "obfuscation": "xy", "timings": {"a": 1}}
    for value in rewrite([sse(chunk({"content": "a"}, stop_reason=None, envelope=extras))]).chunks:
        assert value["system_fingerprint"] == "fp"
        assert value["obfuscation"] == "xy"
        assert "timings" not in value


def test_g018_nothing_but_data_passes_whatever_comes_between():
    odd = [
        b"id: 7\n\n",
        b"retry: 3\n\n",
        b"event: ping\n\n",
        b": x\n\n",
        b"event: ping\ndata:\n\n",
        b"\xef\xbb\xbf: y\n\n",
    ]
    events = [piece for event in [*tokens("a", "b"), FINISH, DONE] for piece in (*odd, b"id: 1\nevent: m\n" + event)]
    whole = b"".join(events)
    for blocks in (events, [whole], cut(whole, range(len(whole)))):
        result = rewrite(blocks)
        assert result.text() == "ab"
        check_contract(result, include_usage=False)


def test_g018_the_pieces_we_add_are_whole_events():
    assert OUR_DONE == b"data: [DONE]\n\n"
    assert parse_sse(KEEP_ALIVE + OUR_DONE) == ["[DONE]"]


def test_g019_every_cut_inside_a_character_gives_the_same_bytes():
    events = [*tokens("a", "北🌍é", "b"), FINISH, DONE]
    whole = b"".join(events)
    for offset in range(len(whole)):
        assert rewrite([whole[:offset], whole[offset:]]).raw == rewrite([whole]).raw


def test_g021_the_last_event_counts_without_its_blank_line():
    whole = b"".join([*tokens("a"), FINISH])
    for end in (b"", b"\n", b"\n\n"):
        result = rewrite([whole.removesuffix(b"\n\n") + end])
        assert (result.text(), result.ends) == ("a", True)


def test_what_is_cut_after_the_last_finish_harms_nothing():
    whole = b"".join([*tokens("a"), FINISH]) + b'data: {"usage": {"prompt_t'
    result = rewrite([whole])
    assert (result.ends, result.rewriter.malformed, result.rewriter.usage) == (True, None, None)


SHAPES = {
    "g022": "duplicate_index",
    "g024": "index_once",
    "g025_repeated_id": "repeated_id",
    "g025_no_index": "no_index",
    "g025_from_one": "index_from_one",
    "g025_one_index": "one_index",
    "whole": "whole",
    "dense": "dense",
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_g025_tool_calls_of_every_shape_fold(shape, dialect):
    calls = (ToolCall("weather", '{"city": "Köln"}', id="c0"), ToolCall("clock", "{}", id="c1"))
    events = events_of(Answer(tool_calls=calls, tool_shape=shape), dialect)
    result = rewrite(cut(b"".join(events), range(0, 9000, 37)))
    message = fold_chunks(result.chunks)["choices"][0]["message"]
    assert [
        (c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message["tool_calls"]
    ] == [
        ("c0", "weather", {"city": "Köln"}),
        ("c1", "clock", {}),
    ]
    check_contract(result, include_usage=False)


def test_text_after_a_tool_call_still_passes():
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    events = [*tokens("a", "b"), sse(chunk({"tool_calls": [call]})), *tokens("c", "d"), FINISH]
    assert rewrite(events).text() == "abcd"


@st.composite
def interleaved(draw):
    """The chunks of up to four choices, each in its own order, mixed at random, sometimes two in one event."""
    n = draw(st.integers(2, 4))
    columns = [
        [{"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
        + [
            {"index": index, "delta": {"content": f"{index}{number} "}, "finish_reason": None}
            for number in range(draw(st.integers(0, 3)))
        ]
        + [{"index": index, "delta": {}, "finish_reason": "stop"}]
        for index in range(n)
    ]
    events = []
    while any(columns):
        size = draw(st.integers(1, 2))
        picked = []
        for _ in range(size):
            filled = [column for column in columns if column]
            if filled:
                picked.append(draw(st.sampled_from(filled)).pop(0))
        events.append({**chunk({}), "choices": picked})
    return n, events


@given(interleaved(), st.booleans())
def test_g034_choices_begin_in_order_and_lose_nothing_in_any_interleaving(upstream, include_usage):
    n, values = upstream
    result = rewrite([*map(sse, values), DONE], n=n, include_usage=include_usage)
    check_contract(result, include_usage=include_usage, n=n)
    sent = "".join(c["delta"].get("content") or "" for value in values for c in value["choices"])
    for index in range(n):
        mine = "".join(word for word in sent.split(" ") if word.startswith(str(index)))
        assert result.text(index).replace(" ", "") == mine


def test_g034_what_follows_the_finish_of_a_choice_held_back_is_dropped():
    values = [chunk({"content": "b"}, index=1), chunk({}, index=1, finish="stop"), chunk({"content": "c"}, index=1)]
    values += [chunk({"content": "a"}), chunk({}, finish="stop")]
    result = rewrite([*map(sse, values), DONE], n=2)
    assert (result.text(0), result.text(1)) == ("a", "b")
    check_contract(result, include_usage=False, n=2)


def test_g034_a_choice_whose_predecessor_never_begins_is_never_sent():
    values = [chunk({"content": "b"}, index=1), chunk({}, index=1, finish="stop")]
    result = rewrite([*map(sse, values), DONE], n=2)
    assert (result.raw, result.ends) == (b"", False)


@pytest.mark.parametrize("dialect", DIALECTS)
@given(pieces=PIECES, offsets=CUTS)
def test_text_completions_pass_without_roles(dialect, pieces, offsets):
    events = events_of(Answer(pieces=tuple(pieces)), dialect, chat=False)
    fast = rewrite(cut(b"".join(events), offsets), chat=False)
    slow = rewrite(events, parse_all=True, chat=False)
    assert fast.chunks == slow.chunks
    assert "".join(c["text"] for value in fast.chunks for c in value["choices"]) == "".join(pieces)
    assert all(value["object"] == "text_completion" for value in fast.chunks)
    assert fast.rewriter.complete


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 3), st.booleans())
def test_no_bytes_raise_or_make_an_answer(blocks, n, chat):
    result = rewrite(blocks, n=n, chat=chat)
    assert not result.ends
    parse_sse(result.raw)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1, 2), st.sampled_from(["", "x", "stop", "abort"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from(
                "choices index delta content tool_calls function finish_reason logprobs usage text".split()
            ),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=20,
)


@given(st.lists(VALUES, max_size=6), st.integers(1, 3), st.booleans())
def test_no_shape_of_event_raises_or_breaks_the_client(values, n, chat):
    result = rewrite([*tokens("a", "b"), *map(sse, values)], n=n, chat=chat)
    parse_sse(result.raw)
    assert result.rewriter.usage is None or isinstance(result.rewriter.usage, dict)
