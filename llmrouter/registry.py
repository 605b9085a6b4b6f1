"""Names in the configuration → implementations, looked up lazily; the one place a plugin's name is resolved.

A distribution adds a strategy with an entry point in the group `llmrouter.strategies` whose object is a
`StrategyFactory`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from llmrouter.config import Config
from llmrouter.errors import ConfigError
from llmrouter.protocols import Strategy

__all__ = ["StrategyFactory", "strategy_factory"]

StrategyFactory = Callable[[str, Config, Any], Strategy]
"""Tier id, configuration, compiled rules → the tier's strategy."""

_STRATEGIES = {"rules": "llmrouter.routing.strategy:build_rules_strategy"}


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
