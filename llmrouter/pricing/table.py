"""From a model's configured price to the rates that hold at one moment; slow, so never on the way of a request.

A price of the user's own wins. Otherwise the table of the `genai-prices` package is asked, which ships with llmrouter,
needs no network and knows prices by date. What is not in it is an error, never a price of zero.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from llmrouter.config import GpuPrice, ListPrice, ModelConfig
from llmrouter.errors import ConfigError
from llmrouter.types import Price

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, Provider

__all__ = ["PriceLadder", "resolve_ladder", "resolve_price"]


@dataclass(frozen=True, slots=True)
class PriceLadder:
    """A model's prices by size of the prompt; most models have one step.

    A prompt of more than `above` tokens is billed whole at that step, as providers with long-context prices do.
    """

    steps: tuple[tuple[int, Price], ...]
    """Pairs of `above` and price, ascending; the first is at -1 and takes all prompts."""

    def price(self, input_tokens: int) -> Price:
        """The price of a call with that many input tokens."""
        found = self.steps[0][1]
        for above, price in self.steps[1:]:
            if input_tokens > above:
                found = price
        return found


def resolve_price(model_id: str, model: ModelConfig, at: datetime) -> Price:
    """The price of a model at a moment, for prompts of ordinary size; see `resolve_ladder`.

    Raises:
        ConfigError: the price table does not know the model, or has no token price for it.
    """
    return resolve_ladder(model_id, model, at).steps[0][1]


def resolve_ladder(model_id: str, model: ModelConfig, at: datetime) -> PriceLadder:
    """All prices of a model at a moment. A missing cached or cache-write price is the input price.

    Each price's id names its source and, where it has one, its start date, and ends in a digest of the rates: equal
    ids mean equal rates.

    Raises:
        ConfigError: as `resolve_price`.
    """
    price = model.price
    if price.usd is not None:
        return PriceLadder(((-1, _named(f"config:{model_id}", _list_price(price.usd))),))
    if price.gpu is not None:
        return PriceLadder(((-1, _named(f"config:{model_id}", _gpu_price(price.gpu))),))
    assert price.table is not None
    return _from_table(f"models.{model_id}.price.table", price.table, at)


def _list_price(given: ListPrice) -> Price:
    cached, written = given.cached_usd_per_mtok, given.cache_write_usd_per_mtok
    return Price(
        price_id="",
        input_usd_per_mtok=given.input_usd_per_mtok,
        cached_usd_per_mtok=given.input_usd_per_mtok if cached is None else cached,
        cache_write_usd_per_mtok=given.input_usd_per_mtok if written is None else written,
        output_usd_per_mtok=given.output_usd_per_mtok,
    )


def _gpu_price(given: GpuPrice) -> Price:
    return Price(
        price_id="",
        gpu_usd_per_hour=given.usd_per_hour,
        gpus=given.gpus,
        input_pool_s_per_token=given.input_pool_s_per_token,
        output_pool_s_per_token=given.output_pool_s_per_token,
    )


def _named(name: str, price: Price) -> Price:
    rates = [str(rate.normalize()) if isinstance(rate, Decimal) else str(rate) for rate in astuple(price)[1:]]
    digest = hashlib.sha256("|".join(rates).encode()).hexdigest()[:8]
    return replace(price, price_id=f"{name}#{digest}")


def _from_table(where: str, reference: str, at: datetime) -> PriceLadder:
    provider, model = _find(where, *reference.split("/", 1))
    rates = model.get_prices(at)
    start = _start_date(model, rates)
    name = f"genai-prices:{provider.id}/{model.id}{f'@{start}' if start else ''}"
    if rates.input_mtok is None or rates.requests_kcount is not None:
        missing = "no token price" if rates.input_mtok is None else "a fee for each request, which is not supported,"
        raise ConfigError(f"{where}: the price table has {missing} for {reference!r}; give price.usd instead")
    steps = [(-1, _named(name, _table_price(rates, 0)))]
    steps += [(above, _named(f"{name}>{above}", _table_price(rates, above + 1))) for above in _thresholds(rates)]
    return PriceLadder(tuple(steps))


def _find(where: str, provider_id: str, model_ref: str) -> tuple[Provider, ModelInfo]:
    from genai_prices.data_snapshot import get_snapshot  # a second of import

    snapshot = get_snapshot()
    try:
        provider = snapshot.find_provider(None, provider_id, None)
    except LookupError:
        known = [provider.id for provider in snapshot.providers]
        raise ConfigError(f"{where}: no provider {provider_id!r}{_suggest(provider_id, known)}") from None
    try:
        return snapshot.find_provider_model(model_ref, provider, None, None)
    except LookupError:
        close = _suggest(model_ref, [model.id for model in provider.models])
        raise ConfigError(
            f"{where}: the price table has no model {model_ref!r} of {provider.id}{close}; or give price.usd"
        ) from None


def _suggest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.4)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def _start_date(model: ModelInfo, rates: ModelPrice) -> str:
    from genai_prices.types import StartDateConstraint

    if isinstance(model.prices, list):
        for conditional in model.prices:
            if conditional.prices is rates and isinstance(conditional.constraint, StartDateConstraint):
                return conditional.constraint.start_date.isoformat()
    return ""


def _thresholds(rates: ModelPrice) -> list[int]:
    return sorted({tier.start for rate in _rates(rates) for tier in getattr(rate, "tiers", ())})


def _rates(rates: ModelPrice) -> tuple[Any, ...]:
    return (rates.input_mtok, rates.cache_read_mtok, rates.cache_write_mtok, rates.output_mtok)


def _table_price(rates: ModelPrice, input_tokens: int) -> Price:
    plain, cached, written, output = (_at_size(rate, input_tokens) for rate in _rates(rates))
    assert plain is not None
    return Price(
        price_id="",
        input_usd_per_mtok=plain,
        cached_usd_per_mtok=plain if cached is None else cached,
        cache_write_usd_per_mtok=plain if written is None else written,
        output_usd_per_mtok=plain if output is None else output,
    )


def _at_size(rate: Any, input_tokens: int) -> Decimal | None:
    """One rate for a prompt of that size; only some rates of a model have tiers."""
    if rate is None or isinstance(rate, Decimal):
        return rate
    found: Decimal = rate.base
    for tier in rate.tiers:
        if input_tokens > tier.start:
            found = tier.price
    return found
