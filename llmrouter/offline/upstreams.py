"""Calls configured models outside the gateway: for batches of work, where a retry is better than a failure.

Nothing here is booked, limited or cached. A model's replicas take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson

from llmrouter.backends.echo import EchoBackend
from llmrouter.backends.openai import OpenAIBackend
from llmrouter.config import Config, PoolConfig
from llmrouter.errors import ConfigError
from llmrouter.pricing.cost import normalise_usage
from llmrouter.protocols import Backend, BackendFault, Timeouts
from llmrouter.types import ChatRequest, Usage, value

__all__ = ["CallFailed", "Complete", "Completion", "ToolCalls", "Upstreams"]

Sleep: TypeAlias = Callable[[float], Awaitable[object]]

_TRIES = 4
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


ToolCalls: TypeAlias = tuple[tuple[str, str], ...]
"""Name and arguments of each call."""


@value
class Completion:
    """What a model answered."""

    texts: tuple[str, ...]
    """One a choice."""
    finish: tuple[str | None, ...]
    usage: Usage
    """`estimated` where the engine did not tell it."""
    logprobs: tuple[Any, ...] = ()
    """The entries of the first choice's tokens, as the engine gave them."""
    tool_calls: tuple[ToolCalls, ...] = ()
    """One a choice."""


Complete: TypeAlias = Callable[[str, ChatRequest], Awaitable[Completion]]
"""Model id, request → its answer; raises `CallFailed`."""


class CallFailed(Exception):
    """A model did not answer, also not when it was asked again; the message says why and holds no secret."""


@dataclass(frozen=True, slots=True)
class Upstreams:
    """The replicas of some configured models.

    Args:
        slots: how many calls of a model may be under way, where its pool says.
    """

    backends: Mapping[str, Sequence[Backend]]
    timeouts: Mapping[str, Timeouts]
    slots: Mapping[str, asyncio.Semaphore]
    sleep: Sleep = asyncio.sleep
    _turns: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        config: Config,
        models: Sequence[str],
        *,
        runner_urls: Mapping[str, tuple[str, ...]] | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> Upstreams:
        """The replicas of these models' pools; nothing is opened yet.

        Args:
            runner_urls: addresses of the pools that have a runner, by pool.

        Raises:
            ConfigError: a model has no pool, or its runner has not been started.
        """
        backends: dict[str, list[Backend]] = {}
        timeouts = {}
        slots = {}
        for model in models:
            pool_id = _pool_of(config, model)
            pool = config.pools[pool_id]
            backends[model] = _open(pool_id, pool, config, (runner_urls or {}).get(pool_id))
            limits = pool.timeouts
            total_s = config.server.request_timeout_s
            timeouts[model] = Timeouts(limits.connect_s, limits.first_byte_s, limits.between_chunks_s, total_s)
            if pool.max_concurrency is not None:
                slots[model] = asyncio.Semaphore(pool.max_concurrency)
        return cls(backends, timeouts, slots, sleep)

    async def complete(self, model: str, request: ChatRequest) -> Completion:
        """Call a model until it answers, a few times at most, with growing pauses or those that it asks for.

        Raises:
            CallFailed: it did not answer, or refused.
        """
        slots = self.slots.get(model)
        if slots is None:
            return await self._complete(model, request)
        async with slots:
            return await self._complete(model, request)

    async def aclose(self) -> None:
        """Close idle connections."""
        for backends in self.backends.values():
            for backend in backends:
                await backend.aclose()

    async def _complete(self, model: str, request: ChatRequest) -> Completion:
        pause_s = _FIRST_PAUSE_S
        for last in (*[False] * (_TRIES - 1), True):
            turn = self._turns[model] = self._turns.get(model, -1) + 1
            backend = self.backends[model][turn % len(self.backends[model])]
            try:
                return await self._once(model, backend, request)
            except _AgainError as again:
                if last:
                    raise CallFailed(f"{backend.name}: {again}") from again
                await self.sleep(min(again.after_s or pause_s, _LONGEST_PAUSE_S))
                pause_s *= 2
        raise AssertionError("the last try returns or raises")

    async def _once(self, model: str, backend: Backend, request: ChatRequest) -> Completion:
        try:
            reply = await backend.open(
                request, request_id="labels", timeouts=self.timeouts[model], cache_salt=None, priority=None
            )
            try:
                body = await reply.read()
                status, after = reply.status, reply.header("retry-after")
            finally:
                reply.close()
        except BackendFault as fault:
            raise _AgainError(fault.message) from fault
        if status in _AGAIN:
            raise _AgainError(_told(status, body), _seconds(after))
        if status != 200:
            raise CallFailed(f"{backend.name}: {_told(status, body)}")
        return _read(body, request)


class _AgainError(Exception):
    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


def _pool_of(config: Config, model: str) -> str:
    for pool_id, pool in config.pools.items():
        if pool.model == model:
            return pool_id
    raise ConfigError(f"the model {model!r} has no pool")


def _open(pool_id: str, pool: PoolConfig, config: Config, started: tuple[str, ...] | None) -> list[Backend]:
    if pool.api == "echo":
        return [EchoBackend(name=f"{pool_id}/0", model=pool.model)]
    urls = pool.urls if pool.runner is None else started
    if urls is None:
        raise ConfigError(f"pools.{pool_id}: its runner has not been started")
    return [
        OpenAIBackend(
            name=f"{pool_id}/{position}",
            base_url=url,
            engine=pool.engine,
            model=pool.upstream_model or pool.model,
            cap_field=pool.max_tokens_field,
            api_key=pool.api_key.get_secret_value() if pool.api_key is not None else None,
            headers={name: each.get_secret_value() for name, each in pool.headers.items()},
            idle_s=pool.idle_connection_s,
            max_body_bytes=config.limits.max_answer_bytes,
        )
        for position, url in enumerate(urls)
    ]


def _told(status: int, body: bytes) -> str:
    try:
        error = orjson.loads(body)["error"]
        message = error["message"] if isinstance(error, dict) else error
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = body[:200].decode(errors="replace")
    return f"HTTP {status}: {str(message)[:200]}"


def _seconds(header: str | None) -> float | None:
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if 0 < seconds < float("inf") else None


def _read(body: bytes, request: ChatRequest) -> Completion:
    try:
        parsed = orjson.loads(body)
        choices = parsed["choices"]
        texts = tuple(_text(choice["message"]) for choice in choices)
        finish = tuple(choice.get("finish_reason") for choice in choices)
        calls = tuple(_calls(choice["message"]) for choice in choices)
        logprobs = tuple((choices[0].get("logprobs") or {}).get("content") or ())
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise _AgainError("the answer is not one that can be read") from error
    usage, faults = normalise_usage(parsed.get("usage"))
    if "missing" in faults:
        usage = _estimated(request, texts)
    return Completion(texts, finish, usage, logprobs, calls)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") == "text")
    return content or ""


def _calls(message: Mapping[str, Any]) -> ToolCalls:
    functions = (call["function"] for call in message.get("tool_calls") or () if call.get("function"))
    return tuple((function["name"], function.get("arguments") or "") for function in functions)


_BYTES_PER_TOKEN = 4


def _estimated(request: ChatRequest, texts: Sequence[str]) -> Usage:
    """About four bytes a token, as English has them."""
    written = sum(len(text.encode(errors="replace")) for text in texts)
    read = max(request.text_bytes // _BYTES_PER_TOKEN, 1)
    return Usage(read, output_tokens=-(-written // _BYTES_PER_TOKEN), estimated=True)
