"""`llmrouter keys`: API keys in the store; a running gateway knows of a change within a second."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmrouter.cli.options import ConfigPath, Json, example
from llmrouter.cli.output import print_json, print_table, say, warn
from llmrouter.errors import UsageError

if TYPE_CHECKING:
    from llmrouter.config import Config
    from llmrouter.tenancy.keys import KeyInfo, KeyStore
    from llmrouter.tenancy.policy import KeyPolicy

__all__ = [
    "CREATE_EXAMPLE",
    "LIST_EXAMPLE",
    "REVOKE_EXAMPLE",
    "create",
    "list_keys",
    "parse_expiry",
    "parse_limits",
    "revoke",
]

CREATE_EXAMPLE = example(
    'KEY=$(llmrouter keys create --tenant default --expires 90d --note "checkout service")',
    "llmrouter keys create --tenant default --admin --json",
    "llmrouter keys create --tenant default --limit requests_per_minute=60 --limit usd_per_day=5 --class batch",
)
LIST_EXAMPLE = example("llmrouter keys list --json")
REVOKE_EXAMPLE = example("llmrouter keys revoke 3f9c2a71b0d4")

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def create(
    tenant: Annotated[
        str, typer.Option("--tenant", "-t", metavar="ID", help="Who pays; one of the configuration's tenants.")
    ],
    tier: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Tier it may use; repeat for more. Without: all.")
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="Let it use the admin API too, for all tenants.")] = False,
    acl: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL", help="Label of what its requests may have seen; repeat for more."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="30d, 12h, 4w, or an ISO date. Without: never.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=MOST", help="Limit of its own, e.g. usd_per_day=5; repeat for more. Without: key_limits."
        ),
    ] = None,
    latency_class: Annotated[
        list[str] | None,
        typer.Option("--class", metavar="NAME", help="Latency class it may ask for; repeat for more. Without: all."),
    ] = None,
    default_class: Annotated[
        str | None, typer.Option(metavar="NAME", help="Class of its requests that ask for none. Without: the tier's.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="ID", help="The one end user it stands for, whatever a request says.")
    ] = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.")] = "",
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Make an API key and print it: this is the only time that its text can be seen."""
    from llmrouter.config import load
    from llmrouter.gateway.build import prepare_store
    from llmrouter.tenancy.keys import key_as_json
    from llmrouter.tenancy.policy import make_policy
    from llmrouter.tenancy_checks import limits_above

    loaded = load(config)
    _check_name("tenant", tenant, loaded.tenants)
    for name in tier or []:
        _check_name("tier", name, loaded.tiers)
    expires_at = None if expires is None else parse_expiry(expires, datetime.now(UTC))
    policy = make_policy(parse_limits(limit or []), latency_class or None, default_class, user)
    _refuse_other_classes(loaded, tenant, policy)
    prepare_store(loaded)
    text, info = _store(loaded).create(
        tenant,
        tiers=None if not tier else frozenset(tier),
        admin=admin,
        acl=frozenset(acl or ()),
        expires_at=expires_at,
        note=note,
        limits=policy.limits,
        classes=policy.classes,
        latency_class=policy.latency_class,
        user_id=policy.user_id,
    )
    for line in limits_above(f"key {info.key_id}", policy.limits, f"tenant {tenant}", loaded.tenants[tenant].limits):
        warn(line)
    if as_json:
        print_json({"key": text, **key_as_json(info)})
        return
    typer.echo(text)
    say(f"key {info.key_id} of tenant {tenant}; keep it, it is not shown again")


def list_keys(config: ConfigPath = Path("llmrouter.toml"), as_json: Json = False) -> None:
    """List all keys with their scopes; of a key's text only its id is known."""
    from llmrouter.config import load
    from llmrouter.tenancy.keys import key_as_json

    keys = _store(load(config)).list()
    if as_json:
        print_json({"keys": [key_as_json(info) for info in keys]})
        return
    columns = (
        *("KEY", "TENANT", "STATE", "TIERS", "ADMIN", "ACL", "LIMITS", "CLASSES", "USER"),
        *("CREATED", "EXPIRES", "NOTE"),
    )
    print_table(columns, [_row(info, datetime.now(UTC)) for info in keys])


