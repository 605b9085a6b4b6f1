"""The shared limits: can Redis or Valkey be reached, and will it keep what it is told."""

from __future__ import annotations

from collections.abc import Iterator

from llmrouter.cli.checkup.finding import Finding, fail, info, ok, warning
from llmrouter.config import StoreConfig
from llmrouter.errors import UsageError
from llmrouter.redis import server_name

__all__ = ["check_limits"]

_TIMEOUT_S = 2.0


def check_limits(store: StoreConfig) -> Iterator[Finding]:
    """Ask the server that `store.limits_url` names, if there is one; changes nothing."""
    if store.limits_url is None:
        return
    url = store.limits_url.get_secret_value()
    try:
        import redis
    except ImportError:
        raise UsageError("Redis needs the extra `redis`: pip install '.[redis]'") from None
    name = server_name(url)
    try:
        with redis.Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S) as client:
            client.ping()
            yield ok("limits", "reachable", name)
            yield _policy(client.info("memory").get("maxmemory_policy"))
            yield _survives(client.info("persistence").get("aof_enabled"))
    except (redis.RedisError, OSError, ValueError) as error:
        yield fail("limits", "reachable", f"store.limits_url: {name}: {error}")


def _survives(append_only: int | None) -> Finding:
    if append_only:
        return ok("limits", "survives", "append-only file on")
    return info("limits", "survives", "append-only file off: a restart may let budgets be exceeded (docs/stores.md)")


def _policy(policy: str | None) -> Finding:
    if policy in ("noeviction", None):
        return ok("limits", "keeps", "maxmemory-policy noeviction" if policy else "the server does not say its policy")
    return warning("limits", "keeps", f"maxmemory-policy {policy} may forget what was used; set noeviction")
