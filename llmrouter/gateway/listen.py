"""Listening sockets and uvicorn servers, set up the same way for workers, the admin port and tests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from llmrouter.errors import ConfigError
from llmrouter.gateway.asgi import App

__all__ = ["bind", "server", "split_address"]


def split_address(listen: str) -> tuple[str, int]:
    """`HOST:PORT`, `[IPv6]:PORT` or `:PORT` apart; raises `ConfigError`."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"listen address {listen!r} is not HOST:PORT")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - what an empty host means everywhere


def bind(listen: str) -> socket.socket:
    """A listening socket that child processes may inherit.

    Raises:
        ConfigError: the address is not one, or is taken.
    """
    host, port = split_address(listen)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise ConfigError(f"cannot listen on {listen}: {error.strerror or error}") from error
    listener.listen(2048)
    listener.set_inheritable(True)
    return listener


_MOST_HEAD_BYTES = 2 * 1024 * 1024
"""Generous, so that an absurd API key is still told that it is wrong (401)."""
_HEAD_TIMEOUT_S = 30.0


class _Protocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with limits on a request's head, which it has none of: bytes, and time for the first one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._in_head = True
        self._head_bytes = 0
        self._first_head = self.loop.call_later(_HEAD_TIMEOUT_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._first_head.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("the head of the request is too large")

    def on_headers_complete(self) -> None:
        self._first_head.cancel()
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True
        self._head_bytes = 0


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process that owns this server."""
        yield


def server(app: App, *, drain_s: float) -> uvicorn.Server:
    """A uvicorn server without signal handling, access log or framework headers of its own."""
    config = uvicorn.Config(
        app,
        http=_Protocol,
        loop="uvloop",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(int(drain_s), 1),
        ws="none",
    )
    return _Server(config)
