"""What a call costs: the tokens an engine reports, made consistent, times a price, as an exact decimal.

Engines count in different ways and sometimes wrongly. `normalise_usage` reads all of them into `Usage`, in which the
parts never exceed their totals; `cost_usd` bills each token in exactly one category, so that nothing is paid twice and
nothing is ever negative, whatever it is given.

Not priced, because no category of `Usage` holds them: one-hour cache writes above the five-minute rate (reported by
`normalise_usage`), audio and image tokens at rates of their own (billed as text), searches and other extras.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from llmrouter.pricing.money import EXACT, quantise
from llmrouter.types import Price, Usage

__all__ = ["USAGE_FAULTS", "cost_usd", "normalise_usage"]

USAGE_FAULTS = (
    "missing",
    "not_a_count",
    "too_large",
    "cached_over_input",
    "parts_over_input",
    "reasoning_over_output",
    "total_mismatch",
    "one_hour_cache_write",
)
"""All names that `normalise_usage` can report; a metric may use them as label values."""

MAX_TOKENS = 10**9
"""More than this in one call is an engine's bug."""

_PER_MTOK = -6
_SECONDS_PER_HOUR = Decimal(3600)


def cost_usd(price: Price, usage: Usage) -> Decimal:
    """The price of a usage in dollars, rounded once, to the nearest 1e-12 (ties to even).

    Own pool: `gpu_usd_per_hour · gpus / 3600 · (a · uncached input + b · output)`. List price: cached, cache-write,
    other input and output tokens (reasoning is part of them), each at its rate.

    For usages whose parts fit their totals the unrounded price is linear, so the price of a sum differs from the sum
    of the prices by the roundings alone: by at most half of 1e-12 for each amount involved. With list prices of at most
    six decimals nothing is rounded and the two are equal.
    """
    total = max(usage.input_tokens, 0)
    cached = min(max(usage.cached_tokens, 0), total)
    written = min(max(usage.cache_write_tokens, 0), total - cached)
    output = max(usage.output_tokens, 0)
    if price.gpu_usd_per_hour is not None:
        pool_s = _amount((total - cached, price.input_pool_s_per_token), (output, price.output_pool_s_per_token))
        pool_usd_per_hour = EXACT.multiply(price.gpu_usd_per_hour, Decimal(price.gpus))
        return quantise(EXACT.divide(EXACT.multiply(pool_usd_per_hour, pool_s), _SECONDS_PER_HOUR))
    per_mtok = _amount(
        (total - cached - written, price.input_usd_per_mtok),
        (cached, price.cached_usd_per_mtok),
        (written, price.cache_write_usd_per_mtok),
        (output, price.output_usd_per_mtok),
    )
    return quantise(per_mtok.scaleb(_PER_MTOK, context=EXACT))


def _amount(*parts: tuple[int, Decimal]) -> Decimal:
    total = Decimal(0)
    for tokens, rate in parts:
        if tokens:
            total = EXACT.fma(Decimal(tokens), rate, total)
    return total


def normalise_usage(raw: Mapping[str, Any] | None) -> tuple[Usage, tuple[str, ...]]:
    """Read an engine's usage object; the names are what was wrong with it, for an alert counter.

    Cache counts are parts of the input total in OpenAI's style (`prompt_tokens_details.cached_tokens`) and in
    DeepSeek's (`prompt_cache_hit_tokens`), but come on top of it in Anthropic's (`cache_read_input_tokens` and
    `cache_creation_input_tokens` beside `input_tokens`); some engines report reasoning on top of the output, too.
    A `total_tokens` decides where the names leave doubt. Counts that break a rule are cut so that the parts fit
    their totals; nothing raises.
    """
    if not isinstance(raw, Mapping) or not raw:
        return Usage(), ("missing",)
    plain = _plain_usage(raw)
    if plain is not None:
        return plain, ()
    faults: list[str] = []
    stated_total = _count(raw, faults, "total_tokens")
    output_tokens, reasoning_tokens = _output(raw, faults, stated_total)
    input_tokens, cached_tokens, written_tokens = _input(raw, faults, stated_total, output_tokens)
    if stated_total is not None and stated_total != input_tokens + output_tokens:
        faults.append("total_mismatch")
    usage = Usage(input_tokens, cached_tokens, written_tokens, output_tokens, reasoning_tokens)
    return usage, tuple(dict.fromkeys(faults))


