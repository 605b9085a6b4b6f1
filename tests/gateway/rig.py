"""What the end-to-end tests of the gateway share: configurations of one or two models, a client of plain sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import openai
from openai import AsyncOpenAI

from llmrouter.testing import FakeBackend
from tests.support import Running, model, pool, tier
from tests.testing.raw import RawClient

__all__ = ["MESSAGES", "ONCE", "PATIENT", "Wire", "named", "one", "port", "request", "sdk", "two", "until"]

MESSAGES = [{"role": "user", "content": "Hi"}]

ONCE = "retries = 0\nmax_wait_s = 0\n"
"""A tier that calls each model once and waits for none."""
PATIENT = "breaker.failures = 1000\n"
"""A pool whose breaker stays out of the way."""


def one(
    *engines: FakeBackend, on: str = ONCE, pools: str = PATIENT, models: str = "", api: str = "vllm", more: str = ""
) -> str:
    """A tier `auto` of one model `s` with these replicas."""
    urls = [engine.url for engine in engines]
    return f"{model('s', extra=models)}{pool('s', urls, api=api, extra=pools)}{tier('auto', small='s', extra=on)}{more}"


def two(small: FakeBackend, large: FakeBackend, *, on: str = ONCE, pools: str = PATIENT, more: str = "") -> str:
    """A tier `auto` whose model `s` is replaced by the dearer `l` when it fails."""
    models = model("s") + model("l", usd_in="10", usd_out="20")
    pooled = pool("s", [small.url], extra=pools) + pool("l", [large.url], extra=pools)
    return f"{models}{pooled}{tier('auto', small='s', large='l', extra=on)}{more}"


def named(value: Any) -> str | None:
    """A step of a fake engine as part of a test's name."""
    if not hasattr(value, "plan"):
        return None
    told = [str(getattr(value, name)) for name in ("status", "after", "end") if hasattr(value, name)]
    return "-".join([type(value).__name__, *told]).replace("\r", "CR").replace("\n", "LF")


def port(gateway: Running) -> int:
    return int(gateway.root.rpartition(":")[2])


def sdk(gateway: Running, *, key: str | None = None, max_retries: int = 0, **options: Any) -> Any:
    """The official asynchronous client; typed as Any, because its types ask for its own message classes."""
    plain = openai.DefaultAsyncHttpxClient(verify=False)
    return AsyncOpenAI(
        base_url=gateway.base_url, api_key=key or gateway.key, http_client=plain, max_retries=max_retries, **options
    )


def request(
    gateway: Running,
    *,
    path: str = "/v1/chat/completions",
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    **fields: Any,
) -> bytes:
    """The bytes of one request with the gateway's plain key; `fields` extend a small chat body."""
    if body is None:
        body = json.dumps({"model": "auto", "messages": MESSAGES, **fields}).encode()
    lines = {"Host": "gateway", "Authorization": f"Bearer {gateway.key}", "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in {**lines, **(headers or {})}.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


async def until(predicate: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait until something is so in the gateway, which tells nobody when it changes."""
    async with asyncio.timeout(timeout_s):
        while not predicate():
            await asyncio.sleep(0.002)


class Wire(RawClient):
    """One connection to a gateway on which a test writes and reads bytes, and which it can drop."""

    def __init__(self, gateway: Running) -> None:
        super().__init__(port(gateway))
        self._gateway = gateway

    async def ask(self, **fields: Any) -> None:
        """Send a chat request; fields as for `request`."""
        self.writer.write(request(self._gateway, **fields))
        await self.writer.drain()

    def leave(self, how: str = "close") -> None:
        """Go away, orderly with FIN or with RST."""
        if how == "reset":
            self.writer.transport.abort()
        else:
            self.writer.close()

    async def body(self) -> bytes:
        """The whole body of a chunked answer whose head has been read."""
        return b"".join([chunk async for chunk in self.chunks()])
