"""The floor of our stack: uvicorn and the gateway's own HTTP client, which only forward.

No keys, no parse, no rules, no books; what it costs is what no feature can take away.
"""

from __future__ import annotations

import argparse
import gc

import uvloop

from llmrouter.backends.http import HttpClient, HttpReply
from llmrouter.gateway.exchange import Message, Receive, Send
from llmrouter.gateway.listen import bind, server
from llmrouter.protocols import BackendFault, Timeouts

__all__ = ["Forwarder"]

_TIMEOUTS = Timeouts(connect_s=3.0, first_byte_s=60.0, between_chunks_s=60.0, total_s=600.0)
_HEADERS = b"content-type: application/json\r\n"


class Forwarder:
    """An ASGI app that sends every body on and every answer back."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        parts: list[bytes] = []
        more = True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        try:
            reply = await self._client.request(
                scope["method"].encode(),
                scope["raw_path"],
                headers=_HEADERS,
                body=b"".join(parts),
                timeouts=_TIMEOUTS,
            )
        except BackendFault:
            await _whole(send, 502, b"")
            return
        try:
            await _back(reply, send)
        finally:
            reply.close()


async def _back(reply: HttpReply, send: Send) -> None:
    if reply.header("content-length") is not None:
        await _whole(send, reply.status, await reply.read())
        return
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    while block := await reply.next_block():
        await send({"type": "http.response.body", "body": block, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _whole(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _serve(listen: str, engine: str) -> None:
    app = Forwarder(HttpClient(engine))
    gc.collect()
    gc.freeze()
    await server(app, drain_s=1.0).serve(sockets=[bind(listen)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", required=True, help="HOST:PORT")
    parser.add_argument("--engine", required=True, help="base address of the engine")
    given = parser.parse_args()
    uvloop.run(_serve(given.listen, given.engine))


if __name__ == "__main__":
    main()
