"""`llmrouter doctor`: is everything here that the gateway needs, and do the pools do what the configuration says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmrouter.cli.options import ConfigPath, Json, example
from llmrouter.cli.output import print_json
from llmrouter.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    import httpx

    from llmrouter.cli.checkup.finding import Finding
    from llmrouter.config import Config

    Tell = Callable[[Finding], None]

__all__ = ["EXAMPLE", "doctor"]

EXAMPLE = example(
    "llmrouter doctor", "llmrouter doctor --pool large --json", "llmrouter doctor --gateway http://127.0.0.1:8080"
)

_MARKS = {"ok": ("ok  ", "green"), "info": ("note", "blue"), "warning": ("warn", "yellow"), "fail": ("FAIL", "red")}
_CONNECT_S = 5.0
_ANSWER_S = 60.0


def doctor(
    pool: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Look at this pool only; repeat for more.")
    ] = None,
    gateway: Annotated[str | None, typer.Option(metavar="URL", help="A running gateway to ask as well.")] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", envvar="LLMROUTER_KEY", help="API key for the running gateway.")
    ] = None,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Look at this machine, the store and every replica; calls ask for 4 or 16 tokens, also of hosted APIs."""
    found: list[Finding] = []

    def tell(finding: Finding) -> None:
        found.append(finding)
        if not as_json:
            _print(finding)

    raw = _raw(config)
    _each(_local(config, raw), tell)
    loaded = _load(config, found)
    if loaded is not None:
        _examine(loaded, _wanted(loaded, pool), gateway, key, tell)
    _conclude(found, as_json)


def _local(path: Path, raw: dict[str, Any]) -> Iterator[Finding]:
    from llmrouter.cli.checkup.machine import check_clock, check_secrets

    yield from check_clock()
    yield from check_secrets(path, raw)


def _load(path: Path, found: list[Finding]) -> Config | None:
    """The configuration, or None when only variables that have been told of keep it from being read."""
    from llmrouter.config import load

    try:
        return load(path)
    except ConfigError:
        if any(finding.aspect == "secrets" and finding.status == "fail" for finding in found):
            return None
        raise


def _examine(config: Config, pools: list[str], gateway: str | None, key: str | None, tell: Tell) -> None:
    import asyncio

    from llmrouter.cli.checkup.finding import fail, warning
    from llmrouter.cli.checkup.learned import check_learned
    from llmrouter.cli.checkup.limits import check_limits
    from llmrouter.cli.checkup.machine import check_disk, check_open_files
    from llmrouter.cli.checkup.store import check_store
    from llmrouter.config_checks import contradictions, oddities
    from llmrouter.database import database_path

    _each((fail("configuration", "contradiction", text) for text in contradictions(config)), tell)
    _each((warning("configuration", "oddity", text) for text in oddities(config)), tell)
    tell(check_open_files(config))
    store = database_path(config.store.url)
    _each(check_store(config, store), tell)
    _each(check_learned(config), tell)
    _each(check_limits(config.store), tell)
    if store.parent.is_dir():
        tell(check_disk(store.parent))
    asyncio.run(_ask(config, pools, gateway, key, tell))


async def _ask(config: Config, pools: list[str], gateway: str | None, key: str | None, tell: Tell) -> None:
    import httpx

    from llmrouter.cli.checkup.gateway import check_gateway

    timeout = httpx.Timeout(_ANSWER_S, connect=_CONNECT_S)
    async with httpx.AsyncClient(timeout=timeout, trust_env=False) as client:
        for pool_id in pools:
            await _pool(config, pool_id, client, gateway is not None, tell)
        if gateway is not None:
            async for finding in check_gateway(gateway, key, client):
                tell(finding)


async def _pool(config: Config, pool_id: str, client: httpx.AsyncClient, running: bool, tell: Tell) -> None:
    """All replicas at once, told of in their order."""
    import asyncio

    from llmrouter.cli.checkup.finding import ok
    from llmrouter.cli.checkup.replica import Examiner, subjects
    from llmrouter.cli.checkup.runner import check_runner

    pool = config.pools[pool_id]
    if pool.api == "echo":
        tell(ok(pool_id, "answers", "by itself, with what it is sent"))
    elif pool.runner is not None:
        if not running:
            _each(check_runner(pool_id, pool.runner), tell)
    else:
        exams: list[Awaitable[list[Finding]]] = [_all(Examiner(each, client)) for each in subjects(config, pool_id)]
        for findings in await asyncio.gather(*exams):
            _each(findings, tell)


async def _all(examiner: Any) -> list[Finding]:
    return [finding async for finding in examiner.findings()]


def _wanted(config: Config, pools: list[str] | None) -> list[str]:
    for pool_id in pools or []:
        if pool_id not in config.pools:
            raise UsageError(f"no pool {pool_id!r} in the configuration; known: {', '.join(config.pools)}")
    return pools or list(config.pools)


def _raw(path: Path) -> dict[str, Any]:
    """The file's own text as it is; what is wrong with the file, `load` says better."""
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        from llmrouter.config import load

        load(path)
        raise


def _each(findings: Iterable[Finding], tell: Tell) -> None:
    for finding in findings:
        tell(finding)


def _print(finding: Finding) -> None:
    mark, colour = _MARKS[finding.status]
    typer.secho(mark, fg=colour, nl=False)
    typer.echo(f"  {finding.subject}: {finding.aspect}: {finding.message}")


def _conclude(found: list[Finding], as_json: bool) -> None:
    from dataclasses import asdict

    counts = {status: sum(finding.status == status for finding in found) for status in _MARKS}
    if as_json:
        print_json({"ok": not counts["fail"], "counts": counts, "findings": [asdict(finding) for finding in found]})
    else:
        typer.echo(f"{counts['ok']} ok, {counts['warning']} warnings, {counts['fail']} failed")
    raise typer.Exit(1 if counts["fail"] else 0)
