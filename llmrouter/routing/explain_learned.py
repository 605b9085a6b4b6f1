"""Why a learned tier sends a request where it does: the rules' verdicts, then what its policy saw and decided."""

from __future__ import annotations

import dataclasses

from llmrouter.protocols import PlanInput
from llmrouter.routing.ask import read_ask
from llmrouter.routing.cascade import CascadePlan
from llmrouter.routing.explain import Consideration, Explanation, explain, links
from llmrouter.routing.learned import LearnedStrategy

__all__ = ["explain_learned"]


def explain_learned(strategy: LearnedStrategy, given: PlanInput) -> Explanation:
    """Explain what `strategy.plan(given)` decides for a conversation that it has not seen yet; raises as `plan` does.

    It plans, so it wants a strategy of its own, not one that serves.
    """
    by_rules = explain(strategy.rules, given)
    plan = strategy.plan(given)
    if not isinstance(plan, CascadePlan):
        return by_rules
    chain = links(plan.chain)
    return dataclasses.replace(
        by_rules,
        role=chain[0].role,
        model_id=chain[0].model_id,
        reason=plan.decision.reason,
        chain=chain,
        max_attempts=plan.bound().attempts,
        learned=_considered(strategy, given),
    )


def _considered(strategy: LearnedStrategy, given: PlanInput) -> Consideration:
    considered = strategy.consider(given)
    prediction, offers, move = considered.prediction, considered.offers, considered.move
    return Consideration(
        quality={role: round(score, 4) for role, score in prediction.quality.items()},
        novelty=round(prediction.novelty, 4),
        kind=offers.kind,
        checks=tuple(sorted(offers.checks)),
        peers=offers.peers,
        sees="the beginning of a stream" if considered.held else "whole answers",
        action=move.action,
        check=move.check if move.action == "check" else "none",
        score=move.score,
        reason=move.reason,
        because=tuple(strategy.predictor.explain(read_ask(given.request))),
    )
