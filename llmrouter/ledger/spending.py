"""What a scope has spent since a moment, from the books and what is under way: where a new dollar limit begins."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import orjson

from llmrouter.buckets import to_nano, window_start
from llmrouter.database import to_instant
from llmrouter.ledger.reservations import reservation_of
from llmrouter.types import Limit, value

__all__ = ["GroupMembers", "Spending", "spent_nano"]

GroupMembers = Callable[[str], Collection[str]]
"""The tenants of a group; the books name tenants only."""

_MOST_REMEMBERED = 10_000


@value
class _Condition:
    """Which calls count for a scope: as SQL, and as a test of an open reservation."""

    sql: str
    given: tuple[Any, ...]
    holds: Callable[[Mapping[str, Any]], bool]


def spent_nano(
    connection: sqlite3.Connection,
    scope: str,
    since_ms: int,
    members: GroupMembers = lambda _: (),
    *,
    under_way: bool = True,
) -> int:
    """Nano-dollars of a scope's calls since a moment: those in the books, and the worst case of those `under_way`."""
    condition = _condition(connection, scope, members)
    booked = _booked(connection, condition, since_ms)
    return booked + _reserved(connection, condition, since_ms) if under_way else booked


class Spending:
    """Where dollar limits begin, worked out for the most part before the write lock is taken.

    A month of many calls takes long to add up, and nobody could book anything meanwhile. So `prepare` adds up what is
    there, and `since` inside the transaction adds only what came after it.
    """

    def __init__(self, members: GroupMembers) -> None:
        self._members = members
        self._read: dict[tuple[str, int], tuple[int, int]] = {}
        self._begun: dict[tuple[str, str], int] = {}

    def prepare(self, connection: sqlite3.Connection, limits: Iterable[tuple[Limit, str | None]], now_ms: int) -> None:
        """Add up the books for those dollar limits whose window has no counter yet; call it outside a transaction.

        Each limit comes with the end user of the call that names it.
        """
        self._read.clear()
        for limit, user_id in limits:
            if not limit.kind.startswith("usd"):
                continue
            since_ms = window_start(limit.kind, now_ms)
            key = limit.scope, limit.kind
            if self._begun.get(key, -1) >= since_ms or (limit.scope, since_ms) in self._read:
                continue
            if _mark(connection, limit) < since_ms:
                self._read[limit.scope, since_ms] = self._add_up(connection, limit.scope, since_ms, user_id)
            else:
                self._remember(key, since_ms)

    def since(self, connection: sqlite3.Connection, limit: Limit, since_ms: int, user_id: str | None) -> int:
        """What `spent_nano` says, inside the transaction that makes the counter; `user_id` is as for `prepare`."""
        last, nano = self._read.get((limit.scope, since_ms), (0, 0))
        condition = _condition(connection, limit.scope, self._members, user_id)
        return nano + _booked(connection, condition, since_ms, last) + _reserved(connection, condition, since_ms)

    def reserved(self, connection: sqlite3.Connection, limit: Limit, since_ms: int, user_id: str | None) -> int:
        """Nano-dollars of the worst case of a scope's calls under way; inside a transaction."""
        return _reserved(connection, _condition(connection, limit.scope, self._members, user_id), since_ms)

    def _add_up(
        self, connection: sqlite3.Connection, scope: str, since_ms: int, user_id: str | None
    ) -> tuple[int, int]:
        connection.execute("BEGIN")
        try:
            (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM ledger").fetchone()
            condition = _condition(connection, scope, self._members, user_id)
            return last, _booked(connection, condition, since_ms)
        finally:
            connection.rollback()

    def _remember(self, key: tuple[str, str], since_ms: int) -> None:
        if len(self._begun) >= _MOST_REMEMBERED:
            self._begun.clear()
        self._begun[key] = since_ms


def _mark(connection: sqlite3.Connection, limit: Limit) -> int:
    found = "SELECT mark FROM limit_counters WHERE scope = ? AND kind = ?"
    row = connection.execute(found, (limit.scope, limit.kind)).fetchone()
    return -1 if row is None else int(row[0])


def _booked(connection: sqlite3.Connection, condition: _Condition, since_ms: int, after_id: int = 0) -> int:
    # Each cost is rounded up by itself, as it is when a reservation is settled. After an entry, only later ones are
    # looked at, which the table's own order finds faster than any index.
    table, later = ("ledger NOT INDEXED", "AND id > ?") if after_id else ("ledger", "")
    given = (*condition.given, _instant(since_ms), *((after_id,) if after_id else ()))
    where = f"{condition.sql} AND ts >= ? {later}"
    query = f"SELECT coalesce(sum((cost_picousd + 999) / 1000), 0) FROM {table} WHERE {where}"  # noqa: S608 - own text
    (nano,) = connection.execute(query, given).fetchone()
    return int(nano)


def _reserved(connection: sqlite3.Connection, condition: _Condition, since_ms: int) -> int:
    rows = connection.execute("SELECT body FROM reservations WHERE taken_ms >= ?", (since_ms,))
    held = [body for (body,) in rows if condition.holds(orjson.loads(body))]
    return sum(to_nano(reservation_of(body).cost_usd) for body in held)


def _condition(
    connection: sqlite3.Connection, scope: str, members: GroupMembers, user_id: str | None = None
) -> _Condition:
    what, _, name = scope.partition(":")
    first, _, rest = name.partition("/")
    tenant = unquote(first)
    if what == "user":
        user = _user(connection, tenant, rest, user_id)
        return _Condition(
            "tenant_id = ? AND user_id = ?", (tenant, user), lambda row: row["tenant_id"] == tenant and _is(row, rest)
        )
    if what == "key":
        return _Condition("key_id = ?", (name,), lambda row: bool(row["key_id"] == name))
    if what == "tier":
        return _Condition(f"{_SERVED} = ?", (name,), lambda row: _served(row) == name)
    if what == "group":
        tenants = members(name)
        return _Condition(
            "tenant_id IN (SELECT value FROM json_each(?))",
            (orjson.dumps(list(tenants)).decode(),),
            lambda row: row["tenant_id"] in tenants,
        )
    if rest:
        tier = rest.removeprefix("tier:")
        return _Condition(
            f"tenant_id = ? AND {_SERVED} = ?",
            (tenant, tier),
            lambda row: bool(row["tenant_id"] == tenant and _served(row) == tier),
        )
    return _Condition("tenant_id = ?", (tenant,), lambda row: bool(row["tenant_id"] == tenant))


_SERVED = "coalesce(degraded_to, tier)"


def _served(row: Mapping[str, Any]) -> str:
    return str(row["degraded_to"] or row["tier"])


def _is(row: Mapping[str, Any], encoded: str) -> bool:
    user = row["user_id"]
    return user is not None and (_digest(user) == encoded or bool(user == unquote(encoded)))


def _user(connection: sqlite3.Connection, tenant: str, encoded: str, named: str | None) -> str | None:
    """The user that a scope means; one of a long name has only a digest of it there.

    Whose call it is knows the name. Without that (`named` is None), every name that the tenant ever sent is compared.
    """
    if not encoded.startswith("sha256:"):
        return unquote(encoded)
    if named is not None and _digest(named) == encoded:
        return named
    found = connection.execute(_NAMES, {"tenant": tenant})
    return next((user for (user,) in found if user is not None and _digest(user) == encoded), None)


# One step in the index for each name: a tenant has far fewer users than calls.
_NAMES = """
    WITH RECURSIVE names (user_id) AS (
        SELECT min(user_id) FROM ledger WHERE tenant_id = :tenant AND user_id IS NOT NULL
        UNION ALL
        SELECT (SELECT min(user_id) FROM ledger WHERE tenant_id = :tenant AND user_id > names.user_id)
        FROM names WHERE names.user_id IS NOT NULL
    )
    SELECT user_id FROM names
"""


def _digest(user: str) -> str:
    return f"sha256:{hashlib.sha256(user.encode(errors='surrogatepass')).hexdigest()}"


def _instant(moment_ms: int) -> str:
    return to_instant(datetime.fromtimestamp(moment_ms / 1000, UTC))
