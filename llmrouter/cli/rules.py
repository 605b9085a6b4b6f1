"""`llmrouter rules`: routing versions in the store; a running gateway takes a new one up within a second."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmrouter.cli.options import ConfigPath, Json, example
from llmrouter.cli.output import print_json, print_table, say, warn
from llmrouter.errors import NotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llmrouter.config import Config
    from llmrouter.routing.versions import RoutingStore
    from llmrouter.types import RoutingVersion, Rule

__all__ = [
    "APPLY_EXAMPLE",
    "EXPLAIN_EXAMPLE",
    "LIST_EXAMPLE",
    "ROLLBACK_EXAMPLE",
    "apply",
    "explain",
    "list_rules",
    "rollback",
]

LIST_EXAMPLE = example("llmrouter rules list --json > rules.json", "llmrouter rules list --history")
APPLY_EXAMPLE = example(
    "llmrouter rules apply rules.json --dry-run", 'llmrouter rules apply rules.json --note "code to large"'
)
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
        versions = _published(loaded).history(limit)
        if as_json:
            print_json({"versions": [version_as_json(version) for version in versions]})
        else:
            print_table(("VERSION", "PUBLISHED", "BY", "RULES", "NOTE"), [_version_row(each) for each in versions])
        return
    current = _current(loaded)
    if as_json:
        print_json(version_as_json(current))
        return
    say(_title(current))
    ordered = sorted(current.rules, key=lambda rule: (-rule.priority, rule.rule_id))
    print_table(("RULE", "PRIORITY", "WEIGHT", "SENDS TO", "WHEN"), [_rule_row(rule) for rule in ordered])


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
    current = _current(loaded)
    base = next(n for n in (base_version, given.base_version, current.version) if n is not None)
    draft = _draft(current, given.rules, base, note or given.note)
    warnings = compile_rules(draft, loaded).warnings
    for text in warnings:
        warn(text)
    changes = _changes(current.rules, given.rules)
    if dry_run:
        if current.version:
            _published(loaded).compare(base)
    else:
        draft = _published(loaded).publish(given.rules, base_version=base, author=_author(), note=draft.note)
    if as_json:
        body = {"dry_run": dry_run, "current_version": current.version, "changes": changes, "warnings": warnings}
        print_json({**body, **version_as_json(draft)})
        return
    done = "would be version" if dry_run else "published version"
    say(f"{done} {draft.version}, based on {base}: {_counted(changes)}")


def rollback(
    version: Annotated[int, typer.Argument(metavar="VERSION", help="The version whose rules come back.")],
    note: Note = "",
    base_version: BaseVersion = None,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Publish an earlier version's rules again, as the next version."""
    from llmrouter.config import load
    from llmrouter.gateway.app import version_as_json
    from llmrouter.routing.rules import compile_rules

    loaded = load(config)
    store = _published(loaded)
    try:
        compile_rules(store.get(version), loaded)
    except NotFound as error:
        raise UsageError(error.message) from error
    done = store.rollback(version, base_version=base_version, author=_author(), note=note)
    if as_json:
        print_json(version_as_json(done))
    else:
        say(f"published version {done.version} with the {len(done.rules)} rules of version {version}")


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
    found = explain_request(loaded, _current(loaded), body, principal, headers=headers_of(header or []))
    if as_json:
        print_json(found)
    else:
        print_explanation(found)


def _prepare(config: Config) -> None:
    from llmrouter.gateway.build import prepare_store

    prepare_store(config)


def _published(config: Config) -> RoutingStore:
    from llmrouter.routing.versions import RoutingStore
    from llmrouter.shared_store import shared_store, store_exists

    store = shared_store(config.store)
    if not store_exists(store):
        raise UsageError(f"there is no store at {store} yet, so no version is published; `llmrouter serve` makes one")
    return RoutingStore(store)


def _current(config: Config) -> RoutingVersion:
    """The version in force; without a store, the one that the first start would publish."""
    from datetime import UTC, datetime

    from llmrouter.gateway.build import seed_rules
    from llmrouter.shared_store import shared_store, store_exists
    from llmrouter.types import RoutingVersion

    if store_exists(shared_store(config.store)):
        return _published(config).current()
    say("there is no store yet; these are the configuration's rules, which the first start publishes as version 1")
    return RoutingVersion(0, seed_rules(config), datetime.now(UTC), author="configuration")


def _draft(current: RoutingVersion, rules: tuple[Rule, ...], base: int, note: str) -> RoutingVersion:
    from dataclasses import replace
    from datetime import UTC, datetime

    return replace(
        current,
        version=current.version + 1,
        rules=rules,
        created_at=datetime.now(UTC),
        author=_author(),
        note=note,
        base_version=base,
        rolled_back_to=None,
    )


def _author() -> str:
    import getpass

    return f"cli:{getpass.getuser()}"


def _changes(old: Sequence[Rule], new: Sequence[Rule]) -> dict[str, list[str]]:
    before = {rule.rule_id: rule for rule in old}
    after = {rule.rule_id: rule for rule in new}
    return {
        "added": [rule_id for rule_id in after if rule_id not in before],
        "changed": [rule_id for rule_id in after if rule_id in before and not _same(after[rule_id], before[rule_id])],
        "removed": [rule_id for rule_id in before if rule_id not in after],
    }


def _same(one: Rule, other: Rule) -> bool:
    from dataclasses import replace

    return replace(one, match=dict(one.match)) == replace(other, match=dict(other.match))


def _counted(changes: dict[str, list[str]]) -> str:
    parts = [f"{what} {', '.join(ids)}" for what, ids in changes.items() if ids]
    return "; ".join(parts) or "no rule changes"


def _title(version: RoutingVersion) -> str:
    note = f" ({version.note})" if version.note else ""
    return f"routing version {version.version} of {version.created_at:%Y-%m-%d %H:%M} UTC by {version.author}{note}"


def _version_row(version: RoutingVersion) -> tuple[str, ...]:
    note = version.note
    if version.rolled_back_to is not None:
        note = f"back to {version.rolled_back_to}{f': {note}' if note else ''}"
    when = f"{version.created_at:%Y-%m-%d %H:%M:%S}"
    return str(version.version), when, version.author, str(len(version.rules)), note


def _rule_row(rule: Rule) -> tuple[str, ...]:
    import json

    when: Any = dict(rule.match)
    goal = rule.model_id or f"role {rule.tier_role}"
    condition = json.dumps(when, ensure_ascii=False) if when else "always"
    return rule.rule_id, str(rule.priority), f"{rule.weight:g}", goal, condition
