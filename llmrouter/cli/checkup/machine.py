"""This machine: its clock, its limits, the disk under the store, the secrets of the configuration."""

from __future__ import annotations

import os
import re
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from llmrouter.cli.checkup.finding import Finding, fail, info, ok, warning
from llmrouter.cli.effective import texts
from llmrouter.config import Config

__all__ = ["check_clock", "check_disk", "check_open_files", "check_secrets", "missing_variables"]

_OLDEST_PLAUSIBLE = datetime(2026, 1, 1, tzinfo=UTC)
"""Before this release was made; a clock that says so has not been set."""
_MOST_DRIFT_S = 0.05
_WATCHED_S = 0.2
_LOW_DISK_BYTES = 1024**3
_NO_DISK_BYTES = 64 * 1024**2
_SPARE_FILES = 128
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def check_clock(
    *,
    wall: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Finding]:
    """Is the wall clock set, does it run as fast as the monotonic one, are time zones known."""
    wall_from, monotonic_from = wall(), monotonic()
    sleep(_WATCHED_S)
    drift_s = (wall() - wall_from) - (monotonic() - monotonic_from)
    now = datetime.fromtimestamp(wall(), UTC)
    if now < _OLDEST_PLAUSIBLE:
        yield fail("machine", "clock", f"says {now:%Y-%m-%d}; set it: keys would not expire and prices would be old")
    elif abs(drift_s) > _MOST_DRIFT_S:
        yield warning("machine", "clock", f"moved {drift_s * 1000:+.0f} ms against the monotonic clock within a moment")
    else:
        local = now.astimezone()
        yield ok("machine", "clock", f"{now:%Y-%m-%d %H:%M:%S} UTC, local offset {local:%z}; the books are in UTC")
    try:
        ZoneInfo("Europe/Warsaw")
    except (KeyError, OSError):
        yield warning("machine", "time zones", "none are known here; install tzdata for rules with a timezone")


def check_open_files(config: Config, limit: int | None = None) -> Finding:
    """Each request takes a connection on both sides."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    needed = 2 * config.server.max_concurrent_requests + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return ok("machine", "open files", f"{_count(soft)} allowed, {needed} needed")
    return warning(
        "machine",
        "open files",
        f"{soft} allowed, but {config.server.max_concurrent_requests} requests at once need {needed}; "
        f"run `ulimit -n {needed}` first, or lower server.max_concurrent_requests",
    )


def check_disk(folder: Path, free_bytes: int | None = None) -> Finding:
    """Is there room for the books."""
    free = shutil.disk_usage(folder).free if free_bytes is None else free_bytes
    text = f"{free / 1e9:,.1f} GB free in {folder}"
    if free < _NO_DISK_BYTES:
        return fail("machine", "disk", f"{text}: too little for the ledger")
    return (
        warning("machine", "disk", f"{text}: the ledger will need more")
        if free < _LOW_DISK_BYTES
        else ok("machine", "disk", text)
    )


def missing_variables(raw: Any, environ: Mapping[str, str]) -> list[str]:
    """Variables that the file names and that are not set, in its order."""
    names = dict.fromkeys(name for text in texts(raw) for name in _VARIABLE.findall(text))
    return [name for name in names if not environ.get(name)]


def check_secrets(path: Path, raw: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """Are all variables set, and is no secret written into the file itself."""
    missing = missing_variables(raw, os.environ if environ is None else environ)
    for name in missing:
        yield fail("configuration", "secrets", f"environment variable {name} is not set")
    literal = list(_literal_secrets(raw))
    for key in literal:
        readable = " that others can read" if path.stat().st_mode & 0o077 else ""
        yield warning("configuration", "secrets", f"{key} is written into a file{readable}; write ${{NAME}} instead")
    if not missing and not literal:
        yield ok("configuration", "secrets", "all set, none written into the file")
    if "secret" not in raw.get("store", {}):
        yield info("configuration", "store.secret", "left out: the file <database>.secret holds it; back it up")


def _literal_secrets(raw: Mapping[str, Any]) -> Iterator[str]:
    given = {"store.secret": raw.get("store", {}).get("secret")}
    for pool_id, pool in raw.get("pools", {}).items():
        given[f"pools.{pool_id}.api_key"] = pool.get("api_key")
        for name, value in pool.get("headers", {}).items():
            given[f"pools.{pool_id}.headers.{name}"] = value
    for key, value in given.items():
        if isinstance(value, str) and not _VARIABLE.search(value):
            yield key


def _count(limit: int) -> str:
    return "any number" if limit == resource.RLIM_INFINITY else str(limit)
