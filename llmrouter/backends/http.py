"""A lean HTTP/1.1 client for the hot path: one exchange a connection at a time, keep-alive, back-pressure, time-outs.

It does only what an OpenAI-compatible upstream needs (POST and GET, no redirects, no cookies) and wakes its reader once
a read from the socket, not once an event. Everything else in the product uses httpx.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections import deque
from urllib.parse import SplitResult, urlsplit

import httptools

from llmrouter.protocols import BackendFault, Timeouts
from llmrouter.types import Failure

__all__ = ["HttpClient", "HttpReply"]

_HIGH_WATER = 256 * 1024
"""Unread body bytes after which the socket is no longer read; reading resumes when they are taken."""


_LINGER_S = 1.0
"""How long the end of an answer that has been read may take before its connection is dropped."""


class HttpClient:
    """Connections to one origin.

    Args:
        base_url: up to and including the path prefix, e.g. `http://127.0.0.1:8000/v1`.
        idle_s: an idle connection older than this is closed rather than used; keep it below the server's keep-alive.
        max_body_bytes: a body that `read` finds larger is a fault.
    """

    def __init__(self, base_url: str, *, idle_s: float = 4.0, max_body_bytes: int = 64 * 1024 * 1024) -> None:
        parts = urlsplit(base_url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/").encode("ascii")
        self._host_header = b"host: " + _host_header(parts) + b"\r\n"
        self._idle_s = idle_s
        self._max_body_bytes = max_body_bytes
        self._idle: deque[_Connection] = deque()
        self._closed = False

    async def request(
        self, method: bytes, path: bytes, *, headers: bytes, body: bytes, timeouts: Timeouts
    ) -> HttpReply:
        """Send one request and wait for status and headers.

        A kept-alive connection that turns out to be dead before its first response byte is replaced by a fresh one,
        once: the server closed it while idle and cannot have seen the request.

        Args:
            headers: further header lines, each ended by CRLF; the client adds host and content-length.

        Raises:
            BackendFault: with CONNECT, RESET, TIMEOUT or PROTOCOL.
        """
        loop = asyncio.get_running_loop()
        head = b"%b %b%b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n" % (
            method,
            self._prefix,
            path,
            self._host_header,
            headers,
            len(body),
        )
        total_at = loop.time() + timeouts.total_s
        while True:
            connection = self._take_idle(loop.time())
            reused = connection is not None
            if connection is None:
                connection = await self._connect(loop, min(timeouts.connect_s, timeouts.total_s))
            reply = HttpReply(connection, timeouts, total_at)
            try:
                connection.send(reply, head, body)
                await reply.headers_arrived()
            except BackendFault as fault:
                reply.close()
                if reused and fault.failure is Failure.RESET and not reply.started:
                    continue
                raise
            except BaseException:
                reply.close()
                raise
            return reply

    async def aclose(self) -> None:
        """Close idle connections; exchanges under way go on, and their connections close when they end."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()

    def _take_idle(self, now: float) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and now - connection.idle_since < self._idle_s:
                return connection
            connection.abort()
        return None

    async def _connect(self, loop: asyncio.AbstractEventLoop, connect_s: float) -> _Connection:
        try:
            async with asyncio.timeout(connect_s):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self, loop), self._host, self._port, ssl=self._ssl
                )
        except TimeoutError:
            # Not TIMEOUT, after which an engine may have worked on the prompt: nothing has been sent.
            raise BackendFault(
                Failure.CONNECT, f"no connection to {self._host}:{self._port} in {connect_s:g} s"
            ) from None
        except (OSError, ssl.SSLError) as error:
            raise BackendFault(Failure.CONNECT, f"cannot connect to {self._host}:{self._port}: {error}") from error
        return connection

    def _keep(self, connection: _Connection) -> None:
        if self._closed:
            connection.abort()
            return
        self._idle.append(connection)
        # The oldest lie at the left; without this they would wait for a burst to be noticed as stale.
        oldest = self._idle[0]
        if oldest is not connection and connection.idle_since - oldest.idle_since >= self._idle_s:
            self._idle.popleft().abort()

    def _forget(self, connection: _Connection) -> None:
        try:
            self._idle.remove(connection)
        except ValueError:
            return

    @property
    def max_body_bytes(self) -> int:
        return self._max_body_bytes


