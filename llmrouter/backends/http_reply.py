"""One HTTP response as it arrives: blocks of its body, its end, or what kept it from coming."""

from __future__ import annotations

import asyncio
import zlib
from typing import Protocol

from llmrouter.protocols import BackendFault, Timeouts
from llmrouter.types import Failure

__all__ = ["HttpReply", "Line"]

_HIGH_WATER = 256 * 1024
"""Unread body bytes after which the socket is no longer read; reading resumes when they are taken."""
_LINGER_S = 1.0
"""How long the end of an answer that has been read may take before its connection is dropped."""
_PACKED = frozenset(("gzip", "x-gzip", "deflate"))
_PLAIN = frozenset(("", "identity"))


class Line(Protocol):
    """The connection under a reply."""

    def pause(self) -> None:
        """Read no more from the socket."""

    def resume(self) -> None: ...

    def finish(self, reply: HttpReply, *, clean: bool = False) -> None:
        """End the exchange: `clean` when the whole response has been read."""


class HttpReply:
    """One response; `llmrouter.protocols.Reply` states the contract."""

    __slots__ = (
        "_blocks",
        "_buffered",
        "_closed",
        "_expires",
        "_fault",
        "_first_byte_at",
        "_headers",
        "_inflate",
        "_line",
        "_loop",
        "_max_body_bytes",
        "_timeouts",
        "_timer",
        "_total_at",
        "_waiter",
        "complete",
        "headed",
        "started",
        "status",
    )

    def __init__(
        self, line: Line, loop: asyncio.AbstractEventLoop, timeouts: Timeouts, *, total_at: float, max_body_bytes: int
    ) -> None:
        self.status = 0
        self.started = False
        """A response byte has arrived."""
        self.headed = False
        """Status and headers have arrived."""
        self.complete = False
        """The whole response has arrived."""
        self._headers: dict[str, str] = {}
        self._blocks: list[bytes] = []
        self._buffered = 0
        self._closed = False
        self._fault: BackendFault | None = None
        self._inflate: zlib._Decompress | None = None
        self._line = line
        self._loop = loop
        self._max_body_bytes = max_body_bytes
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
        while not self.headed:
            if self._fault is not None:
                raise self._fault
            await self._wait()

    async def next_block(self) -> bytes:
        while not self._blocks:
            if self._fault is not None:
                raise self._fault
            if self.complete:
                return b""
            await self._wait()
        block = self._blocks[0] if len(self._blocks) == 1 else b"".join(self._blocks)
        self._blocks.clear()
        if self._buffered > _HIGH_WATER and not self._closed:
            self._line.resume()
        self._buffered = 0
        return block

    async def read(self) -> bytes:
        blocks = []
        left = most = self._max_body_bytes
        while block := await self.next_block():
            left -= len(block)
            if left < 0:
                raise BackendFault(Failure.PROTOCOL, f"the answer is larger than {most} bytes")
            blocks.append(block)
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def close(self, *, abort: bool = True) -> None:
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._blocks.clear()
        if abort or self.complete or self._fault is not None:
            self._line.finish(self, clean=self.complete)
        else:
            self._timer = self._loop.call_later(_LINGER_S, self._line.finish, self)
            self._line.resume()

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
        if self._waiter is None or self._waiter.done():
            # What it waited for came in the same turn of a loop that may have been held up; the next wait arms anew.
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
        if self._fault is not None or self.complete:
            return
        self._fault = fault
        self.wake()
        if self._closed:
            self._end_linger()

    # What the connection's parser tells.

    def on_headers(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        self._headers = headers
        self.headed = True
        encoding = headers.get("content-encoding", "").strip().lower()
        if encoding in _PACKED:
            self._inflate = zlib.decompressobj(wbits=47)
        elif encoding not in _PLAIN:
            self.fail(BackendFault(Failure.PROTOCOL, f"the answer comes as {encoding!r}, which was not asked for"))

    def on_body(self, data: bytes) -> None:
        if self._closed or self._fault is not None:
            return
        self._first_byte_at = None
        if self._inflate is not None:
            data = self._inflated(data)
            if not data:
                return
        self._blocks.append(data)
        self._buffered += len(data)
        if self._buffered > _HIGH_WATER:
            self._line.pause()

    def on_complete(self) -> None:
        if self._inflate is not None and not self._inflate.eof and not self._closed:
            self.fail(BackendFault(Failure.PROTOCOL, "the body's compression ends early"))
        if self._fault is not None:
            return
        self.complete = True
        if self._closed:
            self._end_linger()

    def _inflated(self, data: bytes) -> bytes:
        assert self._inflate is not None
        most = self._max_body_bytes
        try:
            data = self._inflate.decompress(data, most)
        except zlib.error as error:
            self.fail(BackendFault(Failure.PROTOCOL, f"the body's compression is broken: {error}"))
            return b""
        if self._inflate.unconsumed_tail or self._inflate.unused_data:
            self.fail(
                BackendFault(Failure.PROTOCOL, f"the body unpacks to more than {most} bytes, or goes on after them")
            )
        return data

    def _end_linger(self) -> None:
        """What a closed reply was waiting for has come, or never will."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._line.finish(self, clean=self.complete)
