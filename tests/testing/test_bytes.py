"""The same answer in other bytes."""

import gzip
import json
import zlib
from typing import Any

import httpx
import pytest

from llmrouter.testing import (
    Answer,
    Cut,
    Dribble,
    EndByClose,
    FakeBackend,
    Gzip,
    LineEnds,
    RawSse,
    Reset,
    SplitData,
    Step,
    WithLines,
    WithoutDone,
    WithoutFinalBlankLine,
    WithoutSpace,
    event,
    parse_sse,
)
from tests.testing.raw import RawClient, fetch, request_bytes


async def body_of(step: Step, **fields: Any) -> bytes:
    async with FakeBackend(step) as backend:
        return (await fetch(backend, **{"stream": True, **fields}))[2]


async def test_g019_a_cut_inside_a_character_makes_two_chunks_with_the_same_bytes():
    text = "北🌍é"
    whole = await body_of(RawSse(event({"t": text})))
    start = whole.index(text.encode())
    for offset in range(start, start + len(text.encode())):
        async with (
            FakeBackend(Cut(RawSse(event({"t": text})), at=(offset,))) as backend,
            RawClient(backend.port) as client,
        ):
            await client.send(stream=True)
            await client.headers()
            assert [chunk async for chunk in client.chunks()] == [whole[:offset], whole[offset:]]
            assert backend.calls[0].chunks_sent == 1


async def test_a_cut_on_the_wire_counts_the_head_too():
    whole = await body_of(Answer("hi"), stream=False)
    async with FakeBackend(Cut(Answer("hi"), at=(3, 40), wire=True)) as backend:
        status, _, body = await fetch(backend)
    assert (status, body) == (200, whole)


@pytest.mark.parametrize("wire", [False, True])
async def test_g021_one_byte_a_write_is_still_the_same_answer(wire):
    whole = await body_of(Answer("hi 🌍"))
    async with FakeBackend(Dribble(Answer("hi 🌍"), wire=wire)) as backend, RawClient(backend.port) as client:
        await client.send(stream=True)
        await client.headers()
        chunks = [chunk async for chunk in client.chunks()]
    pieces = [event + b"\n\n" for event in whole.split(b"\n\n")[:-1]] if wire else [bytes([byte]) for byte in whole]
    assert chunks == pieces


async def test_writes_arrive_one_by_one_and_not_as_one():
    """A client in the same loop sees the first byte before the second is written."""
    async with FakeBackend(Dribble(Answer("hi"), wire=True)) as backend, RawClient(backend.port) as client:
        await client.send()
        await client.reader.readexactly(1)
        assert backend.calls[0].bytes_sent < 20


@pytest.mark.parametrize("end", ["\r\n", "\r"])
async def test_other_line_ends(end):
    body = await body_of(LineEnds(Answer("hi"), end))
    assert body.count(end.encode()) == 2 * len(parse_sse(body))
    assert b"\n" not in body.replace(end.encode(), b"")
    assert parse_sse(body) == parse_sse(await body_of(Answer("hi")))


async def test_g018_lines_that_clients_choke_on():
    body = await body_of(WithLines(Answer("hi"), in_each=("id: 7",), between=(": ping", "retry: 9", "event: ping")))
    first = b": ping\n\nretry: 9\n\nevent: ping\n\nid: 7\ndata: {"
    assert body.startswith(first)
    assert body.count(b"id: 7\n") == body.count(b"retry: 9\n\n") == body.count(b"data: ")
    with pytest.raises(AssertionError, match="retry"):
        parse_sse(body)


async def test_data_without_a_space_and_over_several_lines():
    plain = parse_sse(await body_of(Answer("hi")))
    spaceless, spread = await body_of(WithoutSpace(Answer("hi"))), await body_of(SplitData(Answer("hi")))
    assert b"data: " not in spaceless
    assert spread.count(b"data: ") > 5 * len(plain)
    assert parse_sse(spaceless) == parse_sse(spread) == plain


async def test_missing_ends():
    whole = await body_of(Answer("hi"))
    assert await body_of(WithoutDone(Answer("hi"))) == whole.removesuffix(b"data: [DONE]\n\n")
    assert await body_of(WithoutFinalBlankLine(Answer("hi"))) == whole.rstrip(b"\n")


async def test_a_body_that_ends_with_the_connection():
    async with FakeBackend(EndByClose(Answer("hi"))) as backend, RawClient(backend.port) as client:
        await client.send(stream=True)
        _, headers = await client.headers()
        body = await client.rest()
    assert not {"content-length", "transfer-encoding"} & set(headers)
    assert parse_sse(body)[-1] == "[DONE]"


async def test_gzip_of_a_plain_body_and_of_each_event_of_a_stream():
    async with FakeBackend(Gzip(Answer("hi")), Gzip(Answer("hi")), Gzip(Answer("hi"))) as backend:
        _, headers, body = await fetch(backend)
        assert headers["content-encoding"] == "gzip"
        assert json.loads(gzip.decompress(body))["choices"][0]["message"]["content"] == "hi"
        async with RawClient(backend.port) as client:
            await client.send(stream=True)
            await client.headers()
            unpacker = zlib.decompressobj(wbits=31)
            events = [unpacker.decompress(chunk) async for chunk in client.chunks()]
            assert all(event.endswith(b"\n\n") for event in events[:-1])
            assert parse_sse(b"".join(events))[-1] == "[DONE]"
        async with httpx.AsyncClient(verify=False) as toolkit:
            answer = await toolkit.post(f"{backend.url}/chat/completions", json={"messages": []})
            assert answer.json()["choices"][0]["message"]["content"] == "hi"


async def test_wrappers_for_streams_leave_plain_answers_alone():
    plain = await body_of(Answer("hi"), stream=False)
    for wrapper in (WithLines, WithoutDone, WithoutFinalBlankLine, SplitData, LineEnds, WithoutSpace):
        assert await body_of(wrapper(Answer("hi")), stream=False) == plain


async def cut_off(step: Step) -> None:
    async with FakeBackend(step) as backend, RawClient(backend.port) as client:
        await client.send()
        assert await client.rest() == b""


async def test_a_wrapper_around_a_broken_connection_is_refused():
    with pytest.raises(ExceptionGroup) as caught:
        await cut_off(Gzip(Reset(Answer())))
    assert "Gzip must wrap an answer directly" in str(caught.value.exceptions[0])


async def test_pipelined_requests_are_answered_in_order():
    async with FakeBackend(Answer("a"), Answer("b")) as backend, RawClient(backend.port) as client:
        client.writer.write(request_bytes() + request_bytes())
        texts = [json.loads((await client.answer())[2])["choices"][0]["message"]["content"] for _ in range(2)]
    assert texts == ["a", "b"]
