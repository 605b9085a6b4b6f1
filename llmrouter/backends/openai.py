"""A replica that speaks the OpenAI wire format: vLLM, llama.cpp's server, hosted APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from llmrouter import __version__
from llmrouter.backends.http import HttpClient
from llmrouter.protocols import Reply, Timeouts
from llmrouter.types import ChatRequest

__all__ = ["OpenAIBackend", "encode"]

_PATHS = {"chat": b"/chat/completions", "completions": b"/completions", "embeddings": b"/embeddings"}

_SALTED = frozenset({"vllm"})
"""Engines whose prefix cache takes a `cache_salt`."""

_DEFAULT_CAP_FIELD = {"openai": "max_completion_tokens"}


class OpenAIBackend:
    """One base address of one model.

    Args:
        name: for logs and the ledger.
        base_url: up to and including `/v1`.
        engine: `openai`, `vllm` or `llama_cpp`; decides renames and engine-only fields.
        model: what the upstream calls the model.
        cap_field: the one output-cap field it accepts; None picks by engine.
    """

    def __init__(
        self,
        *,
        name: str,
        base_url: str,
        engine: str,
        model: str,
        cap_field: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        idle_s: float = 4.0,
        max_body_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._name = name
        self._engine = engine
        self._model = model
        self._cap_field = cap_field or _DEFAULT_CAP_FIELD.get(engine, "max_tokens")
        self._client = HttpClient(base_url, idle_s=idle_s, max_body_bytes=max_body_bytes)
        lines = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "accept-encoding": "identity",
            "user-agent": f"llmrouter/{__version__}",
            **({"authorization": f"Bearer {api_key}"} if api_key else {}),
            **(headers or {}),
        }
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode("latin-1")

    @property
    def name(self) -> str:
        return self._name

    async def open(self, request: ChatRequest, *, request_id: str, timeouts: Timeouts, cache_salt: str | None) -> Reply:
        salt = cache_salt if self._engine in _SALTED and request.endpoint != "embeddings" else None
        body = encode(request, model=self._model, cap_field=self._cap_field, cache_salt=salt)
        headers = b"%bx-request-id: %b\r\n" % (self._headers, request_id.encode("ascii"))
        return await self._client.request(
            b"POST", _PATHS[request.endpoint], headers=headers, body=body, timeouts=timeouts
        )

    async def aclose(self) -> None:
        await self._client.aclose()


def encode(request: ChatRequest, *, model: str, cap_field: str, cache_salt: str | None) -> bytes:
    """The request body for one upstream: its model name, its one output-cap field, usage always asked for."""
    body: dict[str, Any] = {**request.fields, "model": model}
    if request.endpoint == "chat":
        body.pop("max_tokens", None)
        body.pop("max_completion_tokens", None)
        if request.max_output_tokens is not None:
            body[cap_field] = request.max_output_tokens
    elif request.endpoint == "completions" and request.max_output_tokens is not None:
        body["max_tokens"] = request.max_output_tokens
    if request.stream:
        body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
    if cache_salt is not None:
        body["cache_salt"] = cache_salt
    return orjson.dumps(body)
