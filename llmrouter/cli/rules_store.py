"""The store that `llmrouter rules` works on: routing versions and what learned tiers go by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmrouter.cli.output import say
from llmrouter.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llmrouter.config import Config
    from llmrouter.gateway.artefacts import InForce
    from llmrouter.routing.versions import RoutingStore
    from llmrouter.types import RoutingVersion

__all__ = ["author", "check_artefact", "in_force", "published", "version_in_force", "with_artefact"]


def published(config: Config) -> RoutingStore:
    """The routing versions; raises `UsageError` when there is no store."""
    from llmrouter.routing.versions import RoutingStore
    from llmrouter.shared_store import shared_store, store_exists

    store = shared_store(config.store)
    if not store_exists(store):
        raise UsageError(f"there is no store at {store} yet, so no version is published; `llmrouter serve` makes one")
    return RoutingStore(store)


def version_in_force(config: Config) -> RoutingVersion:
    """The version in force; without a store, the one that the first start would publish."""
    from datetime import UTC, datetime

    from llmrouter.gateway.build import seed_rules
    from llmrouter.shared_store import shared_store, store_exists
    from llmrouter.types import RoutingVersion

    if store_exists(shared_store(config.store)):
        return published(config).current()
    say("there is no store yet; these are the configuration's rules, which the first start publishes as version 1")
    return RoutingVersion(0, seed_rules(config), datetime.now(UTC), author="configuration")


def with_artefact(config: Config, version: RoutingVersion) -> dict[str, Any]:
    """A version as JSON, with what is known of its artefact where it is published."""
    from llmrouter.gateway.app import routing_as_json, version_as_json
    from llmrouter.gateway.publishing import artefact_store

    if not version.version:
        return version_as_json(version)
    return routing_as_json(version, published(config), artefact_store(config))


def in_force(config: Config, version: RoutingVersion) -> Mapping[str, InForce]:
    """What learned tiers go by under a version."""
    from llmrouter.gateway.publishing import artefact_shelf

    if not any(tier.is_learned for tier in config.tiers.values()):
        return {}
    fallbacks = published(config).fallbacks(version.version) if version.version else {}
    return artefact_shelf(config).in_force(config, version, fallbacks)


def check_artefact(config: Config, version: RoutingVersion) -> None:
    """Raises `RouterError` unless learned tiers could go by a version's artefact."""
    from dataclasses import replace

    in_force(config, replace(version, version=0))


def author() -> str:
    """Who publishes, for the history."""
    import getpass

    return f"cli:{getpass.getuser()}"
