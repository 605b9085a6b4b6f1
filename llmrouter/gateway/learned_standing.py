"""What the learned tiers of a configuration would go by if the gateway started now, for people."""

from __future__ import annotations

from datetime import UTC, datetime

from llmrouter.config import Config
from llmrouter.database import database_path
from llmrouter.gateway.artefacts import ArtefactShelf, doubts, notes
from llmrouter.pricing.book import PriceBook
from llmrouter.routing.artefact_store import ArtefactStore
from llmrouter.routing.versions import RoutingStore
from llmrouter.shared_store import shared_store, store_exists
from llmrouter.tenancy.pepper import load_pepper
from llmrouter.types import RoutingVersion, value

__all__ = ["Standing", "learned_standing"]


@value
class Standing:
    """One line for each thing to say; empty where no tier has learned anything."""

    notes: tuple[str, ...] = ()
    """Which artefact each tier goes by, at which operating point, and what that promises."""
    doubts: tuple[str, ...] = ()
    """Costs that have moved, tiers at their safe operating point."""


def learned_standing(config: Config) -> Standing:
    """Load and check every artefact, as a start would.

    Raises:
        ConfigError: one does not fit its tier, or a price is not known.
        RouterError: one is damaged or tampered with, or the store cannot be used.
    """
    if not any(tier.is_learned for tier in config.tiers.values()):
        return Standing()
    store = shared_store(config.store)
    if store_exists(store):
        versions = RoutingStore(store)
        routing = versions.current()
        fallbacks = versions.fallbacks(routing.version)
        secret = load_pepper(config.store, database_path(config.store.url))
    else:
        routing, fallbacks, secret = RoutingVersion(0, (), datetime.now(UTC), author="configuration"), {}, b""
    in_force = ArtefactShelf(ArtefactStore(store, secret)).in_force(config, routing, fallbacks)
    prices = PriceBook(config, lambda: datetime.now(UTC))
    return Standing(tuple(notes(in_force)), tuple(doubts(config, in_force, prices)))
