"""What a scope has spent since a moment, over all gateways: where a shared dollar limit begins."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from llmrouter.ledger.postgres.both import both
from llmrouter.ledger.postgres.spool import mended
from llmrouter.ledger.spending import GroupMembers, spent_nano
from llmrouter.postgres import Postgres

__all__ = ["shared_spent_nano"]


def shared_spent_nano(
    path: Path,
    database: Postgres,
    scope: str,
    since_ms: int,
    members: GroupMembers = lambda _: (),
    *,
    under_way: bool = True,
) -> int:
    """Nano-dollars of a scope's calls since a moment, each call's rounded up.

    Counts what the server holds, and of this gateway what is not shipped yet and, where asked, the worst case of what
    is under way.
    What other gateways have not shipped yet is missing: a second or so of their calls, more while they cannot ship.

    Raises:
        StoreUnavailable: the file or the server cannot be read.
    """
    condition, given = _condition(scope, members)
    since = datetime.fromtimestamp(since_ms / 1000, UTC)
    with both(path, database) as books:
        here = spent_nano(books.spool, scope, since_ms, members, under_way=under_way)
        row = books.server.execute(
            f"SELECT coalesce(sum((cost_picousd + 999) / 1000), 0) FROM ledger"  # noqa: S608 - own text
            f" WHERE {condition} AND ts >= %s AND request_id <> ALL(%s)".encode(),
            (*given, since, books.counted_twice()),
        ).fetchone()
    assert row is not None
    return here + int(row[0])


def _condition(scope: str, members: GroupMembers) -> tuple[str, tuple[Any, ...]]:
    """Which entries count for a scope; `Limit.scope` says how one is written."""
    what, _, name = scope.partition(":")
    first, slash, rest = name.partition("/")
    if what == "user":
        return _of_user(unquote(first), rest)
    if what == "key":
        return "key_id = %s", (name,)
    if what == "tier":
        return f"{_SERVED} = %s", (name,)
    if what == "group":
        tenants: Collection[str] = members(name)
        return "tenant_id = ANY(%s)", (list(tenants),)
    if slash:
        return f"tenant_id = %s AND {_SERVED} = %s", (unquote(first), rest.removeprefix("tier:"))
    return "tenant_id = %s", (unquote(first),)


_SERVED = "coalesce(degraded_to, tier)"


def _of_user(tenant: str, encoded: str) -> tuple[str, tuple[Any, ...]]:
    if encoded.startswith("sha256:"):
        digest = "encode(sha256(convert_to(user_id, 'UTF8')), 'hex')"
        return f"tenant_id = %s AND user_id IS NOT NULL AND {digest} = %s", (tenant, encoded.removeprefix("sha256:"))
    return "tenant_id = %s AND user_id = %s", (tenant, mended(unquote(encoded)))
