"""`llmrouter rules`: routing versions in the store; a running gateway takes a new one up within a second."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmrouter.cli.options import ConfigPath, Json, example
from llmrouter.cli.output import print_json, print_table, say, warn
from llmrouter.cli.rules_shown import changes_of, counted, learned, rule_row, title, version_row
from llmrouter.cli.rules_store import author, check_artefact, in_force, published, version_in_force, with_artefact
from llmrouter.errors import NotFound, UsageError

if TYPE_CHECKING:
    from llmrouter.cli.rules_file import RulesFile
    from llmrouter.config import Config
    from llmrouter.routing.versions import RoutingStore
    from llmrouter.types import RoutingVersion

__all__ = [
    "APPLY_EXAMPLE",
    "DIFF_EXAMPLE",
    "EXPLAIN_EXAMPLE",
    "LIST_EXAMPLE",
    "ROLLBACK_EXAMPLE",
    "SHOW_EXAMPLE",
    "apply",
    "diff",
    "explain",
    "list_rules",
    "rollback",
    "show",
]

LIST_EXAMPLE = example("llmrouter rules list --json > rules.json", "llmrouter rules list --history")
APPLY_EXAMPLE = example(
    "llmrouter rules apply rules.json --dry-run", 'llmrouter rules apply rules.json --note "code to large"'
)
SHOW_EXAMPLE = example("llmrouter rules show 7")
DIFF_EXAMPLE = example("llmrouter rules diff 7", "llmrouter rules diff 7 8 --json")
ROLLBACK_EXAMPLE = example('llmrouter rules rollback 7 --note "8 sent too much to large"')
EXPLAIN_EXAMPLE = example('llmrouter rules explain --tier auto --prompt "Fix this stack trace"')

Note = Annotated[str, typer.Option(metavar="TEXT", help="Why, for the history.")]
BaseVersion = Annotated[
    int | None,
    typer.Option(
        "--base-version", metavar="N", help="Fail unless N is the version in force. Without: the file's, else that one."
    ),
]


def list_rules(
    history: Annotated[bool, typer.Option("--history", help="List versions instead of rules.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="How many versions.")] = 20,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Show the rules in force, highest priority first, or the versions so far, newest first."""
    from llmrouter.config import load
    from llmrouter.gateway.app import version_as_json

    loaded = load(config)
    if history:
        versions = published(loaded).history(limit)
        if as_json:
            print_json({"versions": [version_as_json(version) for version in versions]})
        else:
            head = ("VERSION", "PUBLISHED", "BY", "RULES", "ARTEFACT", "NOTE")
            print_table(head, [version_row(each) for each in versions])
        return
    _show(loaded, version_in_force(loaded), as_json)


