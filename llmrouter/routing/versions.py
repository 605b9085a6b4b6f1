"""Routing versions in the store: published by compare-and-set, never changed, rolled back by publishing again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from llmrouter.database import SharedConnection, from_instant, to_instant
from llmrouter.errors import NotFound, RequestError, VersionConflict
from llmrouter.shared_store import SharedStore, reading, writing
from llmrouter.types import RoutingVersion, Rule

__all__ = ["RoutingStore"]


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

    def publish(self, rules: Sequence[Rule], *, base_version: int, author: str, note: str = "") -> RoutingVersion:
        """Publish rules as the next version, if `base_version` is still the current one (0 when there is none).

        Raises:
            VersionConflict: somebody else has published; the message names the current version.
            RequestError: two rules share an id.
        """
        with writing(self._store) as connection:
            _compare(connection, base_version)
            return self._append(connection, rules, author=author, note=note)

    def rollback(self, to: int, *, base_version: int | None = None, author: str, note: str = "") -> RoutingVersion:
        """Publish the rules of an old version again; without a `base_version` whatever is current now.

        Raises:
            NotFound: there is no version `to`.
            VersionConflict: as `publish`.
        """
        with writing(self._store) as connection:
            if base_version is not None:
                _compare(connection, base_version)
            rules = _read(connection, to).rules
            return self._append(connection, rules, author=author, note=note, rolled_back_to=to)

    def seed(self, rules: Sequence[Rule]) -> RoutingVersion:
        """Publish version 1 if the store has none; returns the current version. Several processes may call this."""
        with writing(self._store) as connection:
            newest = _newest(connection)
            if newest:
                return _read(connection, newest)
            return self._append(connection, rules, author="configuration", note="first rules, from the configuration")

    def _append(
        self,
        connection: SharedConnection,
        rules: Sequence[Rule],
        *,
        author: str,
        note: str,
        rolled_back_to: int | None = None,
    ) -> RoutingVersion:
        _refuse_twins(rules)
        base = _newest(connection)
        # The rules come first: the version's own row seals it.
        connection.executemany(
            "INSERT INTO routing_rules VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [_rule_row(base + 1, position, rule) for position, rule in enumerate(rules)],
        )
        connection.execute(
            "INSERT INTO routing_versions VALUES (?, ?, ?, ?, ?, ?)",
            (base + 1, to_instant(self._now()), author, note, base, rolled_back_to),
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


def _rule_row(version: int, position: int, rule: Rule) -> tuple[Any, ...]:
    match = orjson.dumps(rule.match, default=dict).decode()
    return version, position, rule.rule_id, match, rule.model_id, rule.tier_role, rule.weight, rule.priority


def _read(connection: SharedConnection, version: int) -> RoutingVersion:
    row = connection.execute(
        "SELECT created_at, author, note, base_version, rolled_back_to FROM routing_versions WHERE version = ?",
        (version,),
    ).fetchone()
    if row is None:
        newest = _newest(connection)
        raise NotFound(
            f"no routing version {version}; the newest is {newest}" if newest else "no routing version is published yet"
        )
    created_at, author, note, base_version, rolled_back_to = row
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
    )


def _rule(rule_id: str, match: str, model_id: str | None, tier_role: str | None, weight: float, priority: int) -> Rule:
    return Rule(rule_id, orjson.loads(match), model_id, tier_role, weight, priority)
