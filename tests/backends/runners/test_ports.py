from __future__ import annotations

import asyncio
import socket

import pytest

from llmrouter.backends.runners.ports import free_ports, http_status, port_is_free


def test_free_ports_are_different_and_free() -> None:
    ports = free_ports(8)
    assert len(set(ports)) == 8
    assert all(port_is_free(port) for port in ports)


def test_a_port_that_somebody_listens_on_is_not_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert not port_is_free(listener.getsockname()[1])


async def status_of(reply: bytes) -> int | None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        return await http_status(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/health")


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 200),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", 503),
        (b"HTTP/1.0 200\r\n\r\n", 200),
        (b"SSH-2.0-OpenSSH\r\n", None),
        (b"HTTP/1.1 two hundred\r\n\r\n", None),
        (b"", None),
        (b"x" * 200_000, None),
    ],
)
async def test_the_status_of_an_answer(reply: bytes, status: int | None) -> None:
    assert await status_of(reply) == status


async def test_nobody_listening_is_no_status() -> None:
    assert await http_status(f"http://127.0.0.1:{free_ports(1)[0]}/health") is None