def show(
    version: Annotated[int, typer.Argument(metavar="VERSION", help="Its number.")],
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Show one routing version: its rules, highest priority first, and what learned tiers go by under it."""
    from llmrouter.config import load

    loaded = load(config)
    _show(loaded, _version(published(loaded), version), as_json)


def diff(
    old: Annotated[int, typer.Argument(metavar="OLD", help="The earlier version.")],
    new: Annotated[
        int | None, typer.Argument(metavar="NEW", help="The later version. Without: the one in force.")
    ] = None,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Show what one routing version has changed since another: rules, artefact, operating point."""
    from llmrouter.config import load
    from llmrouter.gateway.app import version_as_json

    store = published(load(config))
    before = _version(store, old)
    after = store.current() if new is None else _version(store, new)
    changes = changes_of(before.rules, after.rules)
    if as_json:
        learned_then, learned_now = (version_as_json(each)["artefact"] for each in (before, after))
        body = {"old": before.version, "new": after.version, "changes": changes}
        print_json({**body, "artefact": {"old": learned_then, "new": learned_now}})
        return
    typer.echo(f"from version {before.version} to {after.version}: {counted(changes)}")
    rows = [
        (sign, *rule_row(rule))
        for sign, version, kinds in (("-", before, ("removed", "changed")), ("+", after, ("added", "changed")))
        for rule in version.rules
        if any(rule.rule_id in changes[kind] for kind in kinds)
    ]
    if rows:
        rows.sort(key=lambda row: (row[1], "-+".index(row[0])))
        print_table(("", "RULE", "PRIORITY", "WEIGHT", "SENDS TO", "WHEN"), rows)
    if learned(before) != learned(after):
        typer.echo(f"learned tiers went by {learned(before)}, and go by {learned(after)}")


def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Rules as TOML or JSON; - reads standard input.")],
    base_version: BaseVersion = None,
    note: Note = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and compare only.")] = False,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Check rules and publish them as the next routing version, in place of all rules in force."""
    from llmrouter.cli.rules_file import read_rules_file
    from llmrouter.config import load
    from llmrouter.gateway.app import version_as_json
    from llmrouter.routing.rules import compile_rules

    loaded = load(config)
    given = read_rules_file(file)
    if not dry_run:
        _prepare(loaded)
    current = version_in_force(loaded)
    base = next(n for n in (base_version, given.base_version, current.version) if n is not None)
    draft = _draft(current, given, base, note or given.note)
    warnings = compile_rules(draft, loaded).warnings
    check_artefact(loaded, draft)
    for text in warnings:
        warn(text)
    changes = changes_of(current.rules, given.rules)
    if dry_run:
        if current.version:
            published(loaded).compare(base)
    else:
        draft = published(loaded).publish(
            given.rules, base_version=base, author=author(), note=draft.note, learned=given.learned
        )
    if as_json:
        body = {"dry_run": dry_run, "current_version": current.version, "changes": changes, "warnings": warnings}
        print_json({**body, **version_as_json(draft)})
        return
    done = "would be version" if dry_run else "published version"
    say(f"{done} {draft.version}, based on {base}: {counted(changes)}")


def rollback(
    version: Annotated[int, typer.Argument(metavar="VERSION", help="The version that comes back.")],
    note: Note = "",
    base_version: BaseVersion = None,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Publish an earlier version again, as the next one: its rules, its artefact and its operating point."""
    from llmrouter.config import load
    from llmrouter.gateway.app import version_as_json
    from llmrouter.routing.rules import compile_rules

    loaded = load(config)
    store = published(loaded)
    old = _version(store, version)
    compile_rules(old, loaded)
    check_artefact(loaded, old)
    done = store.rollback(version, base_version=base_version, author=author(), note=note)
    if as_json:
        print_json(version_as_json(done))
    else:
        what = "" if done.artefact_digest is None else f" and the artefact {done.artefact_digest[:12]}"
        say(f"published version {done.version} with the {len(done.rules)} rules{what} of version {version}")


def explain(
    tier: Annotated[
        str | None, typer.Option(metavar="ID", help="The tier asked for. Without: the request's, else the only one.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="Text of one user message.")] = None,
    request: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A chat completions body as JSON; - reads standard input.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="ID", help="Who asks. Without: the configuration's first tenant.")
    ] = None,
    key_id: Annotated[
        str | None, typer.Option("--key-id", metavar="KEY_ID", help="Whose key asks, with its scopes.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A request header; repeat for more.")
    ] = None,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Show where a request would go and why: each rule's verdict, the choice, the fallback chain. Calls no model."""
    from llmrouter.cli.explaining import asker, body_of, headers_of, print_explanation
    from llmrouter.config import load
    from llmrouter.gateway.explaining import explain_request

    loaded = load(config)
    body = body_of(loaded, tier=tier, prompt=prompt, request=request)
    principal = asker(loaded, tenant=tenant, key_id=key_id)
    now = version_in_force(loaded)
    found = explain_request(
        loaded, now, body, principal, headers=headers_of(header or []), in_force=in_force(loaded, now)
    )
    if as_json:
        print_json(found)
    else:
        print_explanation(found)


def _prepare(config: Config) -> None:
    from llmrouter.gateway.build import prepare_store

    prepare_store(config)


def _version(store: RoutingStore, number: int) -> RoutingVersion:
    try:
        return store.get(number)
    except NotFound as error:
        raise UsageError(error.message) from error


def _show(config: Config, version: RoutingVersion, as_json: bool) -> None:
    from llmrouter.cli.rules_artefact import artefact_lines

    known = with_artefact(config, version)
    if as_json:
        print_json(known)
        return
    say(title(version))
    if known["artefact"] is not None or any(tier.is_learned for tier in config.tiers.values()):
        for line in artefact_lines(known):
            say(line)
    ordered = sorted(version.rules, key=lambda rule: (-rule.priority, rule.rule_id))
    print_table(("RULE", "PRIORITY", "WEIGHT", "SENDS TO", "WHEN"), [rule_row(rule) for rule in ordered])


def _draft(current: RoutingVersion, given: RulesFile, base: int, note: str) -> RoutingVersion:
    from dataclasses import replace
    from datetime import UTC, datetime

    wanted = given.learned
    return replace(
        current,
        version=current.version + 1,
        rules=given.rules,
        artefact_digest=current.artefact_digest if wanted is None else wanted.digest,
        point=current.point if wanted is None else wanted.point,
        created_at=datetime.now(UTC),
        author=author(),
        note=note,
        base_version=base,
        rolled_back_to=None,
    )
