"""What `rules explain` is asked about, and its answer as text."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import typer

from llmrouter.cli.output import print_table, say
from llmrouter.config import Config
from llmrouter.database import database_path
from llmrouter.errors import UsageError
from llmrouter.shared_store import shared_store
from llmrouter.tenancy.keys import KeyStore, load_pepper, principal_of
from llmrouter.types import Principal

__all__ = ["asker", "body_of", "headers_of", "print_explanation"]

_STANDING = {"won": "wins", "outdrawn": "holds, lost the draw", "outranked": "holds, outranked", "not_held": "no"}


def body_of(config: Config, *, tier: str | None, prompt: str | None, request: Path | None) -> dict[str, Any]:
    """The chat completions body to explain, for the named tier, else the file's own, else the only one.

    Raises:
        UsageError: not exactly one of `prompt` and `request`, an unreadable file, or no tier.
    """
    if (prompt is None) == (request is None):
        raise UsageError("give either --prompt TEXT or --request FILE")
    plain: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
    body = plain if request is None else _read(request)
    if tier is not None:
        body["model"] = tier
    elif "model" not in body:
        if len(config.tiers) > 1:
            raise UsageError(f"name a tier with --tier; known: {', '.join(config.tiers)}")
        body["model"] = next(iter(config.tiers))
    return body


def _read(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path}: not JSON: {error}") from error
    if not isinstance(body, dict):
        raise UsageError(f"{path}: must be a JSON object, the body of a chat completions request")
    return body


def asker(config: Config, *, tenant: str | None, key_id: str | None) -> Principal:
    """Who asks: the holder of a key, or somebody of a tenant who may use every tier.

    Raises:
        UsageError: both are given, or there is no such key or tenant.
    """
    if key_id is not None:
        if tenant is not None:
            raise UsageError("give --tenant or --key-id, not both; a key belongs to its tenant")
        keys = KeyStore(shared_store(config.store), load_pepper(config.store, database_path(config.store.url)))
        info = next((info for info in keys.list() if info.key_id == key_id), None)
        if info is None:
            raise UsageError(f"no key {key_id!r}; `llmrouter keys list` shows all")
        return principal_of(info)
    if tenant is None:
        tenant = next(iter(config.tenants))
        say(f"asking as tenant {tenant}")
    elif tenant not in config.tenants:
        raise UsageError(f"no tenant {tenant!r} in the configuration; known: {', '.join(config.tenants)}")
    return Principal(tenant, "explain")


def headers_of(given: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` pairs apart; raises `UsageError`."""
    pairs = [text.partition("=") for text in given]
    for text, (name, separator, _) in zip(given, pairs, strict=True):
        if not separator or not name:
            raise UsageError(f"--header {text!r} is not NAME=VALUE")
    return {name: value for name, _, value in pairs}


def print_explanation(found: Mapping[str, Any]) -> None:
    """The choice, the chain of fallbacks, every rule with what kept it from holding, then the limits it counts for."""
    if not found["allowed"]:
        say(f"this key may not use tier {found['tier']}: a real request gets 403")
    chain = " → ".join(f"{link['model_id']} ({link['role']})" for link in found["chain"])
    facts = [
        ("tier", found["tier"]),
        ("goes to", f"{found['model_id']} ({found['role']})"),
        ("because", found["reason"]),
        ("chain", chain),
        ("intent", found["intent"]),
        ("input tokens", f"at most {found['input_tokens']}"),
        ("calls", f"at most {found['max_attempts']}"),
        ("routing version", str(found["routing_version"])),
        ("latency class", found["latency_class"]),
        ("reserves", f"{found['reserves']['tokens']} tokens and ${Decimal(found['reserves']['cost_usd']):.6f} at most"),
        ("spent budget", f"goes to tier {found['degrade_to']}" if found["degrade_to"] else "429"),
    ]
    facts += _learned_facts(found)
    facts += [("cannot take it", f"{model_id} ({role})") for role, model_id in found["filtered_out"].items()]
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        typer.echo(f"{name:{width}}  {value}")
    because = (found.get("learned") or {}).get("because", ())
    if because:
        typer.echo("")
        typer.echo("what in the prompt moved the prediction, the strongest first:")
        for line in because:
            typer.echo(f"  {line}")
    if found["rules"]:
        typer.echo("")
        rows = [
            (
                rule["rule_id"],
                str(rule["priority"]),
                f"{rule['weight']:g}",
                rule["goal"],
                _STANDING[rule["standing"]],
                "; ".join(rule["why_not"]),
            )
            for rule in found["rules"]
        ]
        print_table(("RULE", "PRIORITY", "WEIGHT", "SENDS TO", "HOLDS", "WHY NOT"), rows)
    if found["limits"]:
        typer.echo("")
        print_table(("LIMIT OF", "KIND", "MOST", "BURST"), [_limit_row(limit) for limit in found["limits"]])


def _learned_facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a learned tier goes by, predicts and does."""
    taken, learned = found.get("artefact"), found.get("learned")
    facts = []
    if taken is not None:
        at = "its chosen operating point" if taken["point"] is None else f"operating point {taken['point']}"
        facts.append(("goes by", f"{taken['name']} at {at}: {taken['promise']}"))
        if taken["fallback"] is not None:
            facts.append(("fell back", taken["fallback"]))
    if learned is None:
        return facts
    quality = ", ".join(f"{role} {score:.2f}" for role, score in learned["quality"].items())
    checks = ", ".join(learned["checks"]) or "none"
    then = "no check" if learned["check"] == "none" else f"then {learned['check']} decides"
    return [
        *facts,
        ("predicted", f"score of the answer: {quality}"),
        ("novelty", f"{learned['novelty']:.1%} of the prompts it learned from were more usual than this one"),
        ("may check", f"{learned['sees']}, compared as {learned['kind']}, by {checks}; {_peers(learned['peers'])}"),
        ("does", f"{found['role']} first, {then}"),
    ]


def _peers(count: int) -> str:
    return f"up to {count} more answer{'s' if count > 1 else ''} to compare with" if count else "nobody else is asked"


def _limit_row(limit: Mapping[str, Any]) -> tuple[str, ...]:
    dollars = "$" if limit["kind"].startswith("usd") else ""
    return limit["whose"], limit["kind"], f"{dollars}{limit['limit']}", str(limit["burst"] or "-")
