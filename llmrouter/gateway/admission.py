"""Admits a planned call: reserves its worst case before anything is called, or degrades it to a cheaper tier."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

from llmrouter.backends.waiting import Ticket
from llmrouter.config import LimitsConfig
from llmrouter.errors import BudgetSpent, LimitReached, RequestError, RouterError
from llmrouter.gateway.run import Run
from llmrouter.gateway.state import State
from llmrouter.pricing.money import MAX_STORED_USD
from llmrouter.protocols import Ledger, Plan
from llmrouter.tenancy.limits import amount_text, describe
from llmrouter.types import Bound, BoundedCall, ChatRequest, Exceeded, Reservation, Standing

__all__ = ["admit", "refusal", "reservation_of", "worst_case"]

_SOON_S = 1.0
"""Retry hint where a call under way has to end first."""
_LINGER_S = 60.0
"""How long after its last moment a call may take to be settled."""


async def admit(state: State, ledger: Ledger, run: Run, plan: Plan) -> Plan:
    """Reserve what a plan may cost; returns the plan to follow, which is another one where a budget is spent and the
    tenant's policy says to degrade.

    When this returns, the call is in the books and must be recorded, whatever comes.

    Raises:
        LimitReached, BudgetSpent, RequestError: nothing was taken.
        StoreUnavailable: nothing was taken, and nothing may be called.
    """
    reservation = reservation_of(state, run, plan)
    admission = await ledger.open(reservation)
    refused = admission.exceeded
    if refused is not None and _may_degrade(state, run, refused):
        plan = _degraded(state, run, refused)
        reservation = reservation_of(state, run, plan)
        admission = await ledger.open(reservation)
    if admission.exceeded is not None:
        refused = refused or admission.exceeded
        # No tier serves it, the cheaper one neither.
        run.tier_id = run.request.model
        run.standings = _standings(refused)
        raise refusal(refused)
    run.standings = admission.standings
    return plan


def reservation_of(state: State, run: Run, plan: Plan) -> Reservation:
    """The worst case of a plan, with every limit that it counts against; tells the run what follows from it.

    Raises:
        RequestError: it may cost more than one entry of the books can hold.
    """
    request, principal = run.request, run.principal
    limits = state.limits.of(principal, run.tier_id, run.user_id)
    bound = worst_case(plan, request, state.config.limits)
    cost_usd = state.prices.bound_usd(bound)
    if cost_usd > MAX_STORED_USD:
        raise RequestError(
            f"the request might cost ${cost_usd:.0f}, more than the books can hold; lower `max_tokens` or `n`",
            param="max_tokens",
        )
    run.keeps_reservation = any(limit.kind not in ("requests_per_minute", "concurrent_requests") for limit in limits)
    first = bound.calls[0]
    run.ticket = Ticket(
        latency_class=run.latency_class,
        tenant_id=principal.tenant_id,
        weight=state.limits.weight_of(principal.tenant_id),
        tokens=first.input_tokens + first.output_tokens,
    )
    return Reservation(
        request_id=run.request_id,
        ts=run.ts,
        tenant_id=principal.tenant_id,
        key_id=principal.key_id,
        user_id=run.user_id,
        endpoint=request.endpoint,
        tier=request.model,
        latency_class=run.latency_class,
        model_id=first.model_id,
        price_id=state.prices.price(first.model_id, first.input_tokens).price_id,
        routing_version=plan.decision.routing_version,
        config_version=run.config_version,
        stream=request.stream,
        tags=request.tags,
        input_tokens=bound.input_tokens,
        output_tokens=bound.output_tokens,
        cost_usd=cost_usd,
        expires_at=run.ts + timedelta(seconds=run.ends_by - run.started + _LINGER_S),
        limits=limits,
        degraded_to=run.degraded_to,
    )


def worst_case(plan: Plan, request: ChatRequest, config: LimitsConfig) -> Bound:
    """What is reserved for a plan: its bound, with prompts counted as the configuration says."""
    bound = plan.bound()
    per_token = config.reserve_bytes_per_token
    embedding = request.endpoint == "embeddings"
    if per_token is None and not embedding:
        return bound
    prompt = None if per_token is None else request.input_tokens_bound(per_token)
    calls = tuple(
        BoundedCall(
            each.model_id,
            each.calls,
            each.input_tokens if prompt is None else prompt + _added(each, bound),
            0 if embedding else each.output_tokens,
        )
        for each in bound.calls
    )
    return dataclasses.replace(bound, calls=calls)


def _added(call: BoundedCall, bound: Bound) -> int:
    """Tokens that a plan puts into its question beside the client's prompt, such as an answer to be judged."""
    return call.input_tokens - min(each.input_tokens for each in bound.calls if each.model_id == call.model_id)


