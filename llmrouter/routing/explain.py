"""Why a request goes where it goes: every rule's verdict, the choice and the fallback chain.

It asks the same compiled rules that serving asks, and quotes no prompt, so its output may be kept and shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from llmrouter.protocols import Candidate, PlanInput
from llmrouter.routing.match import Facts
from llmrouter.routing.rules import Able, CompiledRule
from llmrouter.routing.strategy import RulesStrategy, fallback_chain, input_tokens

__all__ = ["ChainLink", "Consideration", "Explanation", "Verdict", "explain", "links"]

Standing = Literal["won", "outdrawn", "outranked", "not_held"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one rule."""

    rule_id: str
    priority: int
    weight: float
    goal: str
    """The model id or role that the rule sends to."""
    held: bool
    standing: Standing
    """`won`; `outdrawn` by a rule of equal priority; `outranked` by a higher priority; or `not_held`."""
    why_not: tuple[str, ...]
    """Each condition that failed; empty when the rule held."""


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One model of the fallback chain, in the order of trying."""

    role: str
    model_id: str
    replicas: int
    input_tokens: int
    context_window: int | None


@dataclass(frozen=True, slots=True)
class Consideration:
    """What a learned policy makes of a request before any call."""

    quality: Mapping[str, float]
    """Role to the predicted score of its model's answer, from 0 to 1."""
    novelty: float
    """The share of the training prompts that were less unlike the others than this one."""
    kind: str
    """How two answers would be compared."""
    checks: tuple[str, ...]
    """Those that could be run here."""
    peers: int
    sees: Literal["whole answers", "the beginning of a stream"]
    action: Literal["route", "check", "accept"]
    check: str
    """Which check follows the first answer; `none` for a direct route."""
    score: float | None
    reason: str
    because: tuple[str, ...]
    """What in the prompt moved the prediction, in words, the strongest first."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole routing decision for one request and principal."""

    tier_id: str
    routing_version: int
    intent: str
    input_tokens: int
    sticky_by: str
    """`conversation` or `key`: what shares by weight stick to."""
    rules: tuple[Verdict, ...]
    """Highest priority first, as they are asked."""
    rule_id: str | None
    role: str
    model_id: str
    reason: str
    filtered_out: Mapping[str, str]
    """Role to model id of the tier's models that cannot take the request."""
    chain: tuple[ChainLink, ...]
    max_attempts: int
    learned: Consideration | None = None
    """Of a learned tier, where its policy decides: no rule won and the request insists on no role."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def explain(strategy: RulesStrategy, given: PlanInput) -> Explanation:
    """Explain what `strategy.plan(given)` decides; raises as `plan` does."""
    plan = strategy.plan(given)
    choice = strategy.choose(given)
    able = Able(given.candidates)
    facts = strategy.rule_set.facts(
        given.request,
        tenant_id=given.principal.tenant_id,
        tier_id=strategy.tier_id,
        input_tokens=input_tokens(given),
        now=given.now,
    )
    return Explanation(
        tier_id=strategy.tier_id,
        routing_version=strategy.rule_set.version,
        intent=given.request.intent,
        input_tokens=facts.input_tokens,
        sticky_by="conversation" if strategy.tier.sticky == "conversation" and given.request.conversation else "key",
        rules=_verdicts(strategy, facts, able, choice.rule_id),
        rule_id=choice.rule_id,
        role=choice.role,
        model_id=choice.model_id,
        reason=choice.reason,
        filtered_out={role: model for role, model in strategy.tier.roles.items() if model not in able.by_model},
        chain=links(fallback_chain(strategy.tier, given.candidates, choice.role)),
        max_attempts=plan.bound().attempts,
    )


def links(chain: Iterable[Candidate]) -> tuple[ChainLink, ...]:
    return tuple(map(_link, chain))


def _verdicts(strategy: RulesStrategy, facts: Facts, able: Able, winner: str | None) -> tuple[Verdict, ...]:
    rules = strategy.rule_set.rules
    won = next((each.rule.priority for each in rules if each.rule.rule_id == winner), None)
    return tuple(_verdict(each, strategy, facts, able, winner, won) for each in rules)


def _verdict(
    each: CompiledRule, strategy: RulesStrategy, facts: Facts, able: Able, winner: str | None, won: int | None
) -> Verdict:
    rule = each.rule
    why_not = each.match.failures(facts)
    if each.goal(able) is None:
        why_not = (*why_not, _no_goal(each, strategy))
    return Verdict(
        rule_id=rule.rule_id,
        priority=rule.priority,
        weight=rule.weight,
        goal=rule.model_id or rule.tier_role or "",
        held=not why_not,
        standing=_standing(each, not why_not, winner, won),
        why_not=why_not,
    )


def _standing(each: CompiledRule, held: bool, winner: str | None, won: int | None) -> Standing:
    if not held:
        return "not_held"
    if each.rule.rule_id == winner:
        return "won"
    return "outdrawn" if each.rule.priority == won else "outranked"


def _no_goal(each: CompiledRule, strategy: RulesStrategy) -> str:
    rule, roles = each.rule, strategy.tier.roles
    goal = rule.model_id or rule.tier_role
    key = "model_id" if rule.model_id is not None else "tier_role"
    if goal in (roles.values() if rule.model_id is not None else roles):
        return f"{key}: {goal} cannot take this request (capabilities or context window)"
    return f"{key}: {goal} plays no role in tier {strategy.tier_id!r}"


def _link(candidate: Candidate) -> ChainLink:
    return ChainLink(
        candidate.role, candidate.model_id, candidate.replicas, candidate.input_tokens, candidate.context_window
    )
