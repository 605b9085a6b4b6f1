"""One TCP connection to an engine, and the parser of the responses that come over it."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import httptools

from llmrouter.backends.http_reply import HttpReply
from llmrouter.protocols import BackendFault
from llmrouter.types import Failure

__all__ = ["Connection", "Owner"]

_LARGEST_HEAD = 64 * 1024
"""Bytes in which status and headers must have come."""


class Owner(Protocol):
    """Who keeps connections between exchanges."""

    def keep(self, connection: Connection) -> None:
        """Take back a connection that is ready for the next exchange."""

    def forget(self, connection: Connection) -> None:
        """The connection is gone; it may or may not have been kept."""


class Connection(asyncio.Protocol):
    """Carries one exchange at a time. The methods named `on_` are called by the parser."""

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self.loop = loop
        self.idle_since = 0.0
        self.usable = True
        self._transport: asyncio.Transport | None = None
        self._reply: HttpReply | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._keep_alive = False
        self._until_eof = False

    def send(self, reply: HttpReply, head: bytes, body: bytes) -> None:
        """Begin an exchange on this idle connection."""
        assert self._transport is not None
        self._reply = reply
        self._head_bytes = 0
        self._until_eof = False
        if not self.usable or self._transport.is_closing():
            raise BackendFault(Failure.RESET, "the connection was closed while idle")
        self._transport.write(head + body)

    def finish(self, reply: HttpReply, *, clean: bool = False) -> None:
        """End the exchange: back to the idle ones after a complete response, else abort, which the server notices."""
        if self._reply is not reply:
            return
        self._reply = None
        transport = self._transport
        if clean and self.usable and self._keep_alive and transport is not None and not transport.is_closing():
            self.idle_since = self.loop.time()
            self.resume()
            self._owner.keep(self)
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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            self.abort()
            self._owner.forget(self)
            return
        reply.started = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.usable = False
            reply.fail(BackendFault(Failure.PROTOCOL, f"not an HTTP response: {error}"))
        if not reply.headed:
            self._head_bytes += len(data)
            if self._head_bytes > _LARGEST_HEAD:
                self.usable = False
                reply.fail(BackendFault(Failure.PROTOCOL, f"the headers are longer than {_LARGEST_HEAD} bytes"))
        reply.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        reply = self._reply
        if reply is None:
            self._owner.forget(self)
            return
        if self._until_eof and exc is None:
            reply.on_complete()
            reply.wake()
        else:
            reply.fail(BackendFault(Failure.RESET, f"the connection broke: {exc or 'closed by the server'}"))

    def on_message_begin(self) -> None:
        self._headers = {}
        if self._reply is None or self._reply.complete:
            # A response that nobody asked for: whatever follows on this connection cannot be told apart.
            self.usable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1").rstrip()

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        reply = self._open_reply()
        if status < 200 or reply is None:
            return
        self._keep_alive = self._parser.should_keep_alive()
        chunked = self._headers.get("transfer-encoding", "").lower().endswith("chunked")
        self._until_eof = not chunked and "content-length" not in self._headers and status not in (204, 304)
        reply.on_headers(status, self._headers)

    def on_body(self, body: bytes) -> None:
        reply = self._reply
        if reply is not None and not reply.complete:
            reply.on_body(body)

    def on_message_complete(self) -> None:
        reply = self._open_reply()
        if reply is not None and self._parser.get_status_code() >= 200:
            reply.on_complete()

    def _open_reply(self) -> HttpReply | None:
        """The reply that what is being parsed belongs to."""
        return self._reply if self._reply is not None and not self._reply.complete else None
