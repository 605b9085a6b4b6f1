"""A server of plain sockets whose every byte the test writes, and a client with short time limits."""

import asyncio
import functools
import inspect
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from llmrouter.backends.http import HttpClient, HttpReply
from llmrouter.protocols import Timeouts

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "one two three"}]}'
PATIENT = Timeouts(connect_s=5, first_byte_s=5, between_chunks_s=5, total_s=10)

Serve = Callable[["Peer"], Awaitable[None]]


class Peer:
    """The server's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def request(self) -> bytes:
        """One whole request."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        return head + await self._reader.readexactly(length)

    async def write(self, *pieces: bytes) -> None:
        """Write pieces apart, with a turn of the loop after each."""
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(0)

    async def left(self) -> None:
        """Wait until the client has gone, by FIN or RST."""
        try:
            while await self._reader.read(65536):
                pass
        except ConnectionError:
            return


class RawServer:
    """Runs a coroutine of the test for each connection; what it raises ends the test."""

    def __init__(self, serve: Serve, tls: ssl.SSLContext | None) -> None:
        self._serve = serve
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}/v1"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(Peer(reader, writer))
        except asyncio.IncompleteReadError:
            return  # the client left instead of asking again
        finally:
            writer.transport.abort()

    async def stop(self) -> None:
        self._server.close()
        async with asyncio.timeout(5):
            await asyncio.gather(*self._tasks)


@asynccontextmanager
async def raw_server(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawServer]:
    server = RawServer(serve, tls)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def client_of(url: str, **options: Any) -> AsyncIterator[HttpClient]:
    client = HttpClient(url, **options)
    try:
        yield client
    finally:
        await client.aclose()
        assert client.idle_connections == 0


async def call(
    client: HttpClient, *, timeouts: Timeouts = PATIENT, headers: bytes = b"", body: bytes = BODY
) -> HttpReply:
    return await client.request(b"POST", b"/chat/completions", headers=headers, body=body, timeouts=timeouts)


async def fetch(client: HttpClient, **options: Any) -> bytes:
    """The body of one call, its connection given back."""
    reply = await call(client, **options)
    try:
        return await reply.read()
    finally:
        reply.close()


async def until(predicate: Callable[[], bool]) -> None:
    """Let the loop turn until the predicate holds."""
    async with asyncio.timeout(5):
        while not predicate():
            await asyncio.sleep(0.001)


RUNNERS: dict[str, Callable[[Any], None]] = {"asyncio": asyncio.run, "uvloop": uvloop.run}


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test under asyncio's loop and under uvloop, which serves in production."""

    @functools.wraps(test)
    def under(run: Callable[[Any], None], **arguments: Any) -> None:
        run(test(**arguments))

    own = inspect.signature(test)
    runner = inspect.Parameter("run", inspect.Parameter.KEYWORD_ONLY)
    under.__signature__ = own.replace(parameters=[*own.parameters.values(), runner])  # type: ignore[attr-defined]
    marked: Callable[..., None] = pytest.mark.parametrize("run", RUNNERS.values(), ids=RUNNERS.keys())(under)
    return marked
