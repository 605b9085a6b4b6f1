"""Why a request would go where: the same parse, filter and strategy as when serving, without the call."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from llmrouter.config import Config
from llmrouter.errors import ConfigError, ModelNotFound
from llmrouter.gateway.admission import worst_case
from llmrouter.gateway.artefacts import InForce
from llmrouter.gateway.tiers import Tier, tier_models
from llmrouter.gateway.wire import parse
from llmrouter.pricing.book import PriceBook
from llmrouter.protocols import Plan, PlanInput, Strategy
from llmrouter.registry import LearnedParts, build_strategy
from llmrouter.routing.artefact_fit import is_generic
from llmrouter.routing.explain import Explanation, explain
from llmrouter.routing.intent import label
from llmrouter.routing.rules import compile_rules
from llmrouter.routing.strategy import RulesStrategy
from llmrouter.tenancy.limits import LimitBook, limit_as_json
from llmrouter.types import Principal, RoutingVersion

__all__ = ["explain_request"]


def explain_request(
    config: Config,
    routing: RoutingVersion,
    body: Mapping[str, Any],
    principal: Principal,
    *,
    headers: Mapping[str, str] | None = None,
    now: datetime | None = None,
    in_force: Mapping[str, InForce] | None = None,
) -> dict[str, Any]:
    """Every rule with what held and what did not, the choice, the fallback chain, the latency class, what would be
    reserved and from which limits, and what a spent budget would do; of a learned tier also what it goes by, predicts
    and decides.

    `in_force` says what learned tiers go by.

    Raises:
        RequestError, PermissionDenied: the request itself would be refused; the error is the one a client would get.
    """
    request = parse(
        "chat",
        orjson.dumps(dict(body)),
        {name.lower(): value for name, value in (headers or {}).items()},
        config.limits,
        label=lambda text, has_tools: label(text, has_tools=has_tools),
    )
    if request.model not in config.tiers:
        raise ModelNotFound(f"no model `{request.model}`; tiers: {', '.join(config.tiers)}", param="model")
    book = LimitBook(config)
    latency_class = book.class_of(principal, request)
    taken = (in_force or {}).get(request.model)
    strategy = build_strategy(
        request.model, config, compile_rules(routing, config), None if taken is None else _parts(taken, config, now)
    )
    tier = Tier(request.model, tier_models(config, request.model), strategy, clamp=config.limits.clamp_output_tokens)
    given = PlanInput(
        request=request,
        principal=principal,
        candidates=tier.candidates(request, hosted=config.classes.of(latency_class).hosted),
        now=now or datetime.now(UTC),
        deadline_s=config.server.request_timeout_s,
    )
    tenant = config.tenants.get(principal.tenant_id)
    return {
        "tier": request.model,
        "allowed": principal.may_use(request.model),
        **_explanation(strategy, given).to_dict(),
        "artefact": None if taken is None else _artefact(taken),
        "latency_class": latency_class,
        **_reserved(config, strategy.plan(given), given, book),
        "on_budget": "refuse" if tenant is None else tenant.on_budget,
        "degrade_to": None if tenant is None else tenant.degrade_to,
    }


def _parts(taken: InForce, config: Config, now: datetime | None) -> LearnedParts:
    return LearnedParts(
        artefact=taken.artefact,
        point=taken.point,
        price=PriceBook(config, lambda: now or datetime.now(UTC)).price,
        memory={},
        observed=lambda _prediction, _move: None,
    )


def _explanation(strategy: Strategy, given: PlanInput) -> Explanation:
    if isinstance(strategy, RulesStrategy):
        return explain(strategy, given)
    from llmrouter.routing.explain_learned import explain_learned
    from llmrouter.routing.learned import LearnedStrategy

    if isinstance(strategy, LearnedStrategy):
        return explain_learned(strategy, given)
    raise ConfigError(f"the strategy of tier {given.request.model} comes from a plug-in and explains nothing")


def _artefact(taken: InForce) -> dict[str, Any]:
    manifest = taken.artefact.manifest
    return {
        "name": taken.name,
        "digest": taken.artefact.digest,
        "generic": is_generic(manifest),
        "point": taken.point,
        "promise": taken.promise,
        "fallback": None if taken.fallback is None else taken.fallback.reason,
    }


def _reserved(config: Config, plan: Plan, given: PlanInput, book: LimitBook) -> dict[str, Any]:
    """What would be set aside for the request, and from which limits."""
    request, principal = given.request, given.principal
    bound = worst_case(plan, request, config.limits)
    tokens = bound.input_tokens + bound.output_tokens
    cost_usd = PriceBook(config, lambda: given.now).bound_usd(bound)
    limits = book.of(principal, request.model, principal.user_id or request.user_id)
    return {
        "reserves": {"requests": 1, "tokens": tokens, "cost_usd": f"{cost_usd:f}"},
        "limits": [limit_as_json(limit) for limit in limits],
    }
