"""`llmrouter store`: state, migrations, archive and retention of the stores."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmrouter.cli.options import ConfigPath, Json, example
from llmrouter.cli.output import print_json, print_table, say, warn
from llmrouter.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmrouter.cli.store_state import Migrations, StoreState
    from llmrouter.config import Config
    from llmrouter.ledger.retention import Gone

__all__ = [
    "ARCHIVE_EXAMPLE",
    "MIGRATE_EXAMPLE",
    "PRUNE_EXAMPLE",
    "STATUS_EXAMPLE",
    "archive",
    "migrate",
    "prune",
    "status",
]

STATUS_EXAMPLE = example("llmrouter store status --json")
MIGRATE_EXAMPLE = example("llmrouter store migrate", "llmrouter store migrate --to 0001_keys_rules_books --yes")
ARCHIVE_EXAMPLE = example("llmrouter store archive", "llmrouter store archive --before 2026-11-01 --json")
PRUNE_EXAMPLE = example("llmrouter store prune --before 2026-06 --dry-run", "llmrouter store prune --before 2026-06")


def status(config: ConfigPath = Path("llmrouter.toml"), as_json: Json = False) -> None:
    """Show size, rows and migrations of the file, the days of its archive, and what waits for the server."""
    from llmrouter.cli.store_state import state_of
    from llmrouter.config import load

    state = state_of(load(config))
    if as_json:
        print_json(_state_as_json(state))
    else:
        print_table(("WHAT", "HOW MUCH"), _state_rows(state))
    if state.server is not None and "error" in state.server:
        raise typer.Exit(1)


def migrate(
    to: Annotated[
        str | None, typer.Option("--to", metavar="NAME", help="Go back to this migration, for an older release.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Go back even though what only newer schemas hold is lost.")
    ] = False,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Bring the stores up to date, as every start does, or back to an earlier migration; stop the gateway for that."""
    from llmrouter.config import load

    loaded = load(config)
    done = _up(loaded) if to is None else _down(loaded, to, yes=yes)
    if as_json:
        print_json(done)
        return
    for name in done["applied"]:
        say(f"applied {name}")
    for name in done["undone"]:
        say(f"undid {name}")
    if not done["applied"] and not done["undone"]:
        say("nothing to do")


