"""Listening sockets and uvicorn servers, set up the same way for workers, the admin port and tests."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterator

import uvicorn

from llmrouter.errors import ConfigError
from llmrouter.gateway.asgi import App

__all__ = ["bind", "is_loopback", "server", "split_address"]


def split_address(listen: str) -> tuple[str, int]:
    """`HOST:PORT`, `[IPv6]:PORT` or `:PORT` apart; raises `ConfigError`."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"listen address {listen!r} is not HOST:PORT")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - what an empty host means everywhere


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process that owns this server."""
        yield


def server(app: App, *, drain_s: float) -> uvicorn.Server:
    """A uvicorn server without signal handling, access log or framework headers of its own."""
    config = uvicorn.Config(
        app,
        http="httptools",
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
