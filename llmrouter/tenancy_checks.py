"""Contradictions and oddities of limits, budgets and latency classes, for `config_checks`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal

from llmrouter.config import CLASSES, LIMIT_KINDS, Config, LimitSet, TenantConfig, VllmRunner
from llmrouter.errors import ConfigError, RequestError
from llmrouter.gateway.tiers import Tier, tier_models
from llmrouter.pricing.book import PriceBook
from llmrouter.protocols import PlanInput
from llmrouter.routing.rules import RuleSet
from llmrouter.routing.strategy import build_rules_strategy
from llmrouter.types import Bound, ChatRequest, Principal, value

__all__ = ["limits_above", "tenancy_contradictions", "tenancy_oddities"]

_USD = tuple(kind for kind in LIMIT_KINDS if kind.startswith("usd"))
_PROMPT_BYTES = 1000
"""Of the request whose worst case is compared with limits: a short one, without an output cap."""


def limits_above(name: str, inner: LimitSet, outer_name: str, outer: LimitSet) -> Iterator[str]:
    """One line for each limit of an inner scope that its outer scope's lower one makes unreachable."""
    for kind in LIMIT_KINDS:
        most, bound = getattr(inner, kind), getattr(outer, kind)
        if most is not None and bound is not None and most > bound:
            yield f"{name}: {kind} = {most} is never reached, because {outer_name} has {bound}"


def tenancy_contradictions(config: Config) -> Iterator[str]:
    """One line each, beginning with the key at fault."""
    for pool_id in config.pools:
        yield from _deaf_to_priority(config, pool_id)
    for tier_id, tier in config.tiers.items():
        if "latency_class" in tier.model_fields_set and not _may_be(config, tier.latency_class):
            yield f"tiers.{tier_id}.latency_class: no tenant may use {tier.latency_class}; add it to tenants.*.classes"
    for tenant_id, tenant in config.tenants.items():
        yield from _barred_refuge(config, f"tenants.{tenant_id}", tenant)
    yield from _class_past_a_request(config)


def tenancy_oddities(config: Config) -> Iterator[str]:
    """One line each, beginning with the key."""
    yield from _unreachable(config)
    yield from _idle_groups(config)
    if any(limits != LimitSet() for _, limits, _ in _scopes(config)) or _degrades(config):
        worst = _worst_cases(config)
        yield from _nowhere_cheaper(config, worst)
        yield from _budgets_of_nothing(config, worst)
        yield from _too_small_for_one(config, worst)
    yield from _more_than_the_workers(config)
    yield from _without_servers(config)
    for pool_id, pool in config.pools.items():
        if isinstance(pool.runner, VllmRunner) and pool.runner.priority_scheduling and not pool.send_priority:
            yield f"pools.{pool_id}.runner.priority_scheduling: no priority is sent; set pools.{pool_id}.send_priority"


def _deaf_to_priority(config: Config, pool_id: str) -> Iterator[str]:
    pool = config.pools[pool_id]
    if not pool.send_priority:
        return
    at = f"pools.{pool_id}.send_priority"
    if pool.engine != "vllm":
        yield f"{at}: only vLLM takes a priority, and this pool's api is {pool.engine}"
    elif isinstance(pool.runner, VllmRunner) and not _schedules(pool.runner):
        yield f"{at}: vLLM refuses a priority unless it schedules by it; set runner.priority_scheduling = true"


def _schedules(runner: VllmRunner) -> bool:
    return runner.priority_scheduling or "--scheduling-policy" in " ".join(runner.extra_args)


def _may_be(config: Config, name: str) -> bool:
    return any(name in tenant.classes for tenant in config.tenants.values())


def _barred_refuge(config: Config, at: str, tenant: TenantConfig) -> Iterator[str]:
    """A tier to degrade to that cannot take what is sent there."""
    refuge = tenant.degrade_to
    if refuge is None:
        return
    if len(config.tiers) == 1:
        yield f"{at}.degrade_to: {refuge} is the only tier, so nothing is left to degrade from"
    limits = tenant.tier_limits.get(refuge)
    for kind in _USD:
        if limits is not None and getattr(limits, kind) == 0:
            yield f"{at}.degrade_to: tier_limits.{refuge}.{kind} = 0 lets nothing into {refuge}"


