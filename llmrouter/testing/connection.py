"""One TCP connection of the fake: parses requests in, puts bytes out, and notices at once when the peer leaves."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import httptools

__all__ = ["Connection", "Exchange", "Host", "RawRequest"]


@dataclass(frozen=True, slots=True)
class RawRequest:
    """One request with its whole body."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    keep_alive: bool


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the server makes of a request: work for a task, and what to call when it ends."""

    work: Coroutine[Any, Any, None]
    gone: Callable[[], None]
    """The peer left while the work was going on; it is cancelled next."""
    done: Callable[[], None]
    """Called exactly once, however the work ended and even if it never began."""


class Host(Protocol):
    """What a connection needs of its server."""

    def opened(self, connection: Connection) -> int:
        """Take note of it and give it a number."""

    def closed(self, connection: Connection) -> None: ...

    def failed(self, error: BaseException) -> None:
        """An exchange broke on our side."""

    def misread(self) -> None:
        """The peer sent what is no HTTP request."""

    def accept(self, connection: Connection, request: RawRequest) -> Exchange:
        """Take a request on; its work is started at once."""


class Connection(asyncio.Protocol):
    """Serves the requests of one peer one after the other.

    Reading goes on while a request is served, so the end of the connection is seen within one turn of the loop.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[RawRequest] = deque()
        self._writable = asyncio.Event()
        self._writable.set()
        self._url = b""
        self._headers: list[tuple[str, str]] = []
        self._body = bytearray()
        self.number = 0
        self.served = 0
        self._exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return self._task is None and not self._waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # asyncio and uvloop both set TCP_NODELAY by themselves, so each write leaves at once.
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self.number = self._host.opened(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._host.misread()
            self._put(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.drop("close")

    def eof_received(self) -> None:
        # A half-closed peer counts as gone, as it does for uvicorn and so for vLLM.
        self._peer_left()

    def connection_lost(self, _exc: Exception | None, /) -> None:
        self._peer_left()
        self._writable.set()
        self._host.closed(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        if ("expect", "100-continue") in {(name.lower(), value.lower()) for name, value in self._headers}:
            self._put(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        request = RawRequest(
            self._parser.get_method().decode(),
            self._url.decode("latin-1"),
            tuple(self._headers),
            bytes(self._body),
            self._parser.should_keep_alive(),
        )
        self._url, self._headers, self._body = b"", [], bytearray()
        self._waiting.append(request)
        self._serve_next()

    async def write(self, data: bytes) -> None:
        """Write at once, then wait for room and let others have a turn, so the next write is one of its own."""
        self._put(data)
        await self._writable.wait()
        await asyncio.sleep(0)

    def drop(self, how: Literal["close", "reset"]) -> None:
        """End the connection from our side: after what was written with FIN, or right now with RST.

        From here on the peer does not count as gone.
        """
        self._waiting.clear()
        self._exchange = None
        if self._transport is None or self._transport.is_closing():
            return
        if how == "close":
            self._transport.close()
            return
        handle = self._transport.get_extra_info("socket")
        # A duplicate, because uvloop's socket object does not pass options on.
        with socket.socket(fileno=os.dup(handle.fileno())) as duplicate:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def abort(self) -> None:
        """End the connection and the exchange on it at once; the peer does not count as gone."""
        self._exchange = None
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()

    def _put(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _serve_next(self) -> None:
        if self._task is None and self._waiting:
            exchange = self._host.accept(self, self._waiting.popleft())
            self._exchange = exchange
            self._task = asyncio.get_running_loop().create_task(exchange.work)
            self._task.add_done_callback(lambda task: self._served(exchange, task))

    def _served(self, exchange: Exchange, task: asyncio.Task[None]) -> None:
        self._task = self._exchange = None
        self.served += 1
        exchange.done()
        if task.cancelled():
            self.abort()
        elif error := task.exception():
            self._host.failed(error)
            self.abort()
        else:
            self._serve_next()

    def _peer_left(self) -> None:
        if self._exchange is not None:
            self._exchange.gone()
        self.abort()