def archive(
    before: Annotated[
        str | None, typer.Option(metavar="DAY", help="First day, in UTC, that stays. Without: the first of this month.")
    ] = None,
    this_month: Annotated[
        bool, typer.Option("--this-month", help="Allow days of this month; a new monthly limit will not know of them.")
    ] = False,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Move closed days from the SQLite file into Parquet files beside it; reports go on as before."""
    from llmrouter.cli.store_state import usable_file
    from llmrouter.config import load
    from llmrouter.ledger.archiving import archive_entries

    loaded = load(config)
    if loaded.store.ledger_url is not None:
        raise UsageError(
            "with store.ledger_url the books are on the server, where each day is a partition already: "
            "there is nothing to archive"
        )
    first_kept = _archive_bound(before, datetime.now(UTC).date(), this_month=this_month)
    done = []
    for rolled in archive_entries(usable_file(loaded), first_kept):
        done.append(rolled)
        say(f"{rolled.day}: {rolled.entries} entries archived, {rolled.deleted} deleted from the file")
    if as_json:
        days = [{"day": str(each.day), "entries": each.entries, "deleted": each.deleted} for each in done]
        print_json({"before": str(first_kept), "days": days})
    elif not done:
        say(f"nothing before {first_kept} to archive")


def prune(
    before: Annotated[str, typer.Option(metavar="DAY", help="First day, in UTC, that stays, or month: its first day.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count only.")] = False,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Delete all entries before a day for good, from the file, its archive and the server."""
    from llmrouter.cli.store_state import server_of, usable_file
    from llmrouter.config import load
    from llmrouter.ledger.retention import drop_before, would_go
    from llmrouter.ledger.usage import parse_day

    loaded = load(config)
    today = datetime.now(UTC).date()
    first_kept = parse_day(before, "--before")
    _refuse_open_days(first_kept, today)
    if first_kept > today.replace(day=1):
        warn("a usd_per_month limit that begins later this month will not know what these days cost")
    path, server = usable_file(loaded), server_of(loaded)
    gone = would_go(path, server, first_kept) if dry_run else drop_before(path, server, first_kept)
    if as_json:
        print_json({"dry_run": dry_run, **_gone_as_json(gone)})
    else:
        say(("would delete " if dry_run else "deleted ") + _gone_in_words(gone))


def _up(config: Config) -> dict[str, list[str]]:
    from llmrouter.cli.store_state import server_of
    from llmrouter.database import database_path
    from llmrouter.database import migrate as migrate_file
    from llmrouter.postgres import migrate_postgres

    server = server_of(config)
    applied = migrate_file(database_path(config.store.url))
    return {"applied": [*applied, *([] if server is None else migrate_postgres(server))], "undone": []}


def _down(config: Config, target: str, *, yes: bool) -> dict[str, list[str]]:
    """Take the one store that knows the migration back to it."""
    from llmrouter.cli.store_state import file_migrations, server_of, state_of
    from llmrouter.database import downgrade
    from llmrouter.postgres import downgrade_postgres, migrations_of
    from llmrouter.schema import migration_names
    from llmrouter.schema.postgres import numbered

    server = server_of(config)
    state = state_of(config)
    of_server = server is not None and target in numbered()
    known = numbered() if of_server else migration_names()
    if target not in known:
        others = numbered() if server is not None else []
        raise UsageError(f"no migration {target!r}; known: {', '.join([*migration_names(), *others])}")
    applied = migrations_of(server) if of_server and server is not None else list(file_migrations(state.file).applied)
    later = [name for name in applied if name > target]
    if later and not yes:
        raise UsageError(
            f"this undoes {', '.join(reversed(later))}, and what only they can hold is lost for good; "
            "stop the gateway, copy the store, then say --yes"
        )
    if of_server and server is not None:
        return {"applied": [], "undone": downgrade_postgres(server, target)}
    if later and state.under_way:
        raise UsageError(
            f"{state.under_way} calls are under way, or their process died before they were booked; going back would "
            "lose them: stop the gateway, or start and stop it once so that they are booked"
        )
    return {"applied": [], "undone": downgrade(state.file, target)}


def _archive_bound(before: str | None, today: date, *, this_month: bool) -> date:
    from llmrouter.ledger.usage import parse_day

    month = today.replace(day=1)
    if before is None:
        return month
    first_kept = parse_day(before, "--before")
    _refuse_open_days(first_kept, today)
    if first_kept > month and not this_month:
        raise UsageError(
            f"--before {before} takes days of this month, of which a new usd_per_month limit would then not know; "
            f"the latest is {month}, or add --this-month"
        )
    return first_kept


def _refuse_open_days(before: date, today: date) -> None:
    if before > today:
        raise UsageError(f"--before {before} takes days that are not over; the latest is today, {today} in UTC")


def _state_as_json(state: StoreState) -> dict[str, Any]:
    days = state.archive_days
    server = state.server
    if server is not None and "days" in server:
        server = {**server, "days": [str(day) for day in server["days"]]}
    if server is not None and "migrations" in server:
        server = {**server, "migrations": _migrations(server["migrations"])}
    return {
        "file": {
            "path": str(state.file),
            "size_bytes": state.size_bytes,
            "migrations": _migrations(state.migrations),
            "entries": state.entries,
            "oldest": state.oldest,
            "newest": state.newest,
            "under_way": state.under_way,
        },
        "archive": {"days": [str(day) for day in days], "size_bytes": state.archive_bytes},
        "server": server,
    }


def _migrations(migrations: Migrations) -> dict[str, list[str]]:
    return {"applied": list(migrations.applied), "pending": list(migrations.pending)}


def _state_rows(state: StoreState) -> list[tuple[str, str]]:
    rows = [
        ("file", str(state.file)),
        ("size", _size(state.size_bytes)),
        ("migrations", _migrations_in_words(state.migrations)),
        ("entries", str(state.entries)),
        ("oldest", state.oldest or "-"),
        ("newest", state.newest or "-"),
        ("under way", "-" if state.under_way is None else str(state.under_way)),
        ("archive", f"{_days(state.archive_days)}, {_size(state.archive_bytes)}" if state.archive_days else "none"),
    ]
    server = state.server
    if server is None:
        return rows
    rows.append(("server", server["name"]))
    if "error" in server:
        return [*rows, ("server error", server["error"])]
    rows.append(("server migrations", _migrations_in_words(server["migrations"])))
    if "days" in server:
        waiting = f"{server['waiting']} entries" + (f", {server['refused']} refused" if server["refused"] else "")
        rows += [("server days", _days(server["days"])), ("waiting for it", waiting)]
    return rows


def _migrations_in_words(migrations: Migrations) -> str:
    pending = f"; pending: {', '.join(migrations.pending)}" if migrations.pending else ""
    return f"{', '.join(migrations.applied) or 'none'}{pending}"


def _days(days: Sequence[date]) -> str:
    return f"{len(days)} days, {days[0]} to {days[-1]}" if days else "none"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"


def _gone_as_json(gone: Gone) -> dict[str, Any]:
    return {
        "before": str(gone.before),
        "entries": gone.entries,
        "archived_days": [str(day) for day in gone.archived_days],
        "server_days": [str(day) for day in gone.server_days],
    }


def _gone_in_words(gone: Gone) -> str:
    parts = [
        f"{gone.entries} entries of the file",
        *([f"the archive's {_days(gone.archived_days)}"] if gone.archived_days else []),
        *([f"the server's {_days(gone.server_days)}"] if gone.server_days else []),
    ]
    return f"{'; '.join(parts)} before {gone.before}"
