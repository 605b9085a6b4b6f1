"""What the rules of a configuration would do with labelled requests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import orjson

from llmrouter.errors import RequestError, UsageError
from llmrouter.offline.external import External
from llmrouter.offline.labels import LabelSet
from llmrouter.types import Principal

__all__ = ["configured_rules"]


def configured_rules(
    name: str, config_path: Path, tier_id: str | None, labels: LabelSet, roles: Sequence[str]
) -> External:
    """Route each row as the tier's rules in force do, by the text of its last turn.

    Rows that the gateway would refuse, and those that a rule sends to a model of no such role, count as not decided.

    Raises:
        UsageError: there is no such tier, or the configuration is wrong.
    """
    from llmrouter.cli.rules_store import version_in_force
    from llmrouter.config import load
    from llmrouter.gateway.tiers import Tier, tier_models
    from llmrouter.gateway.wire import parse
    from llmrouter.protocols import PlanInput
    from llmrouter.routing.intent import label
    from llmrouter.routing.rules import compile_rules
    from llmrouter.routing.strategy import build_rules_strategy

    config = load(config_path)
    tier_id = tier_id or next(iter(config.tiers))
    if tier_id not in config.tiers:
        raise UsageError(f"--tier {tier_id!r}: the configuration has {', '.join(config.tiers)}")
    strategy = build_rules_strategy(tier_id, config, compile_rules(version_in_force(config), config))
    tier = Tier(tier_id, tier_models(config, tier_id), strategy, clamp=config.limits.clamp_output_tokens)
    principal = Principal(next(iter(config.tenants)), "eval-router")
    now = datetime.now(UTC)
    choice = np.full(len(labels), -1, dtype=np.intp)
    for row, ask in enumerate(labels.asks):
        body = orjson.dumps({"model": tier_id, "messages": [{"role": "user", "content": ask.text}]})
        try:
            request = parse("chat", body, {}, config.limits, label=lambda text, tools: label(text, has_tools=tools))
            given = PlanInput(
                request=request,
                principal=principal,
                candidates=tier.candidates(request, hosted=True),
                now=now,
                deadline_s=config.server.request_timeout_s,
            )
            role = strategy.choose(given).role
        except RequestError:
            continue
        if role in roles:
            choice[row] = list(roles).index(role)
    return External(name, tuple(roles), choice, None, unknown=0, missing=int((choice < 0).sum()))
