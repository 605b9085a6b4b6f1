"""`llmrouter rules`: routing versions in the store; a running gateway takes a new one up within a second."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmrouter.cli.options import ConfigPath, Json, example
from llmrouter.cli.output import print_json, print_table, say, warn
from llmrouter.errors import NotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llmrouter.cli.rules_file import RulesFile
    from llmrouter.config import Config
    from llmrouter.gateway.artefacts import InForce
    from llmrouter.routing.versions import RoutingStore
    from llmrouter.types import RoutingVersion, Rule

__all__ = [
    "APPLY_EXAMPLE",
    "EXPLAIN_EXAMPLE",
    "LIST_EXAMPLE",
    "ROLLBACK_EXAMPLE",
    "apply",
    "author",
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
    from llmrouter.cli.rules_artefact import artefact_lines
    from llmrouter.config import load
    from llmrouter.gateway.app import version_as_json

    loaded = load(config)
    if history:
        versions = _published(loaded).history(limit)
        if as_json:
            print_json({"versions": [version_as_json(version) for version in versions]})
        else:
            head = ("VERSION", "PUBLISHED", "BY", "RULES", "ARTEFACT", "NOTE")
            print_table(head, [_version_row(each) for each in versions])
        return
    current = _current(loaded)
    known = _with_artefact(loaded, current)
    if as_json:
        print_json(known)
        return
    say(_title(current))
    if known["artefact"] is not None or any(tier.is_learned for tier in loaded.tiers.values()):
        for line in artefact_lines(known):
            say(line)
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
    draft = _draft(current, given, base, note or given.note)
    warnings = compile_rules(draft, loaded).warnings
    _check_artefact(loaded, draft)
    for text in warnings:
        warn(text)
    changes = _changes(current.rules, given.rules)
    if dry_run:
        if current.version:
            _published(loaded).compare(base)
    else:
        draft = _published(loaded).publish(
            given.rules, base_version=base, author=author(), note=draft.note, learned=given.learned
        )
    if as_json:
        body = {"dry_run": dry_run, "current_version": current.version, "changes": changes, "warnings": warnings}
        print_json({**body, **version_as_json(draft)})
        return
    done = "would be version" if dry_run else "published version"
    say(f"{done} {draft.version}, based on {base}: {_counted(changes)}")


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
    store = _published(loaded)
    try:
        old = store.get(version)
        compile_rules(old, loaded)
        _check_artefact(loaded, old)
    except NotFound as error:
        raise UsageError(error.message) from error
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
    now = _current(loaded)
    found = explain_request(
        loaded, now, body, principal, headers=headers_of(header or []), in_force=_in_force(loaded, now)
    )
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


def _with_artefact(config: Config, version: RoutingVersion) -> dict[str, Any]:
    """A version as JSON, with what is known of its artefact where it is published."""
    from llmrouter.gateway.app import routing_as_json, version_as_json
    from llmrouter.gateway.publishing import artefact_store

    if not version.version:
        return version_as_json(version)
    return routing_as_json(version, _published(config), artefact_store(config))


def _in_force(config: Config, version: RoutingVersion) -> Mapping[str, InForce]:
    """What learned tiers go by under a version."""
    from llmrouter.gateway.publishing import artefact_shelf

    if not any(tier.is_learned for tier in config.tiers.values()):
        return {}
    fallbacks = _published(config).fallbacks(version.version) if version.version else {}
    return artefact_shelf(config).in_force(config, version, fallbacks)


def _check_artefact(config: Config, version: RoutingVersion) -> None:
    """Raises `RouterError` unless learned tiers could go by a version's artefact."""
    from dataclasses import replace

    _in_force(config, replace(version, version=0))


def _draft(current: RoutingVersion, given: RulesFile, base: int, note: str) -> RoutingVersion:
    from dataclasses import replace
    from datetime import UTC, datetime

    learned = given.learned
    return replace(
        current,
        version=current.version + 1,
        rules=given.rules,
        artefact_digest=current.artefact_digest if learned is None else learned.digest,
        point=current.point if learned is None else learned.point,
        created_at=datetime.now(UTC),
        author=author(),
        note=note,
        base_version=base,
        rolled_back_to=None,
    )


def author() -> str:
    """Who publishes, for the history."""
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
    artefact = "" if version.artefact_digest is None else version.artefact_digest[:12]
    point = "" if version.point is None else f" at {version.point}"
    return str(version.version), when, version.author, str(len(version.rules)), f"{artefact or 'generic'}{point}", note


def _rule_row(rule: Rule) -> tuple[str, ...]:
    import json

    when: Any = dict(rule.match)
    goal = rule.model_id or f"role {rule.tier_role}"
    condition = json.dumps(when, ensure_ascii=False) if when else "always"
    return rule.rule_id, str(rule.priority), f"{rule.weight:g}", goal, condition
