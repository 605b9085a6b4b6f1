"""The verifiers that the tiers of a configuration name; each is made once for the life of a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llmrouter.config import Config
from llmrouter.routing.verifier import Verifier, load_verifier

__all__ = ["Verifiers"]


class Verifiers:
    """Makes verifiers when a configuration first names them; one may hold a model, so a reload keeps it."""

    def __init__(self, load: Callable[[str], Verifier] = load_verifier) -> None:
        self._load = load
        self._made: dict[str, Verifier] = {}

    def of(self, config: Config) -> Mapping[str, Verifier]:
        """Those of the tiers that check answers.

        Raises:
            ConfigError: one of them cannot be made.
        """
        named = {tier.cascade.verifier for tier in config.tiers.values() if tier.strategy == "cascade"}
        for name in sorted(each for each in named if each is not None and each not in self._made):
            self._made[name] = self._load(name)
        return {name: made for name, made in self._made.items() if name in named}
