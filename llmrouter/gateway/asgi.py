"""The hot path: a plain ASGI callable in front of the FastAPI app. Only the listed paths exist."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from llmrouter.errors import Draining, InternalError, ModelNotFound, NoCapacity, NotFound, RequestError, RouterError
from llmrouter.gateway.exchange import Exchange, Message, Receive, Send
from llmrouter.gateway.pipeline import Pipeline
from llmrouter.types import Endpoint

__all__ = ["Gateway"]

_log = logging.getLogger("llmrouter.gateway")

_ENDPOINTS: dict[str, Endpoint] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
}

App = Callable[[Message, Receive, Send], Awaitable[None]]


class Gateway:
    """The data plane of one worker.

    Args:
        admin: the app that serves `/v1/admin/*` and `/metrics` on this port; None where they have a port of their own.
        ready: why this worker should get no traffic, or None when it should.
    """

    def __init__(self, pipeline: Pipeline, *, admin: App | None, ready: Callable[[], str | None]) -> None:
        self.pipeline = pipeline
        self.draining = False
        self._admin = admin
        self._ready = ready
        self._active: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        endpoint = _ENDPOINTS.get(path)
        if endpoint is not None and method == "POST":
            await self._answer(endpoint, scope, receive, send)
        elif path == "/live":
            await _json(send, 200, {"status": "ok"})
        elif path == "/ready":
            reason = "draining" if self.draining else self._ready()
            body = {"status": "ok"} if reason is None else {"status": "unavailable", "reason": reason}
            await _json(send, 200 if reason is None else 503, body)
        elif path == "/v1/models" or path.startswith("/v1/models/"):
            await self._models(path, method, scope, receive, send)
        elif self._admin is not None and (path == "/metrics" or path.startswith("/v1/admin/")):
            await self._admin(scope, receive, send)
        else:
            await self._refuse(scope, receive, send, _no_such_path(path, method))

    async def idle(self, grace_s: float) -> None:
        """Wait until no request is under way, at most so long."""
        if self._active:
            await asyncio.wait(self._active, timeout=grace_s)

    @property
    def active(self) -> int:
        """Requests under way."""
        return len(self._active)

    async def _answer(self, endpoint: Endpoint, scope: Message, receive: Receive, send: Send) -> None:
        config = self.pipeline.state.config
        exchange = Exchange(
            endpoint,
            scope["headers"],
            receive,
            send,
            max_body_bytes=config.limits.max_body_bytes,
            body_timeout_s=config.server.body_timeout_s,
        )
        most = config.server.max_concurrent_requests
        if len(self._active) >= most:
            await exchange.refuse(NoCapacity(f"this gateway takes {most} requests at once", retry_after_s=1.0))
        elif self.draining:
            await exchange.refuse(_draining())
        else:
            await self._handle(exchange)
        await exchange.linger()

    async def _handle(self, exchange: Exchange) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._active.add(task)
        try:
            await self.pipeline.handle(exchange)
        except asyncio.CancelledError:
            # Cancelled by the client that left, or by a server whose grace time is over.
            if not exchange.client_gone:
                await exchange.refuse(_draining())
        except Exception:  # noqa: BLE001 - the outer edge: logged, and never a framework's error to a client
            _log.exception("request %s failed inside the gateway", exchange.request_id)
            await exchange.refuse(InternalError(f"an internal error; the log has it under {exchange.request_id}"))
        finally:
            exchange.close()
            self._active.discard(task)

    async def _models(self, path: str, method: str, scope: Message, receive: Receive, send: Send) -> None:
        """The tiers that this key may use."""
        state = self.pipeline.state
        exchange = Exchange("chat", scope["headers"], receive, send, max_body_bytes=0)
        try:
            principal = state.keys.authenticate(exchange.authorization)
            if method != "GET":
                raise _no_such_path(path, method)
            listed = [
                {"id": tier_id, "object": "model", "created": state.created, "owned_by": "llmrouter"}
                for tier_id in state.tiers
                if principal.may_use(tier_id)
            ]
            if path == "/v1/models":
                await _json(send, 200, {"object": "list", "data": listed})
                return
            wanted = path.removeprefix("/v1/models/")
            found = next((model for model in listed if model["id"] == wanted), None)
            if found is None:
                raise ModelNotFound(f"no model `{wanted[:128]}`", param="model")
            await _json(send, 200, found)
        except RouterError as error:
            await exchange.refuse(error)
            await exchange.linger()

    async def _refuse(self, scope: Message, receive: Receive, send: Send, error: RequestError) -> None:
        exchange = Exchange("chat", scope["headers"], receive, send, max_body_bytes=0)
        await exchange.refuse(error)
        await exchange.linger()


def _draining() -> Draining:
    return Draining("this gateway is shutting down", retry_after_s=1.0)


def _no_such_path(path: str, method: str) -> NotFound:
    return NotFound(f"no such path: {method} {path[:128]}")


async def _json(send: Send, status: int, body: dict[str, Any]) -> None:
    raw = orjson.dumps(body)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(raw))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": raw})
