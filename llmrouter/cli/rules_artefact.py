"""`llmrouter rules publish-artefact`: what `train-router` learned, or the generic artefact, as a routing version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmrouter.cli.options import ConfigPath, Json, example
from llmrouter.cli.output import print_json, say, warn
from llmrouter.cli.router_files import read_router

if TYPE_CHECKING:
    pass

__all__ = ["PUBLISH_EXAMPLE", "artefact_lines", "publish_artefact"]

_ROLES = ("small", "large", "frontier")

PUBLISH_EXAMPLE = example(
    "llmrouter rules publish-artefact ./router", "llmrouter rules publish-artefact ./router --point 3 --dry-run"
)


def publish_artefact(
    source: Annotated[
        str, typer.Argument(metavar="DIR", help='Folder that train-router wrote, or "generic" for the package\'s own.')
    ],
    point: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Its operating point. Without: the one that it was trained to choose."),
    ] = None,
    note: Annotated[str, typer.Option(metavar="TEXT", help="Why, for the history.")] = "",
    base_version: Annotated[
        int | None,
        typer.Option("--base-version", metavar="N", help="Fail unless N is the version in force. Without: that one."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check only.")] = False,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Publish an artefact with the rules in force, as the next routing version; learned tiers go by it from then on."""
    from llmrouter.cli.rules_store import author
    from llmrouter.config import load
    from llmrouter.gateway.app import version_as_json
    from llmrouter.gateway.artefacts import InForce
    from llmrouter.gateway.build import prepare_store
    from llmrouter.gateway.publishing import check_publishable, publish_artefact

    loaded = load(config)
    artefact = read_router(source)
    taken = InForce(artefact, point, "published")
    warnings = check_publishable(loaded, artefact, point)
    for text in warnings:
        warn(text)
    told: dict[str, Any] = {"dry_run": dry_run, "promise": taken.promise, "warnings": warnings}
    if dry_run:
        shown = f"would publish {taken.name}: {taken.promise}"
    else:
        prepare_store(loaded)
        done = publish_artefact(loaded, artefact, author=author(), point=point, base_version=base_version, note=note)
        told |= version_as_json(done)
        shown = f"published version {done.version} with {taken.name}: {taken.promise}"
    if as_json:
        print_json({**told, "digest": artefact.digest})
    else:
        say(shown)


def artefact_lines(version: Mapping[str, Any]) -> Iterator[str]:
    """What people are told of a version's artefact, given what `routing_as_json` made of it."""
    from llmrouter.routing.artefact_fit import promise

    named, about = version["artefact"], version.get("artefact_about")
    point = "" if named is None or named["point"] is None else f", operating point {named['point']}"
    if about is None:
        yield f"learned tiers go by the generic artefact, which promises nothing{point}"
    elif "refused" in about:
        yield about["refused"]
    else:
        models = ", ".join(f"{role} = {' or '.join(ids)}" for role, ids in sorted(about["roles"].items(), key=_rank))
        kept = promise(about, named["point"])
        yield f"learned tiers go by the artefact {named['digest'][:12]}{point}, trained for {models}: {kept}"
    for fallback in version.get("fallbacks", ()):
        since = f"since {fallback['raised_at']}: {fallback['reason']}"
        yield f"tier {fallback['tier']} is at its safe operating point {since}"


def _rank(role_and_models: tuple[str, Any]) -> tuple[int, str]:
    role, _ = role_and_models
    return _ROLES.index(role) if role in _ROLES else len(_ROLES), role
