"""Server-sent events out of arbitrary blocks of bytes."""

import json
import re
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.gateway.sse import EventFramer, payload


def read(blocks: list[bytes]) -> list[bytes]:
    """The data of all events, as a reader of the stream gets it."""
    framer = EventFramer()
    events = b"".join([*map(framer.push, blocks), framer.flush()])
    return [data for event in events.split(b"\n\n") if (data := payload(event)) is not None]


def cut(raw: bytes, offsets: Iterable[int]) -> list[bytes]:
    bounds = [0, *sorted({offset % (len(raw) + 1) for offset in offsets}), len(raw)]
    return [raw[start:stop] for start, stop in pairwise(bounds)]


def reference(raw: bytes) -> list[bytes]:
    """The data of all events after the letter of the specification, on text, with no eye on speed."""
    found: list[bytes] = []
    data: list[str] = []
    for line in [*re.split("\r\n|\r|\n", raw.decode().removeprefix("\ufeff")), ""]:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line:
            found += ["\n".join(data).encode()] if any(data) or len(data) > 1 else []
            data = []
    return found


LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])
TEXTS = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)
LINES = st.one_of(
    st.tuples(st.sampled_from(["data: ", "data:", "data:  "]), TEXTS).map("".join),
    TEXTS.map(": {}".format),
    st.sampled_from(["event: ping", "id: 7", "retry: 10", ":", "nonsense", "data", ""]),
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    lines = draw(st.lists(st.tuples(LINES, LINE_ENDS).map("".join), max_size=20))
    return "".join(lines).encode()


@given(streams(), st.lists(st.integers(0, 400), max_size=20))
def test_g020_any_cuts_and_line_ends_give_the_events_of_the_whole(raw, offsets):
    assert read(cut(raw, offsets)) == read([raw]) == reference(raw)


@given(st.lists(TEXTS.filter(bool), max_size=8), LINE_ENDS, st.lists(st.integers(0, 400), max_size=20))
def test_g020_reading_is_the_inverse_of_writing(texts, end, offsets):
    raw = "".join(f"data: {json.dumps(text, ensure_ascii=False)}{end}{end}" for text in texts).encode()
    assert [json.loads(data) for data in read(cut(raw, offsets))] == texts


def test_g019_a_cut_inside_a_character_changes_nothing():
    raw = 'data: {"t":"北🌍é"}\n\n'.encode()
    for offset in range(len(raw) + 1):
        assert read([raw[:offset], raw[offset:]]) == [raw[6:-2]]


def test_g021_one_byte_at_a_time_with_crlf_comments_and_no_last_blank_line():
    raw = b': hi\r\n\r\nevent: x\r\nid: 4\r\ndata: {"a":\r\ndata: 1}\r\n\r\ndata:{"b":2}'
    assert read(cut(raw, range(len(raw)))) == [b'{"a":\n1}', b'{"b":2}']


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\n\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b"\n\ndata: a\n\n", [b"a"]),
        (b"data: a", [b"a"]),
        (b"data: a\r", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: \n\n", []),
        (b"data:\n\n", []),
        (b"data\n\n", []),
        (b"dataset: a\n\n", []),
        (b": data: a\n\n", []),
        (b"event: ping\n\n", []),
        (b"id: 7\nretry: 3\n\n", []),
        (b"id: 7\ndata: a\nretry: 3\n\n", [b"a"]),
        (b"", []),
    ],
)
def test_g018_only_data_comes_out(raw, found):
    assert read([raw]) == found
    assert read(cut(raw, range(len(raw)))) == found


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_an_event_is_given_out_with_the_byte_that_ends_it(end):
    framer = EventFramer()
    assert framer.push(b"data: a" + end) == b""
    assert framer.pending
    assert payload(framer.push(end[:1]).removesuffix(b"\n\n")) == b"a"


def test_an_empty_block_between_cr_and_lf_ends_no_line():
    assert read([b"data: a\r", b"", b"\ndata: b\r\n\r\n"]) == [b"a\nb"]


def test_a_large_event_in_small_blocks_is_copied_a_bounded_number_of_times(monkeypatch):
    """Work is counted, not timed: the bytes that every search covers."""
    searched = 0

    class Counting(bytearray):
        def rfind(self, *args):
            nonlocal searched
            searched += len(self) - args[1]
            return super().rfind(*args)

    framer = EventFramer()
    monkeypatch.setattr(framer, "_rest", Counting())
    block = b"x" * 16
    for _ in range(5000):
        assert framer.push(block) == b""
    assert searched <= 5000 * (len(block) + 1)
    assert len(framer.push(b"\n\n")) == 5000 * len(block) + 2
    assert framer.pending == 0
