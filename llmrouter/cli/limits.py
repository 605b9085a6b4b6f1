"""`llmrouter limits`: every limit with what is used of it now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmrouter.cli.options import ConfigPath, Json, example
from llmrouter.cli.output import print_json, print_table, say
from llmrouter.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmrouter.config import Config
    from llmrouter.tenancy.limits import LimitBook
    from llmrouter.types import Limit, Principal, Standing

__all__ = ["EXAMPLE", "limits"]

_MOST_ADDED_UP = 50
"""Adding up a month of calls may take seconds for each limit."""

EXAMPLE = example("llmrouter limits --tenant default", "llmrouter limits --key 3f9c2a71b0d4 --json")


def limits(
    tenant: Annotated[
        str | None, typer.Option("--tenant", "-t", metavar="ID", help="Only what this tenant's requests count against.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY_ID", help="Only what this key's requests count against.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="ID", help="With --tenant or --key: this end user's limits too.")
    ] = None,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Show every configured limit, what is used or set aside of it now, and when all of it is there again."""
    from llmrouter.config import load

    loaded = load(config)
    chosen = _chosen(loaded, tenant, key, user)
    standings = _standings(loaded, chosen)
    if as_json:
        print_json({"limits": [_as_json(each) for each in standings]})
    elif standings:
        columns = ("LIMIT OF", "KIND", "MOST", "USED", "LEFT", "RESET")
        print_table(columns, [_row(each) for each in standings])
    else:
        say("no limit is set; docs/limits.md says how")


def _chosen(config: Config, tenant_id: str | None, key_id: str | None, user_id: str | None) -> list[Limit]:
    """The limits to show, the innermost scope first."""
    from llmrouter.tenancy.limits import LimitBook

    keys = _keys(config)
    if key_id is not None:
        if tenant_id is not None:
            raise UsageError("give --tenant or --key, not both; a key belongs to its tenant")
        keys = [each for each in keys if each.key_id == key_id]
        if not keys:
            raise UsageError(f"no key {key_id!r} that is not revoked; `llmrouter keys list` shows all")
        tenant_id = keys[0].tenant_id
        user_id = keys[0].user_id or user_id
    elif tenant_id is not None:
        _check_tenant(tenant_id, config)
        keys = [each for each in keys if each.tenant_id == tenant_id]
    elif user_id is not None:
        raise UsageError("--user needs --tenant or --key: a user belongs to a tenant")
    book = LimitBook(config)
    users = book.of_user(tenant_id, user_id) if tenant_id is not None and user_id is not None else ()
    of_keys = [limit for each in keys for limit in book.of_key(each)]
    tiers = keys[0].tiers if key_id is not None else None
    return [*users, *of_keys, *_shared(config, book, tenant_id, tiers)]


def _check_tenant(tenant_id: str, config: Config) -> None:
    if tenant_id not in config.tenants:
        raise UsageError(f"no tenant {tenant_id!r} in the configuration; known: {', '.join(config.tenants)}")


def _shared(config: Config, book: LimitBook, tenant_id: str | None, tiers: frozenset[str] | None) -> list[Limit]:
    """The limits of more than one key, or those of them that a tenant's requests on some tiers count against."""
    from llmrouter.tenancy.limits import tenant_scope, tier_scope

    if tenant_id is None:
        return list(book.configured())
    tenant = config.tenants.get(tenant_id)
    known = [tier_id for tier_id in config.tiers if tiers is None or tier_id in tiers]
    wanted = {tenant_scope(tenant_id), *(tenant_scope(tenant_id, each) for each in known), *map(tier_scope, known)}
    if tenant is not None and tenant.group is not None:
        wanted.add(f"group:{tenant.group}")
    return [limit for limit in book.configured() if limit.scope in wanted]


def _keys(config: Config) -> list[Principal]:
    from llmrouter.shared_store import shared_store, store_exists
    from llmrouter.tenancy.keys import load_keys, principal_of

    store = shared_store(config.store)
    return [principal_of(key.info) for key in load_keys(store)] if store_exists(store) else []


def _standings(config: Config, chosen: Sequence[Limit]) -> tuple[Standing, ...]:
    """How limits stand where the gateways count, in the order given."""
    import time

    from llmrouter.buckets import Bucket, standing
    from llmrouter.database import database_path
    from llmrouter.ledger.limits import standings

    now_ms = time.time_ns() // 1_000_000
    path = database_path(config.store.url)
    if config.store.limits_url is not None:
        found = _shared_standings(config.store.limits_url.get_secret_value(), chosen, now_ms)
    elif path.exists():
        found = standings(path, chosen, now_ms)
    else:
        found = tuple(standing(limit, Bucket(), now_ms) for limit in chosen)
    if not path.exists():
        say(f"there is no store at {path} yet" + ("" if config.store.limits_url else ", so nothing is used"))
        return found
    return _with_books(config, path, found, now_ms)


