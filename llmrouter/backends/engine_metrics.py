"""Reads the few figures we use from an engine's own pages, whatever its version calls them.

A figure that is missing, not a number or negative is None (unknown), never 0: an engine that stops reporting its queue
has not become idle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

__all__ = ["EngineLoad", "parse_metrics", "served_models"]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine says of itself; each figure is None where the engine does not report it."""

    running: float | None = None
    """Requests in model execution, over all engines behind the address."""
    waiting: float | None = None
    """Requests in the engine's own queue."""
    kv_usage: float | None = None
    """Share of the KV cache in use, 0 to 1; of several engines the fullest, as that one preempts first."""
    prefix_queries: float | None = None
    """Prompt tokens looked up in the prefix cache since the engine started."""
    prefix_hits: float | None = None


# Newest name first. The first name that is present wins, for some versions report the same figure under two.
_RUNNING = ("vllm:num_requests_running", "llamacpp:requests_processing")
_WAITING = ("vllm:num_requests_waiting", "llamacpp:requests_deferred", "vllm:num_requests_waiting_by_reason")
_KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "llamacpp:kv_cache_usage_ratio")
_PREFIX_QUERIES = ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries")
_PREFIX_HITS = ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits", "llamacpp:prompt_tokens_cached")
_COMPUTED = ("llamacpp:prompt_tokens",)
"""llama.cpp counts prompt tokens without the cached ones; both together are its look-ups."""

_NAMES = (*_RUNNING, *_WAITING, *_KV_USAGE, *_PREFIX_QUERIES, *_PREFIX_HITS, *_COMPUTED)
# Counters come with or without `_total`. Label values may hold braces, spaces and escaped quotes.
_SAMPLE = re.compile(
    rf"^({'|'.join(map(re.escape, _NAMES))})(?:_total)?"
    r'(?:[ \t]*\{(?:[^"{}\n]|"(?:[^"\\\n]|\\.)*")*\})?[ \t]+(\S+)',
    re.MULTILINE,
)


def parse_metrics(body: str) -> EngineLoad:
    """Read a Prometheus text page of vLLM or llama.cpp; lines that make no sense are passed over."""
    series: dict[str, list[float]] = {}
    for found in _SAMPLE.finditer(body):
        value = _number(found.group(2))
        if value is not None:
            series.setdefault(found.group(1), []).append(value)
    hits, queries = _total(series, _PREFIX_HITS), _total(series, _PREFIX_QUERIES)
    computed = _total(series, _COMPUTED)
    if queries is None and hits is not None and computed is not None:
        queries = hits + computed
    usage = _pick(series, _KV_USAGE)
    return EngineLoad(
        running=_total(series, _RUNNING),
        waiting=_total(series, _WAITING),
        kv_usage=max(usage) if usage else None,
        prefix_queries=queries,
        prefix_hits=hits,
    )


def served_models(body: bytes) -> Mapping[str, int | None] | None:
    """Names in a `/v1/models` answer with their context windows where the engine tells; None if it is no such list."""
    try:
        page = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    items = page.get("data") if isinstance(page, dict) else None
    if not isinstance(items, list):
        return None
    named = (item for item in items if isinstance(item, dict) and isinstance(item.get("id"), str))
    return {item["id"]: _window(item) for item in named}


def _window(item: Mapping[str, object]) -> int | None:
    """vLLM says `max_model_len`; llama.cpp puts the window of one slot into `meta.n_ctx`."""
    meta = item.get("meta")
    window = item.get("max_model_len", meta.get("n_ctx") if isinstance(meta, dict) else None)
    return window if isinstance(window, int) and window > 0 else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _pick(series: Mapping[str, list[float]], names: tuple[str, ...]) -> list[float]:
    return next((series[name] for name in names if name in series), [])


def _total(series: Mapping[str, list[float]], names: tuple[str, ...]) -> float | None:
    values = _pick(series, names)
    return sum(values) if values else None
