"""The frame of plain events: it takes exactly the texts that JSON allows, and nothing else."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.gateway.frames import Frame, learn, plain_text
from tests.gateway.upstream_bytes import chunk, sse

BEFORE, AFTER = b'data: {"choices":[{"delta":{"content":"', b'"}}]}\n\n'
OUR_BEFORE, OUR_AFTER = b'data: {"id":"ours","choices":[{"delta":{"content":"', b'"}}]}\n\n'
FRAME = Frame(BEFORE, AFTER, AFTER + BEFORE, OUR_BEFORE, OUR_AFTER, OUR_AFTER + OUR_BEFORE)

ODD = st.sampled_from(
    [
        b'"',
        b"\\",
        b'\\"',
        b"\\\\",
        b"\\n",
        b"\n",
        b"\x00",
        b"\t",
        b"\\u00e9",
        b"\\ud83c",
        b"\\udf0d",
        b"\\ud83c\\udf0d",
        b"\\uD83C\\uDF0D",
        b"\\x",
        b"\\u12",
        b"\xe5\x8c\x97",
        b"\xe5",
        b"\x8c\x97",
        b"a",
        AFTER,
        BEFORE,
    ]
)
TEXTS = st.one_of(st.binary(max_size=6), st.lists(ODD, max_size=5).map(b"".join))


def is_json_text(inside: bytes) -> bool:
    try:
        return isinstance(orjson.loads(b'"%b"' % inside), str)
    except orjson.JSONDecodeError:
        return False


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_texts_pass_if_and_only_if_a_json_reader_would_take_each(texts):
    exchanged = FRAME.exchange(b"".join(BEFORE + text + AFTER for text in texts))
    if all(map(is_json_text, texts)):
        ours = b"".join(OUR_BEFORE + text + OUR_AFTER for text in texts)
        assert exchanged == (ours, sum(1 for text in texts if text))
    else:
        assert exchanged is None


@pytest.mark.parametrize(
    "events",
    [
        b"",
        BEFORE,
        AFTER,
        BEFORE + AFTER[1:],
        BEFORE[:-1] + AFTER,
        BEFORE + b"a" + AFTER + b"\n",
        b"\n" + BEFORE + b"a" + AFTER,
        b": ping\n\n" + BEFORE + b"a" + AFTER,
        BEFORE + b"a" + AFTER + b": ping\n\n",
        BEFORE + b"a" + AFTER + b"id: 7\n" + BEFORE + b"b" + AFTER,
        BEFORE + b"a" + AFTER + b"data: [DONE]\n\n",
    ],
)
def test_anything_beside_plain_events_must_be_read(events):
    assert FRAME.exchange(events) is None


def learned(event: bytes, part: dict[str, object]) -> Frame | None:
    value = orjson.loads(event[6:])
    return learn(event[:-2], value, part, lambda choice: sse({"choices": [choice]}))


def part(**delta: object) -> dict[str, object]:
    return {"index": 0, "delta": delta, "finish_reason": None}


@pytest.mark.parametrize("text", ["a", 'say "hi" \\', "北\n", "content", '"content":"x"', ""])
def test_a_frame_is_found_around_any_text(text):
    frame = learned(sse(chunk({"content": text})), part(content="seen"))
    assert frame is not None
    assert frame.exchange(sse(chunk({"content": "next"}))) == (sse({"choices": [part(content="next")]}), 1)


def test_a_key_of_the_same_name_elsewhere_is_not_taken_for_the_text():
    value = {"content": "outer", "choices": [{"index": 0, "filter": {"content": "inner"}, "delta": {"content": "a"}}]}
    assert learned(sse(value), part(content="a")) is None


@pytest.mark.parametrize(
    ("choice", "key"),
    [
        (part(content="a"), "content"),
        (part(reasoning="a", content=""), "reasoning"),
        (part(refusal="a"), "refusal"),
        (part(content="a", reasoning="b"), None),
        (part(content="a", audio={}), "content"),
        (part(content=7), None),
        (part(tool_calls=[{}]), None),
        (part(), None),
        ({**part(content="a"), "finish_reason": "stop"}, None),
        ({"index": 0, "text": "a", "finish_reason": None}, "text"),
        ({"index": 0, "text": "a", "finish_reason": "stop"}, None),
    ],
)
def test_which_choices_are_plain(choice, key):
    assert plain_text(choice) == key
