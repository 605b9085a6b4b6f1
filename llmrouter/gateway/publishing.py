"""Publishing what was learned: checked against the tiers, put into the store signed, made a routing version."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from llmrouter.config import Config
from llmrouter.database import database_path
from llmrouter.gateway.artefacts import ArtefactShelf, InForce, check_fit, check_point, doubts
from llmrouter.pricing.book import PriceBook
from llmrouter.routing.artefact_fit import about, is_generic
from llmrouter.routing.artefact_store import ArtefactStore
from llmrouter.routing.versions import Learned, RoutingStore
from llmrouter.shared_store import shared_store
from llmrouter.tenancy.pepper import load_pepper
from llmrouter.types import RoutingVersion

if TYPE_CHECKING:
    from llmrouter.routing.artifact import Artefact

__all__ = ["artefact_shelf", "artefact_store", "check_publishable", "publish_artefact"]


def artefact_store(config: Config) -> ArtefactStore:
    """The artefacts of a configuration's store; raises `ConfigError` when its secret cannot be had."""
    return ArtefactStore(shared_store(config.store), load_pepper(config.store, database_path(config.store.url)))


def artefact_shelf(config: Config) -> ArtefactShelf:
    """Loads them; raises as `artefact_store`."""
    return ArtefactShelf(artefact_store(config))


def check_publishable(config: Config, artefact: Artefact, point: int | None) -> list[str]:
    """Whether an artefact could be published; returns what somebody should know.

    Raises:
        ConfigError: it does not fit the tiers that would go by it, or has no such operating point.
        RouterError: their strategies cannot be made of it.
    """
    taken = InForce(artefact, point, "published")
    check_point(taken)
    users = [tier_id for tier_id, tier in config.tiers.items() if tier.is_learned and tier.artefact == "published"]
    if not users:
        return ['no tier goes by it: none has the strategy "router" or "cascade" and artefact = "published"']
    for tier_id in users:
        check_fit(tier_id, config, taken)
    return doubts(config, dict.fromkeys(users, taken), PriceBook(config, lambda: datetime.now(UTC)))


def publish_artefact(
    config: Config,
    artefact: Artefact,
    *,
    author: str,
    point: int | None = None,
    base_version: int | None = None,
    note: str = "",
) -> RoutingVersion:
    """Publish an artefact with the rules in force as the next routing version.

    `prepare_store` has been called. `point` is one of the artefact's operating points, None the one that it was trained
    to choose. Without a `base_version` whatever is current now. The generic artefact of the package is not copied: a
    later release serves with its own.

    Raises:
        ConfigError: as `check_publishable`.
        VersionConflict: `base_version` is not the current one.
        ArtefactRefused: it is in the store already, and has been tampered with there.
    """
    from llmrouter.routing.artifact import pack_artefact

    check_publishable(config, artefact, point)
    versions = RoutingStore(shared_store(config.store))
    if base_version is not None:
        versions.compare(base_version)
    digest = None if is_generic(artefact.manifest) else artefact.digest
    if digest is not None:
        artefact_store(config).put(digest, pack_artefact(artefact), about(artefact.manifest))
    current = versions.current()
    return versions.publish(
        current.rules,
        base_version=current.version if base_version is None else base_version,
        author=author,
        note=note,
        learned=Learned(digest, point),
    )
