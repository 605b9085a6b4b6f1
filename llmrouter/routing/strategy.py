"""The `rules` strategy: a rule or the tier's default chooses the first model, the tier's fallback order the rest."""

from __future__ import annotations

from collections.abc import Sequence

from llmrouter.config import Config, TierConfig
from llmrouter.errors import UnsupportedParameter
from llmrouter.protocols import Candidate, PlanInput
from llmrouter.routing.plan import FallbackPlan
from llmrouter.routing.rules import Choice, RuleSet
from llmrouter.types import Decision

__all__ = ["RulesStrategy", "build_rules_strategy", "default_order", "fallback_chain", "input_tokens"]

_QUALITY = ("small", "large", "frontier")


class RulesStrategy:
    """Plans for one tier by one version of the rules; implements `protocols.Strategy`."""

    def __init__(self, tier_id: str, tier: TierConfig, rule_set: RuleSet) -> None:
        self.tier_id = tier_id
        self.tier = tier
        self.rule_set = rule_set
        self._default_order = default_order(tier)

    def plan(self, given: PlanInput) -> FallbackPlan:
        choice = self.choose(given)
        decision = Decision("rules", choice.reason, choice.rule_id, self.rule_set.version)
        return FallbackPlan(
            decision,
            fallback_chain(self.tier, given.candidates, choice.role),
            retries=self.tier.retries,
            max_wait_s=self.tier.max_wait_s,
            deadline_s=given.deadline_s,
        )

    def choose(self, given: PlanInput) -> Choice:
        """The model that the request starts with; raises as `plan` does."""
        if all(candidate.is_peer for candidate in given.candidates):
            raise UnsupportedParameter(f"no model of tier {self.tier_id!r} can take this request")
        if given.request.role is not None:
            return self._wished(given.request.role, given.candidates)
        return self.rule_set.choose(
            given.request,
            tenant_id=given.principal.tenant_id,
            tier_id=self.tier_id,
            sticky_key=self.sticky_key(given),
            default_order=self._default_order,
            candidates=given.candidates,
            input_tokens=input_tokens(given),
            now=given.now,
        )

    def _wished(self, role: str, candidates: Sequence[Candidate]) -> Choice:
        for candidate in candidates:
            if candidate.role == role:
                return Choice(None, role, candidate.model_id, f"override:{role}")
        have = ", ".join(each.role for each in candidates if not each.is_peer)
        raise UnsupportedParameter(
            f"tier {self.tier_id!r} has no {role} model that can take this request; it has {have}",
            param="x-llmrouter-role",
        )

    def sticky_key(self, given: PlanInput) -> str:
        """What a share by weight sticks to; a request without a conversation sticks to its key."""
        by_conversation = self.tier.sticky == "conversation" and given.request.conversation
        return given.request.conversation if by_conversation else given.principal.key_id


def build_rules_strategy(tier_id: str, config: Config, rule_set: RuleSet) -> RulesStrategy:
    """The strategy of a tier with `strategy = "rules"`."""
    return RulesStrategy(tier_id, config.tiers[tier_id], rule_set)


def default_order(tier: TierConfig) -> tuple[str, ...]:
    """The tier's roles as they answer when no rule wins: the default, then the later ones, then the nearest earlier.

    The others matter only when the default's model cannot take a request; later in fallback order means better.
    """
    order = list(tier.roles)
    at = order.index(tier.default_role)
    return (*order[at:], *reversed(order[:at]))


def input_tokens(given: PlanInput) -> int:
    """The count that rules compare with: the largest bound of the models that can take the request."""
    return max(candidate.input_tokens for candidate in given.candidates if not candidate.is_peer)


def fallback_chain(tier: TierConfig, candidates: Sequence[Candidate], role: str) -> tuple[Candidate, ...]:
    """The chosen role's model and then those that may replace it, each model once.

    Fallback goes on in the tier's order behind the chosen role. A role that the order does not name is followed by the
    named ones of better quality, small → large → frontier.
    """
    order: Sequence[str] = tier.fallback
    behind = order[order.index(role) + 1 :] if role in order else [r for r in order if _better(r, role)]
    chain: dict[str, Candidate] = {}
    for each in (role, *behind):
        for candidate in candidates:
            if candidate.role == each:
                chain.setdefault(candidate.model_id, candidate)
    return tuple(chain.values())


def _better(role: str, than: str) -> bool:
    return _QUALITY.index(role) > _QUALITY.index(than)
