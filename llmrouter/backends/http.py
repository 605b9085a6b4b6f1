"""A lean HTTP/1.1 client for the hot path: one exchange a connection at a time, keep-alive, back-pressure, time-outs.

It does only what an OpenAI-compatible upstream needs (POST and GET, no redirects, no cookies) and wakes its reader once
a read from the socket, not once an event. Everything else in the product uses httpx.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from urllib.parse import SplitResult, urlsplit

from llmrouter.backends.http_connection import Connection
from llmrouter.backends.http_reply import HttpReply
from llmrouter.protocols import BackendFault, Timeouts
from llmrouter.types import Failure

__all__ = ["HttpClient", "HttpReply"]


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
        self._idle: deque[Connection] = deque()
        """The longest idle one is at the left."""
        self._reaper: asyncio.TimerHandle | None = None
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
        connection = self._take_idle()
        reused = connection is not None
        while True:
            if connection is None:
                connection = await self._connect(loop, min(timeouts.connect_s, total_at - loop.time()))
            reply = HttpReply(connection, loop, timeouts, total_at=total_at, max_body_bytes=self._max_body_bytes)
            try:
                connection.send(reply, head, body)
                await reply.headers_arrived()
            except BackendFault as fault:
                reply.close()
                if not reused or fault.failure is not Failure.RESET or reply.started:
                    raise
            except BaseException:
                reply.close()
                raise
            else:
                return reply
            connection, reused = None, False

    async def aclose(self) -> None:
        """Close idle connections; exchanges under way go on, and their connections close when they end."""
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
            self._reaper = None
        while self._idle:
            self._idle.pop().abort()

    @property
    def idle_connections(self) -> int:
        """Connections that wait for the next request."""
        return len(self._idle)

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.loop.time() - connection.idle_since < self._idle_s:
                return connection
            connection.abort()
        return None

    async def _connect(self, loop: asyncio.AbstractEventLoop, connect_s: float) -> Connection:
        try:
            async with asyncio.timeout(connect_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self, loop), self._host, self._port, ssl=self._ssl
                )
        except TimeoutError:
            # Not TIMEOUT, after which an engine may have worked on the prompt: nothing has been sent.
            raise BackendFault(
                Failure.CONNECT, f"no connection to {self._host}:{self._port} in {connect_s:g} s"
            ) from None
        except (OSError, UnicodeError) as error:
            # A name that cannot be written as a host name is a UnicodeError.
            raise BackendFault(Failure.CONNECT, f"cannot connect to {self._host}:{self._port}: {error}") from error
        return connection

    def keep(self, connection: Connection) -> None:
        if self._closed:
            connection.abort()
            return
        self._idle.append(connection)
        if self._reaper is None:
            self._reaper = connection.loop.call_later(self._idle_s, self._reap, connection.loop)

    def _reap(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close what has been idle for too long, so that a burst does not leave its connections open."""
        expired = loop.time() - self._idle_s
        while self._idle and self._idle[0].idle_since <= expired:
            self._idle.popleft().abort()
        self._reaper = None
        if self._idle:
            self._reaper = loop.call_at(self._idle[0].idle_since + self._idle_s, self._reap, loop)

    def forget(self, connection: Connection) -> None:
        try:
            self._idle.remove(connection)
        except ValueError:
            return  # it was never idle


def _host_header(parts: SplitResult) -> bytes:
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return (host if parts.port is None else f"{host}:{parts.port}").encode("ascii")