def _shared_standings(url: str, chosen: Sequence[Limit], now_ms: int) -> tuple[Standing, ...]:
    """How limits stand in Redis; dollars that nothing counted yet in their window as unused."""
    import asyncio

    from llmrouter.buckets import Bucket, standing
    from llmrouter.errors import StoreUnavailable
    from llmrouter.tenancy.redis_limits import RedisLimits

    class NotCounted(StoreUnavailable):
        """The store would now begin a counter; that is for gateways to do."""

    async def refuse(limit: Limit, _window_ms: int) -> int:
        raise NotCounted(f"nothing counts {limit.scope} yet")

    async def ask() -> list[Standing]:
        store = RedisLimits(url, "command line", refuse, lease_s=0)

        async def one(limit: Limit) -> Standing:
            try:
                return (await store.standing([limit]))[0]
            except NotCounted:
                return standing(limit, Bucket(), now_ms)

        try:
            return await asyncio.gather(*(one(limit) for limit in chosen))
        finally:
            await store.aclose()

    return tuple(asyncio.run(ask()))


def _with_books(config: Config, path: Path, found: tuple[Standing, ...], now_ms: int) -> tuple[Standing, ...]:
    """The same, with what the books say of dollar limits that nothing counted yet in their window."""
    from dataclasses import replace

    unused = [each.limit for each in found if each.limit.kind.startswith("usd") and not _used(each)]
    if len(unused) > _MOST_ADDED_UP:
        say(f"{len(unused)} dollar limits that no request met yet in their window are shown as unused; --tenant or")
        say("--key chooses fewer, and then what the books say of them is added up")
        return found
    spent = _spent(config, path, unused, now_ms) if unused else {}
    return tuple(replace(each, remaining=max(each.remaining - spent.get(each.limit, 0), 0)) for each in found)


def _spent(config: Config, path: Path, chosen: Sequence[Limit], now_ms: int) -> dict[Limit, int]:
    """Nano-dollars by limit, as the books have them."""
    from llmrouter.buckets import window_start
    from llmrouter.database import reading
    from llmrouter.ledger.spending import spent_nano
    from llmrouter.postgres import Postgres
    from llmrouter.shared_store import shared_store

    def members(group_id: str) -> list[str]:
        return [tenant_id for tenant_id, tenant in config.tenants.items() if tenant.group == group_id]

    began = {limit: window_start(limit.kind, now_ms) for limit in chosen}
    server = shared_store(config.store)
    if isinstance(server, Postgres):
        from llmrouter.ledger.postgres.spending import shared_spent_nano

        return {limit: shared_spent_nano(path, server, limit.scope, began[limit], members) for limit in chosen}
    with reading(path) as connection:
        return {limit: spent_nano(connection, limit.scope, began[limit], members) for limit in chosen}


def _as_json(found: Standing) -> dict[str, Any]:
    from llmrouter.tenancy.limits import amount_as_json, limit_as_json

    limit = found.limit
    return {
        **limit_as_json(limit),
        "used": amount_as_json(limit, _used(found)),
        "remaining": amount_as_json(limit, found.remaining),
        "reset_s": round(found.reset_s, 3) if _used(found) else 0,
    }


def _row(found: Standing) -> tuple[str, ...]:
    from llmrouter.tenancy.limits import amount_text, whose

    limit = found.limit
    burst = f" (burst {limit.burst})" if limit.burst not in (0, limit.most) else ""
    return (
        whose(limit.scope),
        limit.kind,
        f"{amount_text(limit, limit.most)}{burst}",
        amount_text(limit, _used(found)),
        amount_text(limit, found.remaining),
        _reset(found),
    )


def _used(found: Standing) -> int:
    """What is used or set aside now; of a rate, what of its burst has not come back yet."""
    return (found.limit.burst or found.limit.most) - found.remaining


def _reset(found: Standing) -> str:
    if not _used(found):
        return "-"
    if found.limit.kind == "concurrent_requests":
        return "when calls end"
    seconds = max(round(found.reset_s), 1)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"in {seconds // size} {unit}"
    return f"in {seconds} s"