class HttpReply:
    """One response; `llmrouter.protocols.Reply` states the contract."""

    __slots__ = (
        "_blocks",
        "_buffered",
        "_closed",
        "_complete",
        "_connection",
        "_expires",
        "_fault",
        "_first_byte_at",
        "_headers",
        "_headers_done",
        "_inflate",
        "_loop",
        "_timeouts",
        "_timer",
        "_total_at",
        "_waiter",
        "started",
        "status",
    )

    def __init__(self, connection: _Connection, timeouts: Timeouts, total_at: float) -> None:
        self.status = 0
        self.started = False
        """A response byte has arrived."""
        self._headers: dict[str, str] = {}
        self._headers_done = False
        self._blocks: list[bytes] = []
        self._buffered = 0
        self._complete = False
        self._closed = False
        self._fault: BackendFault | None = None
        self._inflate: zlib._Decompress | None = None
        self._connection = connection
        self._loop = connection.loop
        self._timeouts = timeouts
        self._total_at = total_at
        self._first_byte_at: float | None = self._loop.time() + timeouts.first_byte_s
        self._expires = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None

    def header(self, name: str) -> str | None:
        return self._headers.get(name)

    async def headers_arrived(self) -> None:
        """Wait for status and headers; raises `BackendFault`."""
        while not self._headers_done:
            if self._fault is not None:
                raise self._fault
            await self._wait()

    async def next_block(self) -> bytes:
        while not self._blocks:
            if self._fault is not None:
                raise self._fault
            if self._complete:
                return b""
            await self._wait()
        block = self._blocks[0] if len(self._blocks) == 1 else b"".join(self._blocks)
        self._blocks.clear()
        if self._buffered > _HIGH_WATER and not self._closed:
            self._connection.resume()
        self._buffered = 0
        return block

    async def read(self) -> bytes:
        blocks = []
        size = 0
        while block := await self.next_block():
            size += len(block)
            if size > self._connection.client.max_body_bytes:
                raise BackendFault(Failure.PROTOCOL, f"the answer is larger than {size - len(block)} bytes")
            blocks.append(block)
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def close(self, *, abort: bool = True) -> None:
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if abort or self._complete or self._fault is not None:
            self._connection.finish(self, clean=self._complete)
        else:
            self._timer = self._loop.call_later(_LINGER_S, self._connection.finish, self)

    async def _wait(self) -> None:
        limit = self._total_at
        if self._first_byte_at is not None:
            limit = min(limit, self._first_byte_at)
        else:
            limit = min(limit, self._loop.time() + self._timeouts.between_chunks_s)
        self._expires = limit
        # One timer an exchange, re-armed only when it fires: a wait costs a float, not a timer.
        if self._timer is None:
            self._timer = self._loop.call_at(limit, self._on_timer)
        elif self._timer.when() > limit:
            self._timer.cancel()
            self._timer = self._loop.call_at(limit, self._on_timer)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiter is None:
            return
        if self._loop.time() < self._expires:
            self._timer = self._loop.call_at(self._expires, self._on_timer)
            return
        phase = "first byte" if self._first_byte_at is not None else "next chunk"
        if self._expires >= self._total_at:
            phase = "end of the answer"
        self.fail(BackendFault(Failure.TIMEOUT, f"no {phase} within the time limit"))

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def fail(self, fault: BackendFault) -> None:
        if self._fault is None and not self._complete:
            self._fault = fault
            self.wake()

    # What the connection's parser tells.

    def on_headers(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self._headers = headers
        self._headers_done = True
        if headers.get("content-encoding", "identity") in ("gzip", "deflate"):
            self._inflate = zlib.decompressobj(wbits=47)

    def on_body(self, data: bytes) -> None:
        if self._closed:
            return
        self._first_byte_at = None
        if self._inflate is not None:
            try:
                data = self._inflate.decompress(data)
            except zlib.error as error:
                self.fail(BackendFault(Failure.PROTOCOL, f"the body's compression is broken: {error}"))
                return
        self._blocks.append(data)
        self._buffered += len(data)
        if self._buffered > _HIGH_WATER:
            self._connection.pause()

    def on_complete(self) -> None:
        self._complete = True
        if self._closed and self._timer is not None:
            self._timer.cancel()
            self._connection.finish(self, clean=True)


class _Connection(asyncio.Protocol):
    """One TCP connection and its response parser."""

    def __init__(self, client: HttpClient, loop: asyncio.AbstractEventLoop) -> None:
        self.client = client
        self.loop = loop
        self.idle_since = 0.0
        self.usable = True
        self._transport: asyncio.Transport | None = None
        self._reply: HttpReply | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._keep_alive = False
        self._until_eof = False

    def send(self, reply: HttpReply, head: bytes, body: bytes) -> None:
        """Begin an exchange on this idle connection."""
        assert self._transport is not None
        self._reply = reply
        self._headers = {}
        self._until_eof = False
        if not self.usable or self._transport.is_closing():
            raise BackendFault(Failure.RESET, "the connection was closed while idle")
        self._transport.write(head + body)

    def finish(self, reply: HttpReply, *, clean: bool = False) -> None:
        """End the exchange: back to the idle ones after a complete response, else abort, which the server notices."""
        if self._reply is not reply:
            return
        self._reply = None
        if clean and self.usable and self._keep_alive and self._transport and not self._transport.is_closing():
            self.idle_since = self.loop.time()
            self.resume()
            self.client._keep(self)
        else:
            self.abort()

    def abort(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing() and not self._transport.is_reading():
            self._transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            self.abort()
            self.client._forget(self)
            return
        reply.started = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.usable = False
            reply.fail(BackendFault(Failure.PROTOCOL, f"not an HTTP response: {error}"))
        reply.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        reply = self._reply
        if reply is None:
            self.client._forget(self)
            return
        if self._until_eof and exc is None:
            reply.on_complete()
            reply.wake()
        else:
            reply.fail(BackendFault(Failure.RESET, f"the connection broke: {exc or 'closed by the server'}"))

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._reply is None:
            return
        self._keep_alive = self._parser.should_keep_alive()
        framed = "content-length" in self._headers or "transfer-encoding" in self._headers
        self._until_eof = not framed and status not in (204, 304)
        self._reply.on_headers(status, self._headers)

    def on_body(self, body: bytes) -> None:
        if self._reply is not None:
            self._reply.on_body(body)

    def on_message_complete(self) -> None:
        if self._reply is not None and self._parser.get_status_code() >= 200:
            self._reply.on_complete()


def _host_header(parts: SplitResult) -> bytes:
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return (host if parts.port is None else f"{host}:{parts.port}").encode("ascii")
