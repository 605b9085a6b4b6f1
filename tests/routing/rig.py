"""Small builders that the routing tests share: a configuration, requests, candidates and compiled rules."""

from datetime import UTC, datetime
from typing import Any

from llmrouter.config import Config, TierConfig, parse
from llmrouter.protocols import Candidate, PlanInput
from llmrouter.routing.match import Facts
from llmrouter.routing.rules import RuleSet, compile_rules
from llmrouter.types import ChatRequest, Principal, RoutingVersion, Rule

NOON = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
"""A Tuesday."""

CONFIG = parse(
    """
    [models.m8]
    price.usd = { input_usd_per_mtok = "0.1", output_usd_per_mtok = "0.2" }
    context_window = 8192
    [models.m70]
    price.usd = { input_usd_per_mtok = "1", output_usd_per_mtok = "2" }
    context_window = 32768
    [models.hosted]
    price.usd = { input_usd_per_mtok = "3", output_usd_per_mtok = "15" }
    context_window = 128000
    capabilities = ["tools", "vision", "json_object", "json_schema", "logprobs", "n", "engine_fields", "completions"]
    [models.spare]
    price.usd = { input_usd_per_mtok = "1", output_usd_per_mtok = "1" }

    [pools.p8]
    model = "m8"
    api = "vllm"
    urls = ["http://127.0.0.1:1/v1"]
    [pools.p70]
    model = "m70"
    api = "vllm"
    urls = ["http://127.0.0.1:2/v1"]
    [pools.api]
    model = "hosted"
    urls = ["http://127.0.0.1:3/v1"]
    hosted = true

    [tiers.auto]
    small = "m8"
    large = "m70"
    frontier = "hosted"
    [tiers.economy]
    small = "m8"

    [tenants.acme]
    [tenants.globex]
    """,
    environ={},
)


def auto(**changes: Any) -> TierConfig:
    """The tier `auto`, with changes."""
    return CONFIG.tiers["auto"].model_copy(update=changes)


def ask(text: str = "", **fields: Any) -> ChatRequest:
    return ChatRequest(endpoint="chat", model="auto", fields={}, last_user_text=text, **fields)


def candidate(role: str, model_id: str | None = None, **changes: Any) -> Candidate:
    """A model of tier `auto` by its role."""
    known: dict[str, Any] = {
        "small": ("m8", 8192),
        "large": ("m70", 32768),
        "frontier": ("hosted", 128000),
        "peer": ("spare", None),
    }
    name, window = known["peer" if role.startswith("peer") else role]
    fields: dict[str, Any] = {"replicas": 2, "input_tokens": 100, "output_tokens": 50, "context_window": window}
    return Candidate(model_id=model_id or name, role=role, **(fields | changes))


ALL = (candidate("small"), candidate("large"), candidate("frontier"))


def version_of(*rules: Rule, version: int = 3) -> RoutingVersion:
    return RoutingVersion(version=version, rules=rules, created_at=NOON, author="tests")


def rule(rule_id: str, goal: str = "large", *, priority: int = 0, weight: float = 1.0, **match: Any) -> Rule:
    """A rule whose goal is a role or a model id."""
    is_role = goal in ("small", "large", "frontier")
    return Rule(rule_id, match, None if is_role else goal, goal if is_role else None, weight, priority)


def rules(*given: Rule, config: Config = CONFIG) -> RuleSet:
    return compile_rules(version_of(*given), config)


def facts(text: str = "", *, tenant: str = "acme", tier: str = "auto", tokens: int = 100, **more: Any) -> Facts:
    now = more.pop("now", NOON)
    return Facts(ask(text, **more), tenant_id=tenant, tier_id=tier, input_tokens=tokens, now=now)


def given(request: ChatRequest | None = None, candidates: Any = ALL, **changes: Any) -> PlanInput:
    """A plan's input, by default from tenant `acme` with a minute left."""
    fields: dict[str, Any] = {"principal": Principal("acme", "key-1"), "now": NOON, "deadline_s": 60.0}
    return PlanInput(request=request or ask("hello"), candidates=candidates, **(fields | changes))
