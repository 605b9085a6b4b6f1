"""Names in the configuration → implementations, looked up lazily; the one place a plugin's name is resolved.

A distribution adds a strategy with an entry point in the group `llmrouter.strategies` whose object is a
`StrategyFactory`. A factory that has a parameter called `parts` is also given `LearnedParts`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, MutableMapping
from importlib.metadata import entry_points
from typing import Any

from llmrouter.config import Config
from llmrouter.errors import ConfigError
from llmrouter.protocols import Strategy
from llmrouter.types import Price, value

__all__ = ["LearnedParts", "StrategyFactory", "build_strategy", "strategy_factory"]

StrategyFactory = Callable[..., Strategy]
"""`(tier_id: str, config: Config, rule_set: RuleSet) → Strategy`, or with `parts: LearnedParts | None` as a fourth
parameter of that name."""

_STRATEGIES = {
    "rules": "llmrouter.routing.strategy:build_rules_strategy",
    "router": "llmrouter.routing.learned:build_learned_strategy",
    "cascade": "llmrouter.routing.learned:build_learned_strategy",
}


@value
class LearnedParts:
    """What a learned strategy is made of, besides the configuration and the rules."""

    artefact: Any
    """The `llmrouter.routing.artifact.Artefact` that the tier goes by, verified."""
    point: int | None
    """Its operating point; None is the one that it was trained to choose."""
    price: Callable[[str, int], Price]
    """The price now of a model's call with that many input tokens."""
    memory: MutableMapping[str, Any]
    """What this tier's strategy wants to keep when it is made anew, e.g. which conversation is where. Whoever makes it
    owns the keys; a worker has one for each tier."""
    observed: Callable[[Any, Any], None]
    """To be told every prediction and first move of the policy, on the event loop; never blocks, never raises."""


def strategy_factory(name: str) -> StrategyFactory:
    """The factory of a strategy.

    Raises:
        ConfigError: nobody provides that name.
    """
    if name in _STRATEGIES:
        module, _, attribute = _STRATEGIES[name].partition(":")
        factory: StrategyFactory = getattr(importlib.import_module(module), attribute)
        return factory
    found = entry_points(group="llmrouter.strategies", name=name)
    if not found:
        raise ConfigError(f"no strategy {name!r}; known: {', '.join(sorted(_STRATEGIES))}")
    loaded: StrategyFactory = next(iter(found)).load()
    return loaded


def build_strategy(tier_id: str, config: Config, rule_set: Any, parts: LearnedParts | None) -> Strategy:
    """The strategy of a tier; `parts` reach it only where its factory asks for them.

    Raises:
        ConfigError: nobody provides a strategy of that name.
    """
    factory = strategy_factory(config.tiers[tier_id].strategy)
    if "parts" in inspect.signature(factory).parameters:
        return factory(tier_id, config, rule_set, parts=parts)
    return factory(tier_id, config, rule_set)
