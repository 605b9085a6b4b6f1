"""The parser of responses, fed by hand: any cut, any bytes."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmrouter.backends.http_connection import Connection
from llmrouter.backends.http_reply import HttpReply
from llmrouter.protocols import BackendFault, Timeouts
from llmrouter.types import Failure

HOUR = Timeouts(connect_s=3600, first_byte_s=3600, between_chunks_s=3600, total_s=3600)


class Socket:
    """A transport that goes nowhere."""

    closed = False
    reading = True

    def write(self, data: bytes) -> None:
        assert data == b"request"

    def is_closing(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return self.reading

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Shelf:
    """Who keeps connections."""

    def __init__(self) -> None:
        self.kept: list[Connection] = []

    def keep(self, connection: Connection) -> None:
        self.kept.append(connection)

    def forget(self, connection: Connection) -> None:
        self.kept = [other for other in self.kept if other is not connection]


@contextmanager
def exchange() -> Iterator[tuple[Connection, HttpReply, Shelf, asyncio.AbstractEventLoop]]:
    loop = asyncio.new_event_loop()
    shelf = Shelf()
    connection = Connection(shelf, loop)
    socket: Any = Socket()
    connection.connection_made(socket)
    reply = HttpReply(connection, loop, HOUR, total_at=loop.time() + 3600, max_body_bytes=1_000_000)
    connection.send(reply, b"req", b"uest")
    try:
        yield connection, reply, shelf, loop
    finally:
        reply.close()
        loop.close()


def feed(connection: Connection, raw: bytes, offsets: Iterable[int]) -> None:
    start = 0
    for stop in [*sorted({offset % (len(raw) + 1) for offset in offsets}), len(raw)]:
        if stop > start and connection._reply is not None:
            connection.data_received(raw[start:stop])
        start = max(start, stop)


def chunked(body: bytes, sizes: list[int]) -> bytes:
    out, rest = b"", body
    for size in sizes:
        piece, rest = rest[:size], rest[size:]
        out += b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
    out += b"%x\r\n%b\r\n" % (len(rest), rest) if rest else b""
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + out + b"0\r\n\r\n"


CUTS = st.lists(st.integers(0, 500), max_size=30)


@given(st.binary(max_size=200), st.lists(st.integers(1, 20), max_size=10), CUTS, st.booleans())
def test_g020_a_body_in_any_chunks_and_any_cuts_arrives_whole(body, sizes, offsets, by_length):
    plain = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    with exchange() as (connection, reply, shelf, loop):
        feed(connection, plain if by_length else chunked(body, sizes), offsets)
        assert loop.run_until_complete(reply.read()) == body
        reply.close()
        assert shelf.kept == [connection]


@given(st.binary(max_size=200), CUTS, st.integers(0, 300))
def test_a_response_cut_short_at_any_byte_is_a_fault(body, offsets, size):
    whole = chunked(body, [])
    with exchange() as (connection, reply, shelf, loop):
        feed(connection, whole[: size % len(whole)], offsets)
        connection.connection_lost(None)
        fault = None
        try:
            loop.run_until_complete(reply.headers_arrived())
            loop.run_until_complete(reply.read())
        except BackendFault as raised:
            fault = raised
        assert fault is not None
        assert fault.failure is Failure.RESET
        reply.close()
        assert not shelf.kept


def test_what_arrived_in_time_is_not_late_because_the_loop_was_held_up():
    """Bytes and timer come due in one turn of the loop: the bytes count."""
    with exchange() as (connection, reply, _, loop):
        connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n")
        waiting = loop.create_task(reply.next_block())
        loop.run_until_complete(asyncio.sleep(0))
        connection.data_received(b"ab")
        reply._expires = loop.time() - 1
        reply._on_timer()
        assert loop.run_until_complete(waiting) == b"ab"
        connection.data_received(b"cd")
        assert loop.run_until_complete(reply.read()) == b"cd"


RESPONSES = st.lists(
    st.sampled_from(
        [
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
            b"content-length: 3\r\n",
            b"transfer-encoding: chunked\r\n",
            b"content-encoding: gzip\r\n",
            b"\r\n",
            b"abc",
            b"3\r\nabc\r\n",
            b"0\r\n\r\n",
            b"\x00",
        ]
    ),
    max_size=10,
).map(b"".join)


@given(st.one_of(RESPONSES, st.binary(max_size=60)), CUTS, st.booleans())
def test_no_bytes_raise_anything_but_a_fault(raw, offsets, orderly):
    with exchange() as (connection, reply, shelf, loop):
        feed(connection, raw, offsets)
        connection.connection_lost(None if orderly else ConnectionResetError())
        try:
            loop.run_until_complete(reply.headers_arrived())
            assert 200 <= reply.status <= 999
            loop.run_until_complete(reply.read())
        except BackendFault as fault:
            assert fault.failure in (Failure.RESET, Failure.PROTOCOL)  # noqa: PT017 - most inputs give none
        reply.close()
        assert not shelf.kept
