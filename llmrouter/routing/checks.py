"""Faults of well-formed rules: names that don't exist are refused, rules that cannot win are warned of.

A warning "can never win" is never wrong about the rules as they are; a rule that a cleverer proof would find dead may
pass unnoticed.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmrouter.config import Config, ModelConfig
from llmrouter.routing.conditions import names_of
from llmrouter.routing.intent import INTENTS
from llmrouter.routing.problems import Problem, did_you_mean
from llmrouter.types import Rule

__all__ = ["check_reach", "check_references"]

_ROLES = ("small", "large", "frontier")
_MOST_BYTES_PER_TOKEN = 8.0
"""The capability filter turns away only what cannot fit a window even at this many bytes a token."""


def check_references(rule: Rule, at: str, config: Config) -> list[Problem]:
    """Everything a rule names must exist in the configuration, and its goal in a tier that it can reach."""
    problems = [
        Problem(f"{at}.match.{key}", f"no {key} {name!r} in the configuration{did_you_mean(name, known)}")
        for key, known in (("tenant", config.tenants), ("tier", config.tiers))
        for name in names_of(rule.match.get(key))
        if name not in known
    ]
    if not (0 < rule.weight < math.inf):
        problems.append(Problem(f"{at}.weight", f"must be a number above 0, not {rule.weight}"))
    if (rule.model_id is None) == (rule.tier_role is None):
        return [*problems, Problem(at, "give exactly one of model_id, tier_role")]
    if rule.model_id is not None and rule.model_id not in config.models:
        wrong = f"no model {rule.model_id!r} in the configuration{did_you_mean(rule.model_id, config.models)}"
        return [*problems, Problem(f"{at}.model_id", wrong)]
    if rule.tier_role is not None and rule.tier_role not in _ROLES:
        return [
            *problems,
            Problem(f"{at}.tier_role", f"no role {rule.tier_role!r}{did_you_mean(rule.tier_role, _ROLES)}"),
        ]
    if not problems and not _goals(rule, config):
        problems.append(_unreachable(rule, at))
    return problems


def check_reach(rules: Sequence[Rule], config: Config) -> list[str]:
    """Warnings for rules that can never win, never hold, or probably do something else than was meant."""
    warnings: list[str] = []
    for index, rule in enumerate(rules):
        above = [other for other in rules if other.priority > rule.priority]
        for text in (
            *_missing_roles(rule, config),
            *_contradictions(rule, config),
            *_shadowed(rule, above, config),
            *_shared_by_surprise(rule, rules),
            *_odd_intents(rule),
        ):
            warnings.append(f"rules[{index}] {rule.rule_id!r} {text}")  # noqa: PERF401 - reads as what it does
    return warnings


def _goals(rule: Rule, config: Config) -> dict[str, str]:
    """Tier to model id, for the tiers in which the rule can send somewhere."""
    goals: dict[str, str] = {}
    for tier_id in names_of(rule.match.get("tier")) or config.tiers:
        roles = config.tiers[tier_id].roles
        if rule.tier_role in roles:
            goals[tier_id] = roles[rule.tier_role]
        elif rule.model_id in roles.values():
            goals[tier_id] = rule.model_id or ""
    return goals


def _unreachable(rule: Rule, at: str) -> Problem:
    tiers = names_of(rule.match.get("tier"))
    where = f"tier {' or '.join(map(repr, tiers))}" if tiers else "any tier"
    if rule.tier_role is not None:
        return Problem(f"{at}.tier_role", f"{where} has no {rule.tier_role} model")
    return Problem(
        f"{at}.model_id", f"{rule.model_id!r} plays no role in {where}; add it to a tier of the configuration"
    )


def _missing_roles(rule: Rule, config: Config) -> Iterable[str]:
    goals = _goals(rule, config)
    for tier_id in names_of(rule.match.get("tier")):
        if tier_id not in goals:
            yield f"never holds in tier {tier_id!r}, which has no {rule.tier_role or repr(rule.model_id)}"


def _contradictions(rule: Rule, config: Config) -> Iterable[str]:
    """Conditions that only requests meet which the capability filter keeps from the rule's models."""
    models = set(_goals(rule, config).values())
    lacking = {
        model_id: set(names_of(rule.match.get("needs"))) - config.capabilities_of(model_id) for model_id in models
    }
    if all(lacking.values()):
        names = "; ".join(f"{model_id} lacks {', '.join(sorted(names))}" for model_id, names in sorted(lacking.items()))
        yield f"never holds: it asks for requests that its model cannot take ({names})"
    low = rule.match.get("input_tokens", {}).get("min", 0)
    surely = low * min(model.bytes_per_token for model in config.models.values()) / _MOST_BYTES_PER_TOKEN
    windows = {model_id: _window(config.models[model_id]) for model_id in models}
    if all(window < surely for window in windows.values()):
        names = ", ".join(f"{model_id} {window:.0f}" for model_id, window in sorted(windows.items()))
        yield f"never holds: input_tokens starts at {low}, far past the context window of its model ({names})"


