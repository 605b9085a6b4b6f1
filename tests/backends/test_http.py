"""The lean HTTP client on real sockets: bodies in every framing, time limits, re-use, cancellation, back-pressure."""

import asyncio
import gc
import ssl
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmrouter.backends import http_reply
from llmrouter.backends.http import HttpClient, HttpReply
from llmrouter.protocols import BackendFault, Timeouts
from llmrouter.testing import (
    Answer,
    BlackHole,
    Bytes,
    Cut,
    Dribble,
    EndByClose,
    FakeBackend,
    Gzip,
    Hang,
    Held,
    Huge,
    NotHttp,
    RawHttp,
    Reset,
    Signal,
    Slow,
    Step,
    Truncate,
)
from llmrouter.types import Failure
from tests.backends.raw_server import BODY, PATIENT, Peer, call, client_of, fetch, on_both_loops, raw_server, until

STREAM = BODY[:-1] + b', "stream": true}'
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
PEM = Path(__file__).parent / "fixtures" / "localhost.pem"


def limits(**changes: float) -> Timeouts:
    values = {"connect_s": 5.0, "first_byte_s": 5.0, "between_chunks_s": 5.0, "total_s": 10.0, **changes}
    return Timeouts(**values)


async def fault_of(client: HttpClient, **options: Any) -> BackendFault:
    with pytest.raises(BackendFault) as caught:
        await fetch(client, **options)
    return caught.value


FRAMINGS: dict[str, Callable[[Step], Step]] = {
    "as it is": lambda step: step,
    "until the end of the connection": EndByClose,
    "compressed": Gzip,
    "compressed until the end of the connection": lambda step: EndByClose(Gzip(step)),
    "byte by byte": lambda step: Dribble(step, 1),
    "byte by byte on the wire": lambda step: Dribble(step, 1, wire=True),
    "compressed, byte by byte on the wire": lambda step: Dribble(Gzip(step), 1, wire=True),
}


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("body", [BODY, STREAM], ids=["length", "chunked"])
@on_both_loops
async def test_a_body_is_the_same_in_every_framing(framing, body):
    answer = Answer("北🌍é two three")
    async with FakeBackend(answer, FRAMINGS[framing](answer)) as backend, client_of(backend.url) as client:
        plain = await fetch(client, body=body)
        framed = await fetch(client, body=body)
    assert framed.replace(b"fake-2", b"fake-1") == plain
    assert "北🌍é".encode() in plain.replace(b'"}', b"")


@on_both_loops
async def test_g019_a_chunked_answer_may_be_cut_at_every_byte_of_the_wire():
    whole = (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab\xe5\x8c\x97\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n"
    )
    step = RawHttp(whole, then="keep")
    cuts = [Cut(step, at=(offset,), wire=True) for offset in range(1, len(whole))]
    async with FakeBackend(*cuts) as backend, client_of(backend.url) as client:
        for _ in cuts:
            assert await fetch(client) == b"ab\xe5\x8c\x970123456789"
        assert backend.connections_made == 1


@on_both_loops
async def test_what_is_sent_and_how_headers_are_read():
    seen: list[bytes] = []

    async def serve(peer: Peer) -> None:
        seen.append(await peer.request())
        await peer.write(b"HTTP/1.1 201 Made\r\nX-Mixed-CASE:  Kept Case \r\ncontent-LENGTH: 2\r\nempty:\r\n\r\nhi")

    async with raw_server(serve) as server, client_of(server.url + "/") as client:
        reply = await call(client, headers=b"x-one: 1\r\n")
        assert (reply.status, await reply.read()) == (201, b"hi")
        assert (reply.header("x-mixed-case"), reply.header("empty"), reply.header("missing")) == ("Kept Case", "", None)
        reply.close()
        host = f"127.0.0.1:{server.port}".encode()
    assert seen == [
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: %b\r\nx-one: 1\r\ncontent-length: %d\r\n\r\n%b"
        % (host, len(BODY), BODY)
    ]


@on_both_loops
async def test_a_large_request_arrives_whole():
    body = b"x" * 8_000_000
    sizes: list[int] = []

    async def serve(peer: Peer) -> None:
        sizes.append(len((await peer.request()).partition(b"\r\n\r\n")[2]))
        await peer.write(OK)

    async with raw_server(serve) as server, client_of(server.url) as client:
        assert await fetch(client, body=body) == b"hi"
    assert sizes == [len(body)]


