"""Which artefact each learned tier goes by: found, verified and held against the tier before it serves anybody.

Everything here reads files or the store and unpacks arrays, so it is called in a thread wherever requests are served.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from llmrouter.config import Config, TierConfig
from llmrouter.errors import ConfigError, RouterError, StoreUnavailable
from llmrouter.pricing.book import PriceBook
from llmrouter.registry import LearnedParts, build_strategy
from llmrouter.routing.artefact_fit import about, check_manifest, is_generic, misfits, moved_costs, promise, safe_point
from llmrouter.routing.artefact_store import ArtefactRefused, ArtefactStore
from llmrouter.routing.rules import RuleSet, compile_rules
from llmrouter.routing.versions import Fallback, RoutingStore
from llmrouter.types import Price, RoutingVersion, value

if TYPE_CHECKING:
    from llmrouter.routing.artifact import Artefact

__all__ = ["ArtefactShelf", "InForce", "check_fit", "check_point", "doubts", "newest_usable", "notes"]

_BACK = 50
"""How many versions are looked at for one that can be used, when the newest cannot."""


@value
class InForce:
    """What one learned tier goes by."""

    artefact: Artefact
    point: int | None
    """Its operating point; None is the one that it was trained to choose."""
    origin: str
    """`published`, `generic`, or the folder."""
    fallback: Fallback | None = None
    """Why it is at its safe point, where drift has moved it."""

    @property
    def name(self) -> str:
        """What it is, for people."""
        if is_generic(self.artefact.manifest):
            return f"the generic artefact {self.artefact.digest[:12]}"
        where = "the published artefact" if self.origin == "published" else f"the artefact of {self.origin},"
        return f"{where} {self.artefact.digest[:12]}"

    @property
    def promise(self) -> str:
        """What it guarantees at this operating point, in one phrase."""
        return promise(about(self.artefact.manifest), self.point)


class ArtefactShelf:
    """Artefacts that are loaded already, so that a new version with the same one costs nothing. Any thread may ask."""

    def __init__(self, store: ArtefactStore) -> None:
        self._store = store
        self._published: dict[str, Artefact] = {}
        self._folders: dict[Path, Artefact] = {}
        self._generic: Artefact | None = None
        self._lock = threading.RLock()

    def forget_folders(self) -> None:
        """Read the folders of the configuration again when they are next asked for."""
        with self._lock:
            self._folders.clear()

    def in_force(
        self, config: Config, routing: RoutingVersion, fallbacks: Mapping[str, Fallback]
    ) -> dict[str, InForce]:
        """By tier, what every learned tier goes by.

        Raises:
            ConfigError: an artefact does not fit its tier, or has no such operating point.
            RouterError: an artefact is missing, damaged or tampered with; the message names the tier.
        """
        with self._lock:
            found = {
                tier_id: self._of_tier(tier_id, config, routing, fallbacks.get(tier_id))
                for tier_id, tier in config.tiers.items()
                if tier.is_learned
            }
            self._drop_unused(found)
        return found

    def _drop_unused(self, found: Mapping[str, InForce]) -> None:
        used = {each.artefact.digest for each in found.values()}
        self._published = {digest: kept for digest, kept in self._published.items() if digest in used}

    def published(self, digest: str) -> Artefact:
        """One of the store's artefacts.

        Raises:
            NotFound: there is none of that digest.
            ArtefactRefused, ArtefactError: it is not what was published, or this release cannot read it.
        """
        from llmrouter.routing.artifact import read_artefact

        with self._lock:
            known = self._published.get(digest)
            if known is None:
                known = read_artefact(self._store.content(digest))
                if known.digest != digest:
                    raise ArtefactRefused(
                        f"the artefact {digest[:12]} in the store holds another one, {known.digest[:12]}; "
                        "publish it again"
                    )
                self._published[digest] = known
            return known

    def _of_tier(self, tier_id: str, config: Config, routing: RoutingVersion, fallback: Fallback | None) -> InForce:
        try:
            taken = self._taken(config.tiers[tier_id], routing)
        except StoreUnavailable:
            raise
        except RouterError as error:
            raise type(error)(f"tiers.{tier_id}: {error.message}") from error
        check_fit(tier_id, config, taken)
        if fallback is None:
            return taken
        return InForce(taken.artefact, safe_point(taken.artefact.manifest, taken.point), taken.origin, fallback)

    def _taken(self, tier: TierConfig, routing: RoutingVersion) -> InForce:
        if tier.artefact_folder is not None:
            return InForce(self._folder(tier.artefact_folder), None, str(tier.artefact_folder))
        if tier.artefact == "published" and routing.artefact_digest is not None:
            return InForce(self.published(routing.artefact_digest), routing.point, "published")
        return InForce(self._of_package(), routing.point if tier.artefact == "published" else None, "generic")

    def _folder(self, folder: Path) -> Artefact:
        from llmrouter.routing.artifact import load_artefact

        if folder not in self._folders:
            self._folders[folder] = load_artefact(folder)
        return self._folders[folder]

    def _of_package(self) -> Artefact:
        from llmrouter.routing.artifact import generic_artefact

        if self._generic is None:
            self._generic = generic_artefact()
        return self._generic


def newest_usable(
    config: Config, versions: RoutingStore, shelf: ArtefactShelf
) -> tuple[RoutingVersion, dict[str, InForce], str | None]:
    """The newest routing version that can be served with what its tiers go by, and why no newer one can.

    Raises:
        RouterError: none of the last ones can; what is wrong with the newest.
    """
    first: RouterError | None = None
    newest = versions.current()
    for number in range(newest.version, max(newest.version - _BACK, 0), -1):
        version = newest if number == newest.version else versions.get(number)
        try:
            compile_rules(version, config)
            found = shelf.in_force(config, version, versions.fallbacks(version.version))
        except StoreUnavailable:
            raise
        except RouterError as error:
            first = first or error
        else:
            return version, found, None if first is None else first.message
    assert first is not None
    raise first


def notes(in_force: Mapping[str, InForce]) -> list[str]:
    """What every learned tier goes by and what that promises, one line each."""
    return [
        f"tiers.{tier_id}: goes by {taken.name} at {_at(taken)}: {taken.promise}" for tier_id, taken in in_force.items()
    ]


def _at(taken: InForce) -> str:
    return "its chosen operating point" if taken.point is None else f"operating point {taken.point}"


def doubts(config: Config, in_force: Mapping[str, InForce], prices: PriceBook) -> list[str]:
    """What somebody should know about the artefacts in force, one line each."""
    return list(_doubts(config, in_force, prices))


def _doubts(config: Config, in_force: Mapping[str, InForce], prices: PriceBook) -> Iterable[str]:
    for tier_id, taken in in_force.items():
        manifest = taken.artefact.manifest
        if taken.fallback is not None:
            yield f"tiers.{tier_id}: at its safe operating point since drift was seen: {taken.fallback.reason}"
        for line in moved_costs(manifest, config.tiers[tier_id], prices):
            yield f"tiers.{tier_id}: {line}"


def check_fit(tier_id: str, config: Config, taken: InForce) -> None:
    """Whether a tier may go by an artefact at its operating point, and its strategy can be made of it.

    Raises:
        ConfigError: it was trained for something else, or has no such point.
        RouterError: its parts do not fit together, or this release cannot read them.
    """
    check_point(taken)
    found = misfits(taken.artefact.manifest, config.tiers[tier_id])
    if found:
        raise ConfigError(
            f"tiers.{tier_id}: {taken.name} was not trained for this tier: {'; '.join(found)}. Train one for it and "
            'publish it, or set artefact = "generic", which promises nothing'
        )
    try:
        build_strategy(tier_id, config, RuleSet(0, ()), LearnedParts(taken.artefact, taken.point, _no_price, {}, _deaf))
    except RouterError as error:
        raise type(error)(f"tiers.{tier_id}: {taken.name} cannot be used: {error.message}") from error


def _no_price(model_id: str, _input_tokens: int) -> Price:
    raise AssertionError(f"a strategy that is only tried out asks for the price of {model_id}")


def _deaf(_prediction: object, _move: object) -> None:
    """The ear for a strategy that is only tried out."""


def check_point(taken: InForce) -> None:
    """Raises `ConfigError` when the artefact has no such operating point, `ArtefactError` when its manifest is odd."""
    check_manifest(taken.artefact.manifest)
    count = len(taken.artefact.manifest["policy_parameters"]["points"])
    if taken.point is not None and not 0 <= taken.point < count:
        raise ConfigError(f"{taken.name} has no operating point {taken.point}; it has those from 0 to {count - 1}")
