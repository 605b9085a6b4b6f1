"""Reads a file of routing rules: TOML or JSON, the body of the admin API, or what `rules list --json` printed."""

from __future__ import annotations

import difflib
import json
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from llmrouter.config import RuleConfig
from llmrouter.errors import UsageError
from llmrouter.routing.versions import Learned
from llmrouter.types import Rule

__all__ = ["RulesFile", "read_rules_file"]

_PUBLISHED = ("created_at", "author", "rolled_back_to")
_SHOWN = ("artefact_about", "fallbacks")
_KEYS = ("rules", "base_version", "note", "artefact", "version", *_PUBLISHED, *_SHOWN)
_RULES = TypeAdapter(tuple[RuleConfig, ...])


@dataclass(frozen=True, slots=True)
class RulesFile:
    """The rules and what the file says of their origin."""

    rules: tuple[Rule, ...]
    base_version: int | None
    """The version that these rules were made from, if the file knows."""
    note: str
    learned: Learned | None = None
    """What learned tiers shall go by, if the file says so."""


def read_rules_file(path: Path) -> RulesFile:
    """Read rules from a file, or from standard input for `-`.

    Raises:
        UsageError: it cannot be read, is neither TOML nor JSON, or a rule is malformed; names every key at fault.
    """
    name = "standard input" if str(path) == "-" else str(path)
    document = _parse(_text(path, name), name)
    if isinstance(document, list):
        document = {"rules": document}
    elif isinstance(document, dict) and isinstance(document.get("routing"), dict):
        # A whole configuration: its rules count, and so do the examples of the documentation, which are parts of one.
        document = {"rules": document["routing"].get("rules", [])}
    if not isinstance(document, dict) or "rules" not in document:
        raise UsageError(f"{name}: holds no rules; TOML rules begin with [[rules]], JSON with a key `rules` or a list")
    _refuse_unknown(document, name)
    rules, learned = _rules(document["rules"], name), _learned(document.get("artefact"), name)
    if "version" in document:
        # An exported version: its number is what these rules were made from, its note tells of an older change.
        return RulesFile(rules, _version(document, "version", name), "", learned)
    return RulesFile(rules, _version(document, "base_version", name), str(document.get("note", "")), learned)


def _text(path: Path, name: str) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        raise UsageError(f"{name}: cannot be read: {why or error}") from error


def _parse(text: str, name: str) -> Any:
    """JSON where the text begins as JSON does, else TOML: `[[rules]]` is not JSON."""
    start = text.lstrip()
    as_json = name.endswith(".json") or start.startswith("{") or (start.startswith("[") and start[1:2] != "[")
    try:
        return json.loads(text) if as_json and not name.endswith(".toml") else tomllib.loads(text)
    except ValueError as error:
        raise UsageError(f"{name}: neither JSON nor TOML: {error}") from error


def _refuse_unknown(document: dict[str, Any], name: str) -> None:
    for key in document:
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "known: rules, base_version, note, artefact"
            raise UsageError(f"{name}: unknown key {key!r}; {hint}")


def _rules(given: Any, name: str) -> tuple[Rule, ...]:
    try:
        checked: Sequence[RuleConfig] = _RULES.validate_python(given)
    except ValidationError as error:
        lines = [f"{name}: {_where(item['loc'])}: {_message(item)}" for item in error.errors()]
        raise UsageError("\n".join(lines)) from None
    return tuple(Rule(**rule.model_dump()) for rule in checked)


def _where(location: tuple[int | str, ...]) -> str:
    return "rules" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def _message(item: Any) -> str:
    if item["type"] == "extra_forbidden":
        close = difflib.get_close_matches(str(item["loc"][-1]), list(RuleConfig.model_fields), n=1)
        return f"unknown key{f'; did you mean {close[0]!r}?' if close else ''}"
    return str(item["msg"]).removeprefix("Value error, ")


def _learned(given: Any, name: str) -> Learned | None:
    if given is None:
        return None
    if not isinstance(given, dict) or given.keys() - {"digest", "point"} or "digest" not in given:
        raise UsageError(f'{name}: artefact must be {{"digest": "…" or null, "point": a number or null}}')
    digest = given["digest"]
    if digest is not None and not isinstance(digest, str):
        raise UsageError(f"{name}: artefact.digest must be text, or null for the generic one")
    return Learned(digest, _version(given, "point", f"{name}: artefact"))


def _version(document: dict[str, Any], key: str, name: str) -> int | None:
    value = document.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise UsageError(f"{name}: {key} must be a whole number")
    return value