def _shadowed(rule: Rule, above: Sequence[Rule], config: Config) -> Iterable[str]:
    for other in above:
        if _covers(other.match, rule.match) and _takes_all(other, rule, config):
            yield f"can never win: {other.rule_id!r} has a higher priority and holds whenever it does"
            return


def _shared_by_surprise(rule: Rule, rules: Sequence[Rule]) -> Iterable[str]:
    if not rule.match:
        return
    for other in rules:
        if other.priority == rule.priority and not other.match:
            yield (
                f"gets only its share by weight, because {other.rule_id!r} has the same priority and no conditions; "
                "give it a higher priority if it should always win"
            )
            return


def _odd_intents(rule: Rule) -> Iterable[str]:
    for name in names_of(rule.match.get("intent")):
        close = difflib.get_close_matches(name, INTENTS, n=1, cutoff=0.75)
        if name not in INTENTS and close:
            yield f"asks for the intent {name!r}, which only clients can send; the built-in one is {close[0]!r}"


def _takes_all(upper: Rule, lower: Rule, config: Config) -> bool:
    """Whether wherever `lower` can send, `upper` can too, and its model takes every request that the other's takes."""
    theirs = _goals(upper, config)
    return all(
        tier_id in theirs and _at_least(config, theirs[tier_id], model_id)
        for tier_id, model_id in _goals(lower, config).items()
    )


def _at_least(config: Config, able: str, other: str) -> bool:
    if able == other:
        return True
    one, two = config.models[able], config.models[other]
    return (
        config.capabilities_of(able) >= config.capabilities_of(other)
        and _window(one) >= _window(two)
        and one.bytes_per_token >= two.bytes_per_token
        and (one.max_output_tokens or math.inf) >= (two.max_output_tokens or math.inf)
    )


def _window(model: ModelConfig) -> float:
    return model.context_window if model.context_window is not None else math.inf


def _covers(general: Mapping[str, Any], special: Mapping[str, Any]) -> bool:
    """Whether every request that meets `special` also meets `general`."""
    return all(key in special and _implied(key, wanted, special[key]) for key, wanted in general.items())


def _implied(key: str, wanted: Any, given: Any) -> bool:
    if key in ("intent", "tenant", "tier"):
        return set(names_of(given)) <= set(names_of(wanted))
    if key == "needs":
        return set(names_of(given)) >= set(names_of(wanted))
    if key == "tag":
        return all(name in given and set(names_of(given[name])) <= set(names_of(wanted[name])) for name in wanted)
    if key == "input_tokens":
        low, high = wanted.get("min", 0), wanted.get("max", math.inf)
        return bool(low <= given.get("min", 0) and given.get("max", math.inf) <= high)
    return bool(wanted == given)
