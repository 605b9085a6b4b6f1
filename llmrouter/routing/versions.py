"""Routing versions in the store: published by compare-and-set, never changed, rolled back by publishing again.

A version is rules, the digest of the artefact that learned tiers go by, and the operating point of it. The artefacts
themselves are kept by `routing.artefact_store`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from llmrouter.database import SharedConnection, from_instant, to_instant
from llmrouter.errors import NotFound, RequestError, VersionConflict
from llmrouter.shared_store import SharedStore, reading, writing
from llmrouter.types import RoutingVersion, Rule, value

__all__ = ["Fallback", "Learned", "RoutingStore"]


@value
class Learned:
    """What the learned tiers of a version go by."""

    digest: str | None
    """Of an artefact in the store; None is the generic one of the package."""
    point: int | None = None
    """One of its operating points; None is the one that it was trained to choose."""


@value
class Fallback:
    """A tier that drift has moved to its safe operating point, for as long as its version is in force."""

    tier_id: str
    reason: str
    raised_at: datetime


class RoutingStore:
    """The routing versions of a migrated store; each call is one transaction of its own.

    Numbers go up by one from 1 and are never reused. Whether rules make sense is for `routing.checks` to say.
    """

    def __init__(self, store: SharedStore, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._store = store
        self._now = now

    def current(self) -> RoutingVersion:
        """The newest version, which is the one in force.

        Raises:
            NotFound: nothing has been published; `seed` comes first.
        """
        with reading(self._store) as connection:
            return _read(connection, _newest(connection))

    def get(self, version: int) -> RoutingVersion:
        """One version with its rules.

        Raises:
            NotFound: there is no such version.
        """
        with reading(self._store) as connection:
            return _read(connection, version)

    def history(self, limit: int = 20) -> list[RoutingVersion]:
        """The newest versions with their rules, newest first."""
        with reading(self._store) as connection:
            newest = _newest(connection)
            return [_read(connection, version) for version in range(newest, max(newest - limit, 0), -1)]

    def compare(self, base_version: int) -> None:
        """Raises `VersionConflict` unless that version is the current one, as `publish` would."""
        with reading(self._store) as connection:
            _compare(connection, base_version)

    def publish(
        self,
        rules: Sequence[Rule],
        *,
        base_version: int,
        author: str,
        note: str = "",
        learned: Learned | None = None,
    ) -> RoutingVersion:
        """Publish rules as the next version, if `base_version` is still the current one (0 when there is none).

        `learned` is what learned tiers go by from then on; None keeps what they go by now.

        Raises:
            VersionConflict: somebody else has published; the message names the current version.
            RequestError: two rules share an id.
            NotFound: the store has no artefact of that digest.
        """
        with writing(self._store) as connection:
            _compare(connection, base_version)
            kept = _learned(connection, base_version) if learned is None else learned
            return self._append(connection, rules, kept, author=author, note=note)

    def rollback(self, to: int, *, base_version: int | None = None, author: str, note: str = "") -> RoutingVersion:
        """Publish an old version again, its artefact and all; without a `base_version` whatever is current now.

        Raises:
            NotFound: there is no version `to`.
            VersionConflict: as `publish`.
        """
        with writing(self._store) as connection:
            if base_version is not None:
                _compare(connection, base_version)
            old = _read(connection, to)
            learned = Learned(old.artefact_digest, old.point)
            return self._append(connection, old.rules, learned, author=author, note=note, rolled_back_to=to)

    def seed(self, rules: Sequence[Rule]) -> RoutingVersion:
        """Publish version 1 if the store has none; returns the current version. Several processes may call this."""
        with writing(self._store) as connection:
            newest = _newest(connection)
            if newest:
                return _read(connection, newest)
            note = "first rules, from the configuration"
            return self._append(connection, rules, Learned(None), author="configuration", note=note)

    def fall_back(self, version: int, tier_id: str, reason: str) -> bool:
        """Note that drift has moved a tier to its safe operating point; everybody who serves follows.

        Returns whether that is news: it is not when it is noted already, or when another version is in force.
        """
        with writing(self._store) as connection:
            if version != _newest(connection) or tier_id in _fallbacks(connection, version):
                return False
            connection.execute(
                "INSERT INTO routing_fallbacks (version, tier_id, reason, raised_at) VALUES (?, ?, ?, ?)",
                (version, tier_id, reason, to_instant(self._now())),
            )
            return True

    def fallbacks(self, version: int) -> Mapping[str, Fallback]:
        """The tiers that drift has moved under this version."""
        with reading(self._store) as connection:
            return _fallbacks(connection, version)

    def _append(
        self,
        connection: SharedConnection,
        rules: Sequence[Rule],
        learned: Learned,
        *,
        author: str,
        note: str,
        rolled_back_to: int | None = None,
    ) -> RoutingVersion:
        _refuse_twins(rules)
        _refuse_unknown(connection, learned)
        base = _newest(connection)
        # The rules come first: the version's own row seals it.
        connection.executemany(
            "INSERT INTO routing_rules VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [_rule_row(base + 1, position, rule) for position, rule in enumerate(rules)],
        )
        connection.execute(
            "INSERT INTO routing_versions (version, created_at, author, note, base_version, rolled_back_to,"
            " artefact_digest, point) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (base + 1, to_instant(self._now()), author, note, base, rolled_back_to, learned.digest, learned.point),
        )
        return _read(connection, base + 1)


def _newest(connection: SharedConnection) -> int:
    (version,) = connection.execute("SELECT coalesce(max(version), 0) FROM routing_versions").fetchone()
    return int(version)


def _compare(connection: SharedConnection, base_version: int) -> None:
    current = _newest(connection)
    if base_version != current:
        raise VersionConflict(
            f"the current routing version is {current}, not {base_version}: look at it and publish again on top of it",
            param="base_version",
        )


def _refuse_twins(rules: Sequence[Rule]) -> None:
    seen: set[str] = set()
    for rule in rules:
        if rule.rule_id in seen:
            raise RequestError(f"two rules are called {rule.rule_id!r}", param="rules")
        seen.add(rule.rule_id)


def _refuse_unknown(connection: SharedConnection, learned: Learned) -> None:
    if learned.digest is None:
        return
    if connection.execute("SELECT 1 FROM artefacts WHERE digest = ?", (learned.digest,)).fetchone() is None:
        raise NotFound(f"the store has no artefact {learned.digest[:64]!r}", param="artefact.digest")


def _learned(connection: SharedConnection, version: int) -> Learned:
    row = connection.execute(
        "SELECT artefact_digest, point FROM routing_versions WHERE version = ?", (version,)
    ).fetchone()
    return Learned(None) if row is None else Learned(*row)


def _fallbacks(connection: SharedConnection, version: int) -> dict[str, Fallback]:
    rows = connection.execute(
        "SELECT tier_id, reason, raised_at FROM routing_fallbacks WHERE version = ? ORDER BY tier_id", (version,)
    )
    return {tier_id: Fallback(tier_id, reason, from_instant(raised_at)) for tier_id, reason, raised_at in rows}


def _rule_row(version: int, position: int, rule: Rule) -> tuple[Any, ...]:
    match = orjson.dumps(rule.match, default=dict).decode()
    return version, position, rule.rule_id, match, rule.model_id, rule.tier_role, rule.weight, rule.priority


def _read(connection: SharedConnection, version: int) -> RoutingVersion:
    row = connection.execute(
        "SELECT created_at, author, note, base_version, rolled_back_to, artefact_digest, point"
        " FROM routing_versions WHERE version = ?",
        (version,),
    ).fetchone()
    if row is None:
        newest = _newest(connection)
        raise NotFound(
            f"no routing version {version}; the newest is {newest}" if newest else "no routing version is published yet"
        )
    created_at, author, note, base_version, rolled_back_to, artefact_digest, point = row
    rules = connection.execute(
        "SELECT rule_id, match, model_id, tier_role, weight, priority FROM routing_rules"
        " WHERE version = ? ORDER BY position",
        (version,),
    )
    return RoutingVersion(
        version=version,
        rules=tuple(_rule(*rule) for rule in rules),
        created_at=from_instant(created_at),
        author=author,
        note=note,
        base_version=base_version,
        rolled_back_to=rolled_back_to,
        artefact_digest=artefact_digest,
        point=point,
    )


def _rule(rule_id: str, match: str, model_id: str | None, tier_role: str | None, weight: float, priority: int) -> Rule:
    return Rule(rule_id, orjson.loads(match), model_id, tier_role, weight, priority)
