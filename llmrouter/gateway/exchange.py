"""The client's side of one HTTP exchange over ASGI: body in, answer out, and noticing at once that it left."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from llmrouter.errors import RequestTimeout, RequestTooLarge, RouterError
from llmrouter.gateway.answer import Ending
from llmrouter.gateway.ratelimit import ratelimit_headers
from llmrouter.gateway.run import Run, new_request_id
from llmrouter.gateway.stream import error_event
from llmrouter.types import Decision, Endpoint

__all__ = ["Exchange", "Message", "Receive", "Send"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_READ_HEADERS = frozenset(
    (
        b"content-length",
        b"x-llmrouter-intent",
        b"x-llmrouter-conversation",
        b"x-llmrouter-class",
        b"x-llmrouter-role",
        b"x-llmrouter-user",
        b"x-stainless-read-timeout",
    )
)
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
_JSON = (b"content-type", b"application/json")
_LINGER_S = 5.0
"""How long an upload may go on that nobody wants to have."""


class Exchange:
    """One request and its response.

    From the moment the body is read until the response ends, a client that hangs up cancels the task that serves it,
    in whatever phase that is.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        raw_headers: list[tuple[bytes, bytes]],
        receive: Receive,
        send: Send,
        *,
        max_body_bytes: int,
        body_timeout_s: float = 60.0,
    ) -> None:
        self.endpoint: Endpoint = endpoint
        self.request_id = new_request_id()
        self.headers: dict[str, str] = {}
        self.authorization: bytes | None = None
        self.client_gone = False
        self._receive = receive
        self._send = send
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s
        self._started_at = time.perf_counter()
        self._streaming = False
        self._body_read = False
        self._lingers = False
        self._too_slow = False
        self._run: Run | None = None
        self._versions = (0, 0)
        self._watcher: asyncio.Task[None] | None = None
        for name, value in raw_headers:
            if name == b"authorization":
                # Two of them are an attempt to confuse somebody: neither counts.
                self.authorization = value if self.authorization is None else b""
            elif name in _READ_HEADERS:
                self.headers[name.decode("ascii")] = value.decode("latin-1")

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            RequestTooLarge: before reading it where content-length says so, else as soon as it grows too large.
            RequestTimeout: it did not arrive in time.
        """
        length = self.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_body_bytes:
            raise self._too_large()
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        # Not asyncio.timeout: this is on the way of every request, and nearly always the body is there already.
        timer = loop.call_later(self._body_timeout_s, self._give_up, task)
        try:
            body = await self._read()
        except asyncio.CancelledError:
            if not self._too_slow:
                raise
            task.uncancel()
            raise RequestTimeout(f"the body did not arrive within {self._body_timeout_s:g} s") from None
        finally:
            timer.cancel()
        self._body_read = True
        self._watcher = loop.create_task(self._watch(task))
        return body

    async def _read(self) -> bytes:
        message = await self._receive()
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            parts = [body]
            size = len(body)
            while message.get("more_body"):
                message = await self._receive()
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > self._max_body_bytes:
                    raise self._too_large()
            body = b"".join(parts)
        if message["type"] == "http.disconnect":
            self.client_gone = True
            raise asyncio.CancelledError
        return body

    def _give_up(self, task: asyncio.Task[Any]) -> None:
        self._too_slow = True
        task.cancel()

    def describe(self, run: Run, *, config_version: int) -> None:
        """Let the response headers tell of this run."""
        self._run = run
        self._versions = (config_version, run.decision.routing_version if run.decision else 0)

    async def start_stream(self) -> None:
        self._streaming = True
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS + self._own_headers()}
        )

    async def write(self, block: bytes) -> None:
        await self._send({"type": "http.response.body", "body": block, "more_body": True})

    async def finish(self, ending: Ending) -> None:
        """Send what was left until the call is in the books."""
        if ending.body is None:
            await self._end(ending.tail)
        else:
            await self._whole(200, ending.body, self._own_headers())

    async def refuse(self, error: RouterError) -> None:
        """Tell the client of an error, in the one form it can notice at this point."""
        if self._streaming:
            await self._end(error_event(error.body()))
            return
        headers = [*self._own_headers(), *_retry_headers(error)]
        if not self._body_read:
            headers.append((b"connection", b"close"))
            self._lingers = True
        await self._whole(error.status, orjson.dumps(error.body()), headers)

    async def linger(self) -> None:
        """After a refusal, let the rest of an unread body go by, for a while.

        A connection that is closed over unread bytes is reset, and a client that was still sending would lose the
        answer to that reset. Call it when the request counts for nothing any more.
        """
        if not self._lingers:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while (await self._receive()).get("more_body"):
                    pass
        await self._send({"type": "http.response.body", "body": b""})

    def close(self) -> None:
        """Stop watching the client."""
        if self._watcher is not None:
            self._watcher.cancel()
            # The task knows this exchange; without this the two would wait for the garbage collector.
            self._watcher = None

    async def _watch(self, task: asyncio.Task[Any]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.client_gone = True
        task.cancel()

    async def _whole(self, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self.close()
        headers = [_JSON, (b"content-length", b"%d" % len(body)), *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": self._lingers})

    async def _end(self, tail: bytes) -> None:
        self.close()
        left = self._run.ends_by - time.monotonic() if self._run is not None else 0.0
        # A client that has stopped reading must not keep its request alive; the server then drops the connection.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(left, _LINGER_S)):
                await self._send({"type": "http.response.body", "body": tail})

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        elapsed_ms = (time.perf_counter() - self._started_at) * 1000
        headers = [
            (b"x-request-id", self.request_id.encode()),
            (b"openai-processing-ms", b"%d" % elapsed_ms),
        ]
        run = self._run
        if run is None:
            return headers
        config_version, routing_version = self._versions
        headers += [
            (b"x-llmrouter-tier", run.request.model.encode("latin-1", "replace")),
            (b"x-llmrouter-attempts", b"%d" % len(run.trials)),
            (b"x-llmrouter-config-version", b"%d" % config_version),
            (b"x-llmrouter-routing-version", b"%d" % routing_version),
            (b"x-llmrouter-overhead-ms", b"%.2f" % (run.overhead_s(time.monotonic()) * 1000)),
        ]
        given = run.answering
        if given is not None:
            headers += [
                (b"x-llmrouter-model", given.target.model_id.encode("latin-1")),
                (b"x-llmrouter-pool", given.pool_id.encode("latin-1")),
                (b"x-llmrouter-reason", _header_text(run.reason)),
            ]
        if run.decision is not None and run.decision.route:
            headers += _routing_headers(run, run.decision)
        headers += ratelimit_headers(run.standings)
        if run.degraded_to is not None:
            headers.append((b"x-llmrouter-degraded", run.degraded_to.encode("latin-1")))
        asked = given or (run.trials[-1] if run.trials else None)
        if asked is not None and asked.clamped is not None:
            headers.append((b"x-llmrouter-clamped", b"%d -> %d" % asked.clamped))
        if run.cost_usd is not None:
            headers.append((b"x-llmrouter-cost-usd", f"{run.cost_usd:f}".encode()))
        return headers

    def _too_large(self) -> RequestTooLarge:
        return RequestTooLarge(f"the body is larger than {self._max_body_bytes} bytes")


def _routing_headers(run: Run, decision: Decision) -> list[tuple[bytes, bytes]]:
    """What a learned policy chose, and what its checks said."""
    headers = [(b"x-llmrouter-route", _header_text(decision.route))]
    if decision.score is not None:
        headers.append((b"x-llmrouter-score", b"%.4f" % decision.score))
    if run.accepted is not None and run.accepted.check:
        headers.append((b"x-llmrouter-check", _header_text(run.accepted.check)))
    return headers


def _header_text(text: str) -> bytes:
    """A plan's words as a header can hold them."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else "?" for c in text)
    return text.encode("latin-1", "replace")


def _retry_headers(error: RouterError) -> list[tuple[bytes, bytes]]:
    headers = [(b"x-should-retry", b"true" if error.retryable else b"false")]
    if error.retry_after_s is not None:
        headers += [
            (b"retry-after", b"%d" % math.ceil(error.retry_after_s)),
            (b"retry-after-ms", b"%d" % math.ceil(error.retry_after_s * 1000)),
        ]
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers
