"""Routing versions and their differences as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llmrouter.types import RoutingVersion, Rule

__all__ = ["changes_of", "counted", "learned", "rule_row", "title", "version_row"]


def changes_of(old: Sequence[Rule], new: Sequence[Rule]) -> dict[str, list[str]]:
    """The ids of rules that were `added`, `changed` and `removed`."""
    before = {rule.rule_id: rule for rule in old}
    after = {rule.rule_id: rule for rule in new}
    return {
        "added": [rule_id for rule_id in after if rule_id not in before],
        "changed": [rule_id for rule_id in after if rule_id in before and not _same(after[rule_id], before[rule_id])],
        "removed": [rule_id for rule_id in before if rule_id not in after],
    }


def counted(changes: Mapping[str, Sequence[str]]) -> str:
    """What `changes_of` found, in one line."""
    parts = [f"{what} {', '.join(ids)}" for what, ids in changes.items() if ids]
    return "; ".join(parts) or "no rule changes"


def title(version: RoutingVersion) -> str:
    """Which version it is, of when, by whom and why."""
    note = f" ({version.note})" if version.note else ""
    return f"routing version {version.version} of {version.created_at:%Y-%m-%d %H:%M} UTC by {version.author}{note}"


def version_row(version: RoutingVersion) -> tuple[str, ...]:
    """Of a table with number, time, author, rules, artefact and note."""
    note = version.note
    if version.rolled_back_to is not None:
        note = f"back to {version.rolled_back_to}{f': {note}' if note else ''}"
    when = f"{version.created_at:%Y-%m-%d %H:%M:%S}"
    return str(version.version), when, version.author, str(len(version.rules)), learned(version), note


def learned(version: RoutingVersion) -> str:
    """What learned tiers go by, shortly: `0a1b2c3d4e5f at 3`, or `generic`."""
    artefact = "generic" if version.artefact_digest is None else version.artefact_digest[:12]
    return artefact if version.point is None else f"{artefact} at {version.point}"


def rule_row(rule: Rule) -> tuple[str, ...]:
    """Of a table with id, priority, weight, goal and condition."""
    import json

    when: Any = dict(rule.match)
    goal = rule.model_id or f"role {rule.tier_role}"
    condition = json.dumps(when, ensure_ascii=False) if when else "always"
    return rule.rule_id, str(rule.priority), f"{rule.weight:g}", goal, condition


def _same(one: Rule, other: Rule) -> bool:
    from dataclasses import replace

    return replace(one, match=dict(one.match)) == replace(other, match=dict(other.match))