def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="As `keys list` shows it.")],
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Refuse a key from now on."""
    from llmrouter.config import load
    from llmrouter.tenancy.keys import key_as_json

    info = _store(load(config)).revoke(key_id)
    if as_json:
        print_json(key_as_json(info))
    else:
        say(f"key {info.key_id} of tenant {info.tenant_id} is revoked; every worker knows within a second")


def parse_expiry(text: str, now: datetime) -> datetime:
    """When a key ends: a time from now such as `30d`, or an ISO date or instant (UTC where it names no zone).

    Raises:
        UsageError: it is neither, or not in the future.
    """
    number, unit = text[:-1], text[-1:]
    try:
        if unit in _UNITS and number.isascii() and number.isdigit():
            when = now + timedelta(**{_UNITS[unit]: int(number)})
        else:
            when = datetime.fromisoformat(text)
            when = (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(f"--expires {text!r} is neither a time such as 30d or 12h nor an ISO date") from None
    if when <= now:
        raise UsageError(f"--expires {text} is not in the future")
    return when


def parse_limits(given: Sequence[str]) -> dict[str, str]:
    """`KIND=MOST` pairs apart; what they say is checked by `make_policy`.

    Raises:
        UsageError: one is no such pair, or names a kind twice.
    """
    found: dict[str, str] = {}
    for text in given:
        kind, equals, most = (part.strip() for part in text.partition("="))
        if not equals or not kind or not most:
            raise UsageError(f"--limit {text!r} is not KIND=MOST, e.g. requests_per_minute=60")
        if kind in found:
            raise UsageError(f"--limit {kind} is given twice")
        found[kind] = most
    return found


def _store(config: Config) -> KeyStore:
    from llmrouter.database import database_path
    from llmrouter.shared_store import shared_store, store_exists
    from llmrouter.tenancy.keys import KeyStore, load_pepper

    store = shared_store(config.store)
    if not store_exists(store):
        raise UsageError(f"there is no store at {store} yet; `llmrouter keys create` makes one")
    return KeyStore(store, load_pepper(config.store, database_path(config.store.url)))


def _check_name(what: str, name: str, known: Any) -> None:
    import difflib

    if name not in known:
        close = difflib.get_close_matches(name, list(known), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        raise UsageError(f"no {what} {name!r} in the configuration; {hint}")


def _refuse_other_classes(config: Config, tenant_id: str, policy: KeyPolicy) -> None:
    allowed = config.tenants[tenant_id].classes
    for name in [*sorted(policy.classes or set()), policy.latency_class or allowed[0]]:
        if name not in allowed:
            raise UsageError(f"tenant {tenant_id} has no latency class {name}; it has: {', '.join(allowed)}")


def _row(info: KeyInfo, now: datetime) -> tuple[str, ...]:
    from llmrouter.tenancy.policy import shown_limits

    policy = info.policy
    return (
        info.key_id,
        info.tenant_id,
        _state(info, now),
        "all" if info.tiers is None else ", ".join(sorted(info.tiers)),
        "yes" if info.admin else "no",
        ", ".join(sorted(info.acl)) or "-",
        shown_limits(policy.limits) or "-",
        _classes(policy),
        policy.user_id or "-",
        f"{info.created_at:%Y-%m-%d}",
        "never" if info.expires_at is None else f"{info.expires_at:%Y-%m-%d %H:%M}",
        info.note,
    )


def _classes(policy: KeyPolicy) -> str:
    """The classes it may ask for; the one it gets without asking is marked."""
    names = ["all"] if policy.classes is None else sorted(policy.classes)
    default = policy.latency_class
    if default is None:
        return ", ".join(names)
    return ", ".join([*(name for name in names if name != default), f"{default} (default)"])


def _state(info: KeyInfo, now: datetime) -> str:
    if info.revoked_at is not None:
        return "revoked"
    return "expired" if info.expires_at is not None and info.expires_at <= now else "active"
