"""The demo as a client: it knows the gateway's address and a key, and speaks the public API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from llmrouter.cli.demonstration.prompts import Prompt
from llmrouter.errors import RouterError

__all__ = ["Client", "Reply"]

_PATIENCE_S = 180.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for one prompt."""

    request_id: str
    model_id: str
    reason: str
    text: str


class Client:
    """Asks one gateway for streamed answers, one prompt at a time; `async with` closes its connections.

    Args:
        transport: in place of the network, for tests.
    """

    def __init__(self, base_url: str, key: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers={"authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(_PATIENCE_S, connect=5.0),
            transport=transport,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def ask(
        self, prompt: Prompt, *, on_answer: Callable[[str, str], None], on_text: Callable[[str], None]
    ) -> Reply:
        """Send one prompt. `on_answer` is told model and reason when the answer begins, `on_text` each piece of it.

        Raises:
            RouterError: the gateway refused, broke off, or cannot be reached.
        """
        request = self._http.build_request("POST", "/chat/completions", json=_body(prompt), headers=_headers(prompt))
        try:
            response = await self._http.send(request, stream=True)
            try:
                if response.status_code != 200:
                    raise RouterError(_told(response.status_code, await response.aread()))
                model_id, reason = response.headers["x-llmrouter-model"], response.headers["x-llmrouter-reason"]
                on_answer(model_id, reason)
                pieces = []
                async for piece in _pieces(response):
                    pieces.append(piece)
                    on_text(piece)
            finally:
                await response.aclose()
        except httpx.HTTPError as error:
            raise RouterError(f"the gateway cannot be reached: {str(error) or type(error).__name__}") from error
        return Reply(response.headers["x-request-id"], model_id, reason, "".join(pieces))


def _body(prompt: Prompt) -> dict[str, Any]:
    return {
        "model": prompt.tier,
        "messages": [{"role": "user", "content": prompt.text}],
        "max_tokens": prompt.max_tokens,
        "temperature": 0,
        "stream": True,
    }


def _headers(prompt: Prompt) -> dict[str, str]:
    return {} if prompt.conversation is None else {"x-llmrouter-conversation": prompt.conversation}


async def _pieces(response: httpx.Response) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            raise RouterError(f"the answer broke off: {chunk['error']['message']}")
        for choice in chunk["choices"]:
            if text := choice["delta"].get("content"):
                yield text


def _told(status: int, body: bytes) -> str:
    try:
        return f"HTTP {status}: {json.loads(body)['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}: {body[:200]!r}"
