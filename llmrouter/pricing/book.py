"""The prices of all configured models, ready for the way of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal

from llmrouter.config import Config
from llmrouter.pricing.cost import cost_usd
from llmrouter.pricing.table import PriceLadder, resolve_ladder
from llmrouter.types import Bound, BoundedCall, Price, Usage

__all__ = ["PriceBook"]


class PriceBook:
    """Prices that were looked up beforehand; asking for one is a dictionary access.

    `refresh` looks up again; call it every minute or so, because prices change with the day and, at some providers,
    with the hour. A new configuration gets a new book.
    """

    def __init__(self, config: Config, clock: Callable[[], datetime]) -> None:
        self._config = config
        self._clock = clock
        self._ladders = self._resolve(clock())

    def price(self, model_id: str, input_tokens: int = 0) -> Price:
        """The price of a call with that many input tokens; only models with long-context prices mind the number."""
        return self._ladders[model_id].price(input_tokens)

    def cost(self, model_id: str, usage: Usage) -> Decimal:
        """What a usage costs on a configured model."""
        return cost_usd(self._ladders[model_id].price(usage.input_tokens), usage)

    def bound_usd(self, bound: Bound) -> Decimal:
        """The most that a plan can cost: no prompt token cached, each written to the cache where that costs more."""
        dearest = Decimal(0)
        total = Decimal(0)
        for each in bound.calls:
            one = self._most_usd(each)
            dearest = max(dearest, one)
            total += one * each.calls
        return total + dearest * bound.repeats

    def _most_usd(self, call: BoundedCall) -> Decimal:
        price = self._ladders[call.model_id].price(call.input_tokens)
        written = call.input_tokens if price.cache_write_usd_per_mtok > price.input_usd_per_mtok else 0
        usage = Usage(call.input_tokens, cache_write_tokens=written, output_tokens=call.output_tokens)
        return cost_usd(price, usage)

    def prices(self) -> tuple[Price, ...]:
        """Every price that may now be used, to be kept with the books."""
        return tuple(price for ladder in self._ladders.values() for _, price in ladder.steps)

    def refresh(self, now: datetime | None = None) -> tuple[str, ...]:
        """Look all prices up for this moment and swap them in at once; returns the models whose price changed.

        The first look-up takes a second, later ones some microseconds a model.
        """
        fresh = self._resolve(self._clock() if now is None else now)
        changed = tuple(model_id for model_id in fresh if fresh[model_id] != self._ladders[model_id])
        self._ladders = fresh
        return changed

    def _resolve(self, at: datetime) -> Mapping[str, PriceLadder]:
        return {model_id: resolve_ladder(model_id, model, at) for model_id, model in self._config.models.items()}
