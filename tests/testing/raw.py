"""A client of plain sockets, so that the rig is judged by its bytes and not through another HTTP library."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Self

from llmrouter.testing import FakeBackend

MESSAGES = [{"role": "user", "content": "one two three"}]


def request_bytes(*, path: str = "/v1/chat/completions", method: str = "POST", **fields: Any) -> bytes:
    """One request whose connection may be kept; `fields` extend a small chat body."""
    body = json.dumps({"model": "m", "messages": MESSAGES, **fields}).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: fake\r\nX-Odd:  Spelling\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class RawClient:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    async def send(self, **fields: Any) -> None:
        self.writer.write(request_bytes(**fields))
        await self.writer.drain()

    async def until(self, end: bytes) -> bytes:
        async with asyncio.timeout(5):
            return await self.reader.readuntil(end)

    async def rest(self) -> bytes:
        """All bytes up to the end of the connection; a reset raises ConnectionResetError."""
        async with asyncio.timeout(5):
            return await self.reader.read()

    async def headers(self) -> tuple[int, dict[str, str]]:
        head = (await self.until(b"\r\n\r\n")).decode("latin-1")
        status, *lines = head.strip().split("\r\n")
        return int(status.split()[1]), dict(line.split(": ", 1) for line in lines)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and the whole body, by length or by chunks."""
        status, headers = await self.headers()
        if "content-length" in headers:
            return status, headers, await self.reader.readexactly(int(headers["content-length"]))
        return status, headers, b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        """The HTTP chunks of a body, one by one."""
        while size := int(await self.until(b"\r\n"), 16):
            yield await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)


async def fetch(backend: FakeBackend, **fields: Any) -> tuple[int, dict[str, str], bytes]:
    """One call on a connection of its own."""
    async with RawClient(backend.port) as client:
        await client.send(**fields)
        return await client.answer()