def _class_past_a_request(config: Config) -> Iterator[str]:
    whole_s = config.server.request_timeout_s
    for name in CLASSES:
        for key in ("queue_timeout_s", "request_timeout_s", "first_byte_s"):
            seconds = getattr(config.classes.of(name), key)
            if seconds is not None and seconds > whole_s:
                yield f"classes.{name}.{key}: {seconds:g} s is longer than server.request_timeout_s, {whole_s:g} s"


def _unreachable(config: Config) -> Iterator[str]:
    """Limits above those of what they are inside of."""
    for tenant_id, tenant in config.tenants.items():
        at = f"tenants.{tenant_id}"
        own = f"{at}.limits"
        yield from limits_above(f"{at}.key_limits", tenant.key_limits, own, tenant.limits)
        yield from limits_above(f"{at}.user_limits", tenant.user_limits, own, tenant.limits)
        for tier_id, limits in tenant.tier_limits.items():
            inner = f"{at}.tier_limits.{tier_id}"
            yield from limits_above(inner, limits, own, tenant.limits)
            yield from limits_above(inner, limits, f"tiers.{tier_id}.limits", config.tiers[tier_id].limits)
        if tenant.group is not None:
            group = config.groups[tenant.group]
            yield from limits_above(own, tenant.limits, f"groups.{tenant.group}.limits", group.limits)


def _degrades(config: Config) -> bool:
    return any(tenant.degrade_to is not None for tenant in config.tenants.values())


def _idle_groups(config: Config) -> Iterator[str]:
    used = {tenant.group for tenant in config.tenants.values()}
    for group_id in config.groups:
        if group_id not in used:
            yield f"groups.{group_id}: no tenant belongs to it"


def _nowhere_cheaper(config: Config, worst: Mapping[str, _Worst]) -> Iterator[str]:
    """Degrading that saves nothing, and degrading that nothing sets off."""
    for tenant_id, tenant in config.tenants.items():
        refuge = tenant.degrade_to
        if refuge is None:
            continue
        at = f"tenants.{tenant_id}"
        if not any(_has_budget(limits) for limits in _all_limits(config, tenant)):
            yield f"{at}.on_budget: no dollar limit of this tenant is configured, so only keys with one degrade"
        cheaper = [tier_id for tier_id, each in worst.items() if refuge in worst and each.usd < worst[refuge].usd]
        if cheaper:
            names = ", ".join(cheaper)
            yield f"{at}.degrade_to: a request may cost more on {refuge} than on {names}: nothing is saved from there"


def _has_budget(limits: LimitSet) -> bool:
    return any(getattr(limits, kind) is not None for kind in _USD)


def _all_limits(config: Config, tenant: TenantConfig) -> Iterator[LimitSet]:
    """All that a tenant's requests may count against, but limits of keys."""
    yield from (tenant.limits, tenant.key_limits, tenant.user_limits, *tenant.tier_limits.values())
    if tenant.group is not None:
        yield config.groups[tenant.group].limits
    for tier in config.tiers.values():
        yield tier.limits


def _budgets_of_nothing(config: Config, worst: Mapping[str, _Worst]) -> Iterator[str]:
    """Dollar limits on what costs no dollars."""
    for at, limits, tiers in _scopes(config):
        if all(tier_id in worst and worst[tier_id].usd == 0 for tier_id in tiers):
            for kind in _USD:
                if getattr(limits, kind) is not None:
                    yield f"{at}.{kind}: every model it covers has the price 0, so no dollar is ever counted"


