"""Free ports on the loopback address, and the one question that readiness asks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from urllib.parse import urlsplit

__all__ = ["free_ports", "http_status", "port_is_free"]

_PROBE_TIMEOUT_S = 2.0


def free_ports(count: int) -> list[int]:
    """Different ports that nothing listens on now; another program may still take one before it is used."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def port_is_free(port: int) -> bool:
    """Whether a server could listen on a loopback port now."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


async def http_status(url: str) -> int | None:
    """Status of a GET, or None when nothing that speaks HTTP answers within two seconds.

    A bare request on a new connection: no proxy from the environment gets between two processes of one machine.
    """
    address = urlsplit(url)
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            try:
                request = f"GET {address.path} HTTP/1.1\r\nhost: {address.netloc}\r\nconnection: close\r\n\r\n"
                writer.write(request.encode())
                words = (await reader.readline()).split(maxsplit=2)
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return None
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"HTTP/") and words[1].isdigit() else None
