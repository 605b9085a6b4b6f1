"""Whether the server has room for the connections of this gateway."""

from __future__ import annotations

from llmrouter.errors import ConfigError
from llmrouter.postgres import Postgres

__all__ = ["check_room", "connections_of"]


def connections_of(workers: int) -> int:
    """The most that a gateway holds: each worker and the supervisor one for keys and rules, and one that ships."""
    return workers + 2


def check_room(database: Postgres, wanted: int) -> str | None:
    """Nothing to say, or a warning that others leave too little room just now.

    Raises:
        ConfigError: the server would not give so many connections to this user even if nobody else had any.
        StoreUnavailable: the server cannot be asked.
    """
    with database.transaction("BEGIN READ ONLY") as connection:
        row = connection.execute(_ROOM).fetchone()
    assert row is not None
    most, used, of_user, of_database = (int(number) for number in row)
    allowed = min(limit for limit in (most, of_user, of_database) if limit >= 0)
    if wanted > allowed:
        raise ConfigError(
            f"store.ledger_url: {database.name} allows {allowed} connections but this gateway needs {wanted}; "
            "raise its max_connections (or the limit of the user or database), or lower server.workers"
        )
    others = used - 1  # ours, which asks
    if others + wanted > allowed:
        return (
            f"{database.name} allows {allowed} connections and {others} are taken; this gateway needs up to {wanted}, "
            "so workers may find none: raise max_connections"
        )
    return None


_ROOM = """
    SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
        (SELECT coalesce(sum(numbackends), 1) FROM pg_stat_database),
        (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
        (SELECT datconnlimit FROM pg_database WHERE datname = current_database())
"""