def _too_small_for_one(config: Config, worst: Mapping[str, _Worst]) -> Iterator[str]:
    """Limits that refuse a single request without an output cap, however quiet it is."""
    for at, limits, tiers in _scopes(config):
        known = [tier_id for tier_id in tiers if tier_id in worst]
        if not known:
            continue
        tier_id = max(known, key=lambda each: worst[each].tokens)
        needed = worst[tier_id].tokens
        key = "tokens_per_minute" if limits.tokens_burst is None else "tokens_burst"
        most = getattr(limits, key)
        if most is not None and needed > most:
            yield f"{at}.{key}: {most} is less than the {needed} that {_one(tier_id)}"
        tier_id = max(known, key=lambda each: worst[each].usd)
        for kind in _USD:
            budget = getattr(limits, kind)
            if budget and worst[tier_id].usd > budget:
                yield f"{at}.{kind}: {budget} is less than the ${worst[tier_id].usd:.4f} that {_one(tier_id)}"


def _one(tier_id: str) -> str:
    return (
        f"a short request without max_tokens reserves on tier {tier_id}, so it gets 429; "
        "set max_output_tokens of the models, or raise the limit"
    )


def _more_than_the_workers(config: Config) -> Iterator[str]:
    if config.store.limits_url is not None:
        return  # Other gateways have workers too.
    served = config.server.workers * config.server.max_concurrent_requests
    for at, limits, _ in _scopes(config):
        if limits.concurrent_requests is not None and limits.concurrent_requests > served:
            yield (
                f"{at}.concurrent_requests: {limits.concurrent_requests} is never reached, because "
                f"server.workers times server.max_concurrent_requests is {served}"
            )


def _without_servers(config: Config) -> Iterator[str]:
    if config.store.limits_url is None:
        for key in sorted({"on_store_down", "lease_s"} & config.limits.model_fields_set):
            yield f"limits.{key}: matters only with store.limits_url"
    if config.store.ledger_url is None and "spool_entries" in config.ledger.model_fields_set:
        yield "ledger.spool_entries: matters only with store.ledger_url"


def _scopes(config: Config) -> Iterator[tuple[str, LimitSet, Iterable[str]]]:
    """Every set of limits with its key and the tiers that it covers."""
    every = tuple(config.tiers)
    for tenant_id, tenant in config.tenants.items():
        at = f"tenants.{tenant_id}"
        for key in ("limits", "key_limits", "user_limits"):
            yield f"{at}.{key}", getattr(tenant, key), every
        for tier_id, limits in tenant.tier_limits.items():
            yield f"{at}.tier_limits.{tier_id}", limits, (tier_id,)
    for group_id, group in config.groups.items():
        yield f"groups.{group_id}.limits", group.limits, every
    for tier_id, tier in config.tiers.items():
        yield f"tiers.{tier_id}.limits", tier.limits, (tier_id,)


@value
class _Worst:
    """What a short request without an output cap reserves."""

    tokens: int
    usd: Decimal


def _worst_cases(config: Config) -> Mapping[str, _Worst]:
    """By tier; without those whose models cannot take such a request, and empty where a price is not known."""
    now = datetime.now(UTC)
    try:
        prices = PriceBook(config, lambda: now)
    except ConfigError:
        return {}  # Said elsewhere, with its key.
    found = {}
    for tier_id in config.tiers:
        bound = _bound(config, tier_id, now)
        if bound is not None:
            found[tier_id] = _Worst(bound.input_tokens + bound.output_tokens, prices.bound_usd(bound))
    return found


def _bound(config: Config, tier_id: str, now: datetime) -> Bound | None:
    # A learned strategy sets aside at least as much as plain rules do, and what it has learned is not looked at here.
    strategy = build_rules_strategy(tier_id, config, RuleSet(0, ()))
    tier = Tier(tier_id, tier_models(config, tier_id), strategy, clamp=config.limits.clamp_output_tokens)
    request = ChatRequest("chat", tier_id, {}, text_bytes=_PROMPT_BYTES, message_count=1)
    try:
        given = PlanInput(request, Principal("", ""), tier.candidates(request), now, config.server.request_timeout_s)
        return strategy.plan(given).bound()
    except RequestError:
        return None