def _may_degrade(state: State, run: Run, refused: Exceeded) -> bool:
    tenant = state.config.tenants.get(run.principal.tenant_id)
    cheaper = tenant.degrade_to if tenant is not None else None
    return (
        cheaper is not None
        and refused.limit.kind.startswith("usd")
        and cheaper != run.tier_id
        and cheaper in state.tiers
        and run.principal.may_use(cheaper)
    )


def _degraded(state: State, run: Run, refused: Exceeded) -> Plan:
    """The plan of the tenant's cheaper tier; where that tier cannot take the request, the budget's refusal stands."""
    cheaper = state.config.tenants[run.principal.tenant_id].degrade_to
    assert cheaper is not None
    try:
        plan = state.tiers[cheaper].plan(run)
    except RouterError as unable:
        raise refusal(refused) from unable
    run.tier_id = cheaper
    return plan


def _standings(refused: Exceeded) -> tuple[Standing, ...]:
    limit = refused.limit
    return (Standing(limit, max(limit.burst - refused.current, 0), refused.reset_s or 0.0),) if limit.burst else ()


def refusal(refused: Exceeded) -> RouterError:
    """What the client is told: which limit, whose, how much of it is used, and when to come back."""
    limit = refused.limit
    # Others use a tier's and a group's limits too; how much is not this tenant's business.
    shared = limit.scope.startswith(("tier:", "group:"))
    details = {
        "limit": {
            "scope": limit.scope,
            "kind": limit.kind,
            "limit": amount_text(limit, limit.most),
            "current": None if shared else amount_text(limit, refused.current),
            "requested": amount_text(limit, refused.wanted),
            "reset_s": None if refused.reset_s is None else round(refused.reset_s, 3),
        }
    }
    used = "" if shared else f"{amount_text(limit, refused.current)} of "
    state = f"{used}{amount_text(limit, limit.most)} used or set aside"
    if refused.reset_s is None:
        most = amount_text(limit, limit.burst or limit.most)
        return BudgetSpent(
            f"{describe(limit)}: this request may need {amount_text(limit, refused.wanted)}, and no more than {most} "
            "can ever be set aside; lower `max_tokens` or shorten the prompt",
            code="request_over_limit",
            details=details,
        )
    if refused.passes and limit.kind.startswith("usd"):
        return LimitReached(
            f"{describe(limit)}: calls under way have set aside what is left of {amount_text(limit, limit.most)}, and "
            f"this request may need {amount_text(limit, refused.wanted)}; try again when some have ended",
            retry_after_s=_SOON_S,
            details=details,
        )
    wanted = f"this request may need {amount_text(limit, refused.wanted)}"
    if limit.kind.startswith("usd"):
        return BudgetSpent(
            f"{describe(limit)} is spent: {state}, and {wanted}; it starts anew in {refused.reset_s:.0f} s",
            retry_after_s=refused.reset_s,
            details=details,
        )
    return LimitReached(
        f"{describe(limit)} is reached: {state}, and {wanted}; try again in {refused.reset_s:.3g} s",
        retry_after_s=refused.reset_s,
        details=details,
    )