@pytest.mark.parametrize(
    ("wire", "status", "body"),
    [
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"hi"),
        (b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"hi"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 200, b""),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\nno", 503, b"no"),
    ],
)
@on_both_loops
async def test_interim_and_empty_responses(wire, status, body):
    async with FakeBackend(RawHttp(wire, then="keep"), RawHttp(OK, then="keep")) as backend:
        async with client_of(backend.url) as client:
            reply = await call(client)
            assert (reply.status, await reply.read(), reply.header("link")) == (status, body, None)
            reply.close()
            assert await fetch(client) == b"hi"
        assert backend.connections_made == 1


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.0 200 OK\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi",
    ],
)
@on_both_loops
async def test_a_connection_that_ends_with_its_answer_is_not_used_again(wire):
    async with FakeBackend(RawHttp(wire), RawHttp(OK, then="keep")) as backend, client_of(backend.url) as client:
        assert await fetch(client) == b"hi"
        assert client.idle_connections == 0
        assert await fetch(client) == b"hi"
        assert backend.connections_made == 2


@pytest.mark.parametrize(
    ("step", "failure"),
    [
        (NotHttp(), Failure.PROTOCOL),
        (RawHttp(b"\r\n\r\n\r\nHELLO"), Failure.PROTOCOL),
        (RawHttp(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"), Failure.PROTOCOL),
        (RawHttp(b"HTTP/1.1 200 OK\r\ncontent-length: two\r\n\r\n"), Failure.PROTOCOL),
        (RawHttp(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"), Failure.PROTOCOL),
        (RawHttp(b"HTTP/1.1 200 OK\r\n" + b"x-long: y\r\n" * 20_000, then="hang"), Failure.PROTOCOL),
        (RawHttp(b"HTTP/1.1 200 OK\r\nx-long: " + b"y" * 200_000, then="hang"), Failure.PROTOCOL),
        (RawHttp(b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 2\r\n\r\nhi"), Failure.PROTOCOL),
        (RawHttp(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nhi"), Failure.PROTOCOL),
        (Reset(after="request"), Failure.RESET),
        (Reset(after="headers"), Failure.RESET),
        (Reset(after="half"), Failure.RESET),
        (Truncate(after="request"), Failure.RESET),
        (Truncate(after="headers"), Failure.RESET),
        (Truncate(after="half"), Failure.RESET),
        (Truncate(Answer(), after=1), Failure.RESET),
        (RawHttp(b"HTTP/1.1 200", then="reset"), Failure.RESET),
        (RawHttp(b"HTTP/1.1 200 OK\r\n\r\nhalf of i", then="reset"), Failure.RESET),
    ],
)
@on_both_loops
async def test_g012_what_is_no_whole_answer_is_a_fault_of_its_kind(step, failure):
    """On a fresh connection each is reported at once and nothing is sent twice."""
    async with FakeBackend(step) as backend, client_of(backend.url) as client:
        body = STREAM if isinstance(step, Truncate) and step.after == 1 else BODY
        fault = await fault_of(client, body=body)
        assert fault.failure is failure, fault.message
        assert fault.message
        assert (len(backend.calls), backend.connections_made, client.idle_connections) == (1, 1, 0)


@on_both_loops
async def test_a_truncated_stream_gives_what_arrived_before_its_fault():
    async with FakeBackend(Truncate(Answer("one two"), after=3)) as backend, client_of(backend.url) as client:
        reply = await call(client, body=STREAM)
        seen: list[bytes] = []

        async def read() -> None:
            while block := await reply.next_block():
                seen.append(block)

        with pytest.raises(BackendFault):
            await read()
        reply.close()
    assert b"".join(seen).count(b"\n\n") == 3


@on_both_loops
async def test_a_refused_connection_and_a_name_that_is_none():
    async with FakeBackend() as backend:
        url = backend.url
    for address in (url, "http://a..b/v1", "http://127.0.0.1:1/v1"):
        async with client_of(address) as client:
            assert (await fault_of(client)).failure is Failure.CONNECT


@on_both_loops
async def test_an_answer_larger_than_the_cap_is_a_fault():
    steps = (Huge(200_000), Huge(200_000, "chunked"), Answer())
    async with FakeBackend(*steps) as backend, client_of(backend.url, max_body_bytes=100_000) as client:
        for _ in range(2):
            fault = await fault_of(client)
            assert (fault.failure, fault.message) == (Failure.PROTOCOL, "the answer is larger than 100000 bytes")
        assert b"choices" in await fetch(client)


@on_both_loops
async def test_an_answer_that_unpacks_to_more_than_the_cap_is_a_fault():
    step = Gzip(Bytes(b"0" * 10_000_000))
    async with FakeBackend(step) as backend, client_of(backend.url, max_body_bytes=100_000) as client:
        assert (await fault_of(client)).failure is Failure.PROTOCOL


@pytest.mark.parametrize(
    "packed", [zlib.compress(b"hi" * 50)[:-6], zlib.compress(b"hi") + b"more"], ids=["short", "long"]
)
@on_both_loops
async def test_compression_that_does_not_end_with_the_body_is_a_fault(packed):
    step = Bytes(packed, headers={"content-encoding": "deflate"})
    async with FakeBackend(step) as backend, client_of(backend.url) as client:
        assert (await fault_of(client)).failure is Failure.PROTOCOL


@pytest.mark.parametrize(
    ("step", "timeouts", "body", "words"),
    [
        (Hang(after="request"), limits(first_byte_s=0.02), BODY, "first byte"),
        (Hang(after="headers"), limits(first_byte_s=0.02), BODY, "first byte"),
        (Hang(Answer("one two"), after=1), limits(between_chunks_s=0.02), STREAM, "next chunk"),
        (Hang(after="half"), limits(between_chunks_s=0.02), BODY, "next chunk"),
        (Hang(after="request"), limits(total_s=0.02), BODY, "end of the answer"),
        (Hang(Answer("one two"), after=1), limits(total_s=0.02), STREAM, "end of the answer"),
        (Slow(Answer("a " * 200), between_chunks_s=0.004), limits(total_s=0.04), STREAM, "end of the answer"),
    ],
)
@on_both_loops
async def test_every_phase_has_its_time_limit(step, timeouts, body, words):
    async with FakeBackend(step) as backend, client_of(backend.url) as client:
        fault = await fault_of(client, timeouts=timeouts, body=body)
        assert (fault.failure, fault.message) == (Failure.TIMEOUT, f"no {words} within the time limit")
        await backend.calls[0].disconnected.wait()
        assert len(backend.calls) == 1


@on_both_loops
async def test_a_steady_stream_may_take_longer_than_any_wait():
    step = Slow(Answer("a " * 20), between_chunks_s=0.004)
    async with FakeBackend(step) as backend, client_of(backend.url) as client:
        body = await fetch(client, body=STREAM, timeouts=limits(first_byte_s=0.05, between_chunks_s=0.05))
    assert body.count(b"data: ") > 20


@pytest.mark.parametrize("changes", [{"connect_s": 0.02}, {"total_s": 0.02}], ids=str)
@on_both_loops
async def test_connecting_has_its_time_limit_and_nothing_was_sent(changes):
    with BlackHole() as hole:
        async with client_of(hole.url) as client:
            assert (await fault_of(client, timeouts=limits(**changes))).failure is Failure.CONNECT


@on_both_loops
async def test_calls_one_after_the_other_share_a_connection():
    async with FakeBackend() as backend, client_of(backend.url) as client:
        for body in (BODY, STREAM, BODY):
            await fetch(client, body=body)
            assert client.idle_connections == 1
        assert (len(backend.calls), backend.connections_made) == (3, 1)


@on_both_loops
async def test_calls_at_the_same_time_have_connections_of_their_own():
    gate = Signal()
    async with FakeBackend(default=Held(gate)) as backend, client_of(backend.url) as client:
        calls = [asyncio.ensure_future(fetch(client)) for _ in range(5)]
        await backend.until(lambda: backend.in_flight == 5)
        assert len({seen.connection for seen in backend.calls}) == 5
        gate.set()
        await asyncio.gather(*calls)
        assert client.idle_connections == 5
        await fetch(client)
        assert backend.connections_made == 5


@on_both_loops
async def test_g084_a_connection_that_died_silently_costs_one_more_and_no_failure():
    """The server resets it on the next request, as a client sees that meets a keep-alive just given up."""
    async with FakeBackend(stale_after=1) as backend, client_of(backend.url) as client:
        await fetch(client)
        assert b"choices" in await fetch(client)
        assert (backend.stale_drops, backend.connections_made, len(backend.calls)) == (1, 2, 2)


@on_both_loops
async def test_g084_only_one_of_many_dead_connections_is_tried():
    gate = Signal()
    held = [Held(gate)] * 3
    async with FakeBackend(*held, stale_after=1) as backend, client_of(backend.url) as client:
        calls = [asyncio.ensure_future(fetch(client)) for _ in held]
        await backend.until(lambda: backend.in_flight == 3)
        gate.set()
        await asyncio.gather(*calls)
        await fetch(client)
        assert (backend.stale_drops, backend.connections_made) == (1, 4)


@on_both_loops
async def test_g084_a_connection_that_the_server_closed_is_forgotten():
    async with FakeBackend() as backend, client_of(backend.url) as client:
        await fetch(client)
        await backend.until(lambda: backend.in_flight == 0)
        assert await backend.close_idle() == 1
        await until(lambda: client.idle_connections == 0)
        await fetch(client)
        assert backend.connections_made == 2


@on_both_loops
async def test_g084_a_call_right_after_the_server_closed_succeeds():
    async with FakeBackend() as backend, client_of(backend.url) as client:
        for _ in range(20):
            await fetch(client)
            await backend.close_idle()
            # The client may or may not have seen the end by now.
            assert b"choices" in await fetch(client)
        assert len(backend.calls) == 40


@pytest.mark.parametrize("spoken", [b"H", b"HTTP/1.1 200 OK\r\n"])
@on_both_loops
async def test_g084_nothing_is_sent_again_once_a_byte_has_come_back(spoken):
    async with FakeBackend(Answer(), RawHttp(spoken, then="reset")) as backend, client_of(backend.url) as client:
        await fetch(client)
        assert (await fault_of(client)).failure is Failure.RESET
        assert (len(backend.calls), backend.connections_made) == (2, 1)


@on_both_loops
async def test_g084_the_second_connection_is_the_last():
    async with FakeBackend(Answer(), Reset(), stale_after=1) as backend, client_of(backend.url) as client:
        await fetch(client)
        assert (await fault_of(client)).failure is Failure.RESET
        assert (backend.stale_drops, len(backend.calls), backend.connections_made) == (1, 2, 2)


@on_both_loops
async def test_g084_a_time_out_on_a_used_connection_is_not_tried_again():
    async with FakeBackend(Answer(), Hang()) as backend, client_of(backend.url) as client:
        await fetch(client)
        assert (await fault_of(client, timeouts=limits(first_byte_s=0.02))).failure is Failure.TIMEOUT
        assert len(backend.calls) == 2


@on_both_loops
async def test_an_idle_connection_is_closed_before_the_server_would():
    async with FakeBackend() as backend, client_of(backend.url, idle_s=0.02) as client:
        await asyncio.gather(*(fetch(client) for _ in range(3)))
        await backend.until(lambda: backend.connections == 0)
        assert client.idle_connections == 0
        await fetch(client)
        await backend.until(lambda: backend.connections == 0)


async def test_an_idle_connection_that_is_too_old_is_not_used(monkeypatch):
    async with FakeBackend() as backend, client_of(backend.url, idle_s=60) as client:
        await fetch(client)
        client._idle[0].idle_since -= 61
        await fetch(client)
        assert backend.connections_made == 2
        assert client.idle_connections == 1


@on_both_loops
async def test_a_closed_client_lets_calls_end_and_keeps_nothing():
    gate = Signal()
    async with FakeBackend(Answer(), Held(gate)) as backend:
        client = HttpClient(backend.url)
        await fetch(client)
        running = asyncio.ensure_future(fetch(client))
        await backend.until(lambda: len(backend.calls) == 2)
        await client.aclose()
        gate.set()
        assert b"choices" in await running
        await backend.until(lambda: backend.connections == 0)
        assert client.idle_connections == 0


@on_both_loops
async def test_a_response_that_nobody_asked_for_is_never_taken_for_an_answer():
    """Two responses to one request: the first counts, the second ends the connection."""
    second = b"HTTP/1.1 500 Other\r\nx-mark: second\r\ncontent-length: 5\r\n\r\nother"
    async with FakeBackend(RawHttp(OK + second, then="keep"), Answer()) as backend, client_of(backend.url) as client:
        reply = await call(client)
        assert (reply.status, reply.header("x-mark"), await reply.read()) == (200, None, b"hi")
        reply.close()
        assert client.idle_connections == 0
        assert b"choices" in await fetch(client)


@on_both_loops
async def test_bytes_on_an_idle_connection_end_it():
    async def serve(peer: Peer) -> None:
        await peer.request()
        await peer.write(OK)
        await until(lambda: client.idle_connections == 1)
        await peer.write(b"HTTP/1.1 408 Too Late\r\ncontent-length: 0\r\n\r\n")
        await peer.left()

    async with raw_server(serve) as server, client_of(server.url) as client:
        assert await fetch(client) == b"hi"
        await until(lambda: client.idle_connections == 0)


@pytest.mark.parametrize(
    ("step", "blocks"),
    [
        (Hang(after="request"), 0),
        (Hang(after="headers"), 0),
        (Hang(Answer("one two"), after=1), 1),
    ],
    ids=["before the headers", "before the first byte", "in the middle"],
)
@on_both_loops
async def test_g035_cancelling_closes_the_connection_at_once(step, blocks):
    async def read(client: HttpClient) -> None:
        reply = await call(client, body=STREAM)
        try:
            while await reply.next_block():
                pass
        finally:
            reply.close()

    async with FakeBackend(step) as backend, client_of(backend.url) as client:
        task = asyncio.ensure_future(read(client))
        await backend.until(lambda: bool(backend.calls) and backend.calls[0].chunks_sent == blocks)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await backend.calls[0].disconnected.wait()
        assert client.idle_connections == 0


@on_both_loops
async def test_cancelling_while_connecting_leaves_nothing():
    with BlackHole() as hole:
        async with client_of(hole.url) as client:
            task = asyncio.ensure_future(call(client))
            for _ in range(3):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


@on_both_loops
async def test_a_cancel_at_every_turn_of_the_loop_leaves_no_connection():
    async with FakeBackend() as backend, client_of(backend.url) as client:
        for turns in range(25):
            task = asyncio.ensure_future(fetch(client, body=STREAM))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await backend.until(lambda: backend.in_flight == 0)
            await backend.until(lambda: backend.connections == client.idle_connections)
        assert b"choices" in await fetch(client)


@on_both_loops
async def test_closing_before_the_end_aborts_the_call():
    async with FakeBackend(Hang(Answer("one two"), after=1)) as backend, client_of(backend.url) as client:
        reply = await call(client, body=STREAM)
        await reply.next_block()
        reply.close()
        reply.close()
        await backend.calls[0].disconnected.wait()
        assert client.idle_connections == 0


@on_both_loops
async def test_closing_without_abort_gives_the_connection_back_when_the_end_comes():
    gate = Signal()
    stream = Answer("one two")
    async with FakeBackend(Held(gate, stream, after=5), Answer()) as backend, client_of(backend.url) as client:
        reply = await call(client, body=STREAM)
        seen = b""
        while b'"stop"' not in seen:
            seen += await reply.next_block()
        reply.close(abort=False)
        reply.close()
        assert client.idle_connections == 0
        gate.set()
        await until(lambda: client.idle_connections == 1)
        assert b"choices" in await fetch(client)
        assert backend.connections_made == 1


@on_both_loops
async def test_closing_without_abort_waits_for_the_end_only_so_long(monkeypatch):
    monkeypatch.setattr(http_reply, "_LINGER_S", 0.02)
    async with FakeBackend(Hang(Answer("one two"), after=2)) as backend, client_of(backend.url) as client:
        reply = await call(client, body=STREAM)
        await reply.next_block()
        reply.close(abort=False)
        await backend.calls[0].disconnected.wait()
        assert client.idle_connections == 0


@on_both_loops
async def test_closing_without_abort_takes_in_an_end_that_was_held_back():
    """The socket was no longer read because nobody took the blocks."""
    async with FakeBackend(Huge(4_000_000, "chunked"), Answer()) as backend, client_of(backend.url) as client:
        reply = await call(client)
        await until(lambda: reply._buffered > http_reply._HIGH_WATER)
        reply.close(abort=False)
        await until(lambda: client.idle_connections == 1)
        assert b"choices" in await fetch(client)
        assert backend.connections_made == 1


@on_both_loops
async def test_a_server_that_breaks_off_after_the_answer_was_read_ends_the_wait():
    async with FakeBackend(Truncate(Answer("one two"), after=3)) as backend, client_of(backend.url) as client:
        reply = await call(client, body=STREAM)
        await reply.next_block()
        reply.close(abort=False)
        await until(lambda: reply._timer is None)
        assert client.idle_connections == 0


@on_both_loops
async def test_a_slow_reader_holds_the_server_back():
    size = 48_000_000
    async with FakeBackend(Huge(size)) as backend, client_of(backend.url) as client:
        reply = await call(client)
        paused = reply._line._transport  # type: ignore[attr-defined]
        await until(lambda: not paused.is_reading())
        assert reply._buffered < 4 * http_reply._HIGH_WATER
        assert backend.calls[0].bytes_sent < size
        taken = 0
        while block := await reply.next_block():
            taken += len(block)
            assert len(block) < 4 * http_reply._HIGH_WATER
        reply.close()
        assert taken > size
        assert client.idle_connections == 1


async def test_no_timer_or_task_outlives_its_call():
    loop: Any = asyncio.get_running_loop()

    def timers() -> int:
        return sum(not handle.cancelled() for handle in loop._scheduled)

    async with FakeBackend(Reset(), Truncate(), Answer(), Hang(after=1)) as backend:
        before = timers()
        client = HttpClient(backend.url)
        for body in (BODY, BODY, BODY, STREAM):
            await asyncio.gather(
                fetch(client, body=body, timeouts=limits(between_chunks_s=0.02)), return_exceptions=True
            )
        await fetch(client)
        assert timers() == before + 1  # the one that looks after idle connections
        await client.aclose()
        assert timers() == before


@on_both_loops
async def test_ended_exchanges_are_freed():
    async with FakeBackend() as backend, client_of(backend.url) as client:
        for _ in range(5):
            await fetch(client)
        gc.collect()
        alive = [
            thing
            for thing in gc.get_objects()
            if isinstance(thing, HttpReply) and thing._loop is asyncio.get_running_loop()
        ]
        assert len(alive) <= 1


def contexts(monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """The server's context; the client trusts its certificate by the environment, as an operator would have it."""
    monkeypatch.setenv("SSL_CERT_FILE", str(PEM))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(PEM)
    return server


@on_both_loops
async def test_tls_carries_calls_like_a_plain_connection(monkeypatch):
    async def serve(peer: Peer) -> None:
        for _ in range(2):
            await peer.request()
            await peer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"2\r\nhi\r\n", b"0\r\n\r\n")
        await peer.request()
        await peer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        await peer.left()

    async with raw_server(serve, contexts(monkeypatch)) as server, client_of(server.url) as client:
        assert [await fetch(client), await fetch(client)] == [b"hi", b"hi"]
        assert (server.connections, client.idle_connections) == (1, 1)
        reply = await call(client)
        reply.close()


@on_both_loops
async def test_a_certificate_that_nobody_signed_is_refused(monkeypatch):
    context = contexts(monkeypatch)
    monkeypatch.delenv("SSL_CERT_FILE")

    async def serve(peer: Peer) -> None:
        await peer.left()

    async with raw_server(serve, context) as server, client_of(server.url) as client:
        assert (await fault_of(client)).failure is Failure.CONNECT


@on_both_loops
async def test_tls_towards_a_plain_port_is_no_connection():
    async with FakeBackend() as backend, client_of(backend.url.replace("http:", "https:")) as client:
        assert (await fault_of(client)).failure is Failure.CONNECT


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://engine:8000/v1", b"host: engine:8000\r\n"),
        ("https://api.example.com/v1/", b"host: api.example.com\r\n"),
        ("http://[::1]:8000", b"host: [::1]:8000\r\n"),
    ],
)
def test_the_host_header_names_the_origin(url, host):
    assert HttpClient(url)._host_header == host
    assert PATIENT.total_s == 10