_PLAIN = frozenset(
    {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"}
)


def _plain_usage(raw: Mapping[str, Any]) -> Usage | None:
    """What most engines send: three counts that add up, at most the cached part beside them. None for all else."""
    prompt, output, details = raw.get("prompt_tokens"), raw.get("completion_tokens"), raw.get("prompt_tokens_details")
    if type(prompt) is not int or type(output) is not int or raw.get("total_tokens") != prompt + output:
        return None
    if not (0 <= prompt <= MAX_TOKENS and 0 <= output <= MAX_TOKENS) or not _PLAIN.issuperset(raw):
        return None
    if raw.get("completion_tokens_details"):
        return None
    if not details:
        return Usage(prompt, 0, 0, output)
    cached = details.get("cached_tokens", 0) if type(details) is dict and len(details) == 1 else None
    if type(cached) is not int or not 0 <= cached <= prompt or "cached_tokens" not in details:
        return None
    return Usage(prompt, cached, 0, output)


def _count(place: Mapping[str, Any], faults: list[str], *names: str) -> int | None:
    """The first of several spellings that is there, as a count from 0 to `MAX_TOKENS`."""
    for name in names:
        value = place.get(name)
        if value is not None:
            return value if type(value) is int and 0 <= value <= MAX_TOKENS else _odd_count(value, faults)
    return None


def _odd_count(value: Any, faults: list[str]) -> int:
    if isinstance(value, float) and 0 <= value <= MAX_TOKENS and value.is_integer():
        return int(value)
    too_large = isinstance(value, int) and not isinstance(value, bool) and value > 0
    faults.append("too_large" if too_large else "not_a_count")
    return MAX_TOKENS if too_large else 0


def _details(raw: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        value = raw.get(name)
        if isinstance(value, Mapping):
            return value
    return {}


def _output(raw: Mapping[str, Any], faults: list[str], stated_total: int | None) -> tuple[int, int]:
    """Output tokens and the reasoning among them."""
    output = _count(raw, faults, "completion_tokens", "output_tokens") or 0
    details = _details(raw, "completion_tokens_details", "output_tokens_details")
    reasoning = _count(details, faults, "reasoning_tokens") or 0
    if reasoning and stated_total == (_count(raw, [], "prompt_tokens", "input_tokens") or 0) + output + reasoning:
        output += reasoning
    if reasoning > output:
        faults.append("reasoning_over_output")
    return output, min(reasoning, output)


def _input(raw: Mapping[str, Any], faults: list[str], stated_total: int | None, output: int) -> tuple[int, int, int]:
    """Input tokens, and among them those read from and written to the engine's cache."""
    total = _count(raw, faults, "prompt_tokens", "input_tokens")
    if total is None:
        total = max((stated_total or 0) - output, 0)
    on_top = [_count(raw, faults, name) for name in ("cache_read_input_tokens", "cache_creation_input_tokens")]
    details = _details(raw, "prompt_tokens_details", "input_tokens_details")
    if not any(on_top):
        cached = _count(details, faults, "cached_tokens")
        if cached is None:
            cached = _count(raw, faults, "prompt_cache_hit_tokens") or 0
        written = _count(details, faults, "cache_write_tokens") or 0
    else:
        cached, written = on_top[0] or 0, on_top[1] or 0
        if _is_on_top(raw, stated_total, total, output, cached + written):
            total += cached + written
        if _count(_details(raw, "cache_creation"), faults, "ephemeral_1h_input_tokens"):
            faults.append("one_hour_cache_write")
    if cached > total:
        faults.append("cached_over_input")
    elif cached + written > total:
        faults.append("parts_over_input")
    cached = min(cached, total)
    return total, cached, min(written, total - cached)


def _is_on_top(raw: Mapping[str, Any], stated_total: int | None, total: int, output: int, cache: int) -> bool:
    """Whether counts under Anthropic's names are missing from the input total: some proxies have added them already."""
    if stated_total in (total + output, total + cache + output):
        return stated_total == total + cache + output
    return raw.get("prompt_tokens") is None or cache > total
