"""A replica that speaks the OpenAI wire format: vLLM, llama.cpp's server, hosted APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from llmrouter import __version__
from llmrouter.backends.http import HttpClient
from llmrouter.errors import ConfigError
from llmrouter.protocols import Reply, Timeouts
from llmrouter.types import ChatRequest

__all__ = ["OpenAIBackend", "encode"]

_PATHS = {"chat": b"/chat/completions", "completions": b"/completions", "embeddings": b"/embeddings"}

_SALTED = frozenset({"vllm"})
"""Engines whose prefix cache takes a `cache_salt`."""

_DEFAULT_CAP_FIELD = {"openai": "max_completion_tokens"}
_CAP_FIELDS = ("max_tokens", "max_completion_tokens")


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
        """Raises `ConfigError` when a header cannot be sent."""
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
            **{header.lower(): value for header, value in (headers or {}).items()},
        }
        self._headers = b"".join(_header_line(name, header, value) for header, value in lines.items())

    @property
    def name(self) -> str:
        return self._name

    async def open(
        self,
        request: ChatRequest,
        *,
        request_id: str,
        timeouts: Timeouts,
        cache_salt: str | None,
        priority: int | None = None,
    ) -> Reply:
        salt = cache_salt if self._engine in _SALTED and request.endpoint != "embeddings" else None
        body = encode(
            request,
            model=self._model,
            cap_field=self._cap_field,
            cache_salt=salt,
            engine=self._engine,
            priority=priority,
        )
        headers = b"%bx-request-id: %b\r\n" % (self._headers, request_id.encode("ascii"))
        return await self._client.request(
            b"POST", _PATHS[request.endpoint], headers=headers, body=body, timeouts=timeouts
        )

    async def aclose(self) -> None:
        await self._client.aclose()


def encode(
    request: ChatRequest,
    *,
    model: str,
    cap_field: str,
    cache_salt: str | None,
    engine: str | None = None,
    priority: int | None = None,
) -> bytes:
    """The request body for one upstream: its model name, its one output-cap field, usage always asked for."""
    body: dict[str, Any] = {**request.fields, "model": model}
    if request.endpoint != "embeddings":
        for name in _CAP_FIELDS:
            body.pop(name, None)
        if request.max_output_tokens is not None:
            body[cap_field if request.endpoint == "chat" else "max_tokens"] = request.max_output_tokens
    if request.stream:
        body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
    if cache_salt is not None:
        body["cache_salt"] = cache_salt
    if priority is not None:
        body["priority"] = priority
    if engine == "openai" and not body.get("store"):
        # OpenAI answers 400 to `metadata` without `store`; here it is tags for routing and the books.
        body.pop("metadata", None)
    return orjson.dumps(body)


def _header_line(backend: str, name: str, value: str) -> bytes:
    line = f"{name}: {value}"
    if "\r" in line or "\n" in line:
        raise ConfigError(f"{backend}: header {name!r} has a line end in its value")
    try:
        return f"{line}\r\n".encode("latin-1")
    except UnicodeEncodeError:
        raise ConfigError(f"{backend}: header {name!r} has characters that HTTP cannot send") from None
