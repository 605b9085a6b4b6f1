"""The rules of one routing version, compiled once and asked for every request.

The highest priority with a rule that holds wins; rules of equal priority that hold share by weight, sticky by
conversation or key; when none holds, the tier's default role answers. A rule holds when its match does and its model
can take the request: it plays a role in the tier and passed the capability filter.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import re2

from llmrouter.config import Config
from llmrouter.protocols import Candidate
from llmrouter.routing.checks import check_reach, check_references
from llmrouter.routing.conditions import compile_match, compile_pattern, pattern_of
from llmrouter.routing.match import Facts, Match
from llmrouter.routing.problems import InvalidRules, Problem
from llmrouter.routing.sticky import pick
from llmrouter.types import ChatRequest, RoutingVersion, Rule, value

__all__ = ["MAX_RULES", "Able", "Choice", "CompiledRule", "RuleSet", "compile_rules"]

MAX_RULES = 1000


@value
class Choice:
    """Which model a request starts with, and why."""

    rule_id: str | None
    """The rule that won; None when the tier's default answers."""
    role: str
    model_id: str
    reason: str
    """`rule:<id>`, `override:<role>`, `default:<role>`, or `capable:<role>` when the default model
    cannot take the request."""


class Able:
    """The models of a tier's roles that can take one request; peers are no one's to choose."""

    __slots__ = ("by_model", "by_role")

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self.by_role: dict[str, Candidate] = {}
        self.by_model: dict[str, Candidate] = {}
        for candidate in candidates:
            if not candidate.is_peer:
                self.by_role.setdefault(candidate.role, candidate)
                self.by_model.setdefault(candidate.model_id, candidate)


@value
class CompiledRule:
    """A rule with its compiled match."""

    rule: Rule
    match: Match

    def goal(self, able: Able) -> Candidate | None:
        """The model it sends to, or None when that model plays no role here or cannot take the request."""
        if self.rule.tier_role is not None:
            return able.by_role.get(self.rule.tier_role)
        return able.by_model.get(self.rule.model_id or "")


class RuleSet:
    """The compiled rules of one version; immutable, safe to share between requests and threads."""

    def __init__(self, version: int, rules: Iterable[CompiledRule], warnings: Iterable[str] = ()) -> None:
        self.version = version
        self.rules = tuple(sorted(rules, key=lambda each: (-each.rule.priority, each.rule.rule_id)))
        """Highest priority first."""
        self.warnings = tuple(warnings)
        """What is allowed but probably not meant, one sentence each."""
        groups = itertools.groupby(self.rules, key=lambda each: each.rule.priority)
        self._groups = tuple(tuple(group) for _, group in groups)
        self._any_regex = _any_regex([each.rule for each in self.rules])

    def choose(
        self,
        request: ChatRequest,
        *,
        tenant_id: str,
        tier_id: str,
        sticky_key: str,
        default_order: Sequence[str],
        candidates: Sequence[Candidate],
        input_tokens: int,
        now: datetime,
    ) -> Choice:
        """The model that this request starts with.

        `default_order` are the tier's roles in the order in which they answer when no rule wins, its default first.
        `candidates` are the models that passed the capability filter, at least one of them in one of those roles.
        `now` knows its time zone.
        """
        able = Able(candidates)
        facts = self.facts(request, tenant_id=tenant_id, tier_id=tier_id, input_tokens=input_tokens, now=now)
        won = self.winner(facts, able, sticky_key)
        if won is None:
            return _default(default_order, able)
        rule, goal = won
        return Choice(rule.rule.rule_id, goal.role, goal.model_id, f"rule:{rule.rule.rule_id}")

    def facts(self, request: ChatRequest, *, tenant_id: str, tier_id: str, input_tokens: int, now: datetime) -> Facts:
        """What the conditions are asked about."""
        return Facts(
            request,
            tenant_id=tenant_id,
            tier_id=tier_id,
            input_tokens=input_tokens,
            now=now,
            any_regex=self._any_regex.search if self._any_regex is not None else None,
        )

    def winner(self, facts: Facts, able: Able, sticky_key: str) -> tuple[CompiledRule, Candidate] | None:
        """The rule that wins and the model it sends to."""
        for group in self._groups:
            holding = [rule for rule in group if rule.match.holds(facts)]
            if not holding:
                continue
            able_ones = [(rule, goal) for rule in holding if (goal := rule.goal(able)) is not None]
            if len(able_ones) > 1:
                chosen = pick(((rule.rule.rule_id, rule.rule.weight) for rule, _ in able_ones), sticky_key)
                return next(pair for pair in able_ones if pair[0].rule.rule_id == chosen)
            if able_ones:
                return able_ones[0]
        return None


def compile_rules(version: RoutingVersion, config: Config) -> RuleSet:
    """Check a routing version against the configuration and compile it.

    Raises:
        InvalidRules: names every problem with the path of its key.
    """
    problems: list[Problem] = []
    if len(version.rules) > MAX_RULES:
        problems.append(Problem("rules", f"at most {MAX_RULES} rules are allowed, not {len(version.rules)}"))
    compiled: list[CompiledRule] = []
    for index, rule in enumerate(version.rules[:MAX_RULES]):
        match, faults = compile_match(rule.match, f"rules[{index}].match")
        compiled.append(CompiledRule(rule, match))
        problems += faults
        if not faults:
            problems += check_references(rule, f"rules[{index}]", config)
    problems += _repeated_ids(version.rules)
    if problems:
        raise InvalidRules(problems)
    return RuleSet(version.version, compiled, check_reach(version.rules, config))


def _default(order: Sequence[str], able: Able) -> Choice:
    role = next(role for role in order if role in able.by_role)
    why = "default" if role == order[0] else "capable"
    return Choice(None, role, able.by_role[role].model_id, f"{why}:{role}")


def _repeated_ids(rules: Sequence[Rule]) -> list[Problem]:
    first: dict[str, int] = {}
    return [
        Problem(f"rules[{index}].rule_id", f"{rule.rule_id!r} is already the id of rules[{first[rule.rule_id]}]")
        for index, rule in enumerate(rules)
        if first.setdefault(rule.rule_id, index) != index
    ]


def _any_regex(rules: Sequence[Rule]) -> Any | None:
    r"""One pattern that finds something wherever any rule's regex does; None when it would not pay or not be exact.

    Scanning the text once instead of once a rule matters for long prompts. A `\Q` could swallow the seams.
    """
    given = [found for rule in rules if "regex" in rule.match and (found := pattern_of(rule.match["regex"]))]
    if len(given) < 2 or any(r"\Q" in pattern for pattern, _ in given):
        return None
    joined = "|".join(f"(?{'i' if ignore_case else ''}:{pattern})" for pattern, ignore_case in given)
    try:
        return compile_pattern(joined)
    except re2.error:  # too large together, although none is alone
        return None
