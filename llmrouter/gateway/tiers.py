"""A tier as the gateway serves it: the hard capability filter, then the tier's strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmrouter.config import Config, ModelConfig
from llmrouter.errors import ContextLengthExceeded, UnsupportedParameter
from llmrouter.gateway.fields import ENGINE_FIELDS
from llmrouter.gateway.output_cap import choices_written, most_written
from llmrouter.gateway.run import Run
from llmrouter.protocols import Candidate, Plan, PlanInput, Strategy
from llmrouter.types import ChatRequest

__all__ = ["Tier", "TierModel", "tier_models"]

_PARAM = {
    "tools": "tools",
    "custom_tools": "tools",
    "allowed_tools": "tool_choice",
    "vision": "messages",
    "audio_input": "messages",
    "files": "messages",
    "audio_output": "modalities",
    "json_object": "response_format",
    "json_schema": "response_format",
    "logprobs": "logprobs",
    "n": "n",
    "reasoning": "reasoning_effort",
    "web_search": "web_search_options",
    "completions": "model",
    "embeddings": "model",
}
"""Which request field asks for a capability; others are called as their field."""


@dataclass(frozen=True, slots=True)
class TierModel:
    """One model of a tier with what the filter needs."""

    model_id: str
    role: str
    model: ModelConfig
    capabilities: frozenset[str]
    replicas: int
    hosted: bool = False
    """Its pool is somebody else's API."""


def tier_models(config: Config, tier_id: str) -> tuple[TierModel, ...]:
    """The models of a tier in fallback order, then the peers of one whose strategy asks them."""
    tier = config.tiers[tier_id]
    roles = [*tier.roles.items()]
    if tier.strategy != "rules":
        roles += [(f"peer{number}", model_id) for number, model_id in enumerate(tier.peers, start=1)]
    models = []
    for role, model_id in roles:
        pool = config.pools[config.pool_of(model_id)]
        replicas = pool.runner.replicas if pool.runner is not None else max(len(pool.urls), 1)
        capabilities = config.capabilities_of(model_id)
        models.append(TierModel(model_id, role, config.models[model_id], capabilities, replicas, pool.hosted))
    return tuple(models)


class Tier:
    """A logical model."""

    def __init__(self, tier_id: str, models: Sequence[TierModel], strategy: Strategy, *, clamp: bool) -> None:
        self.tier_id = tier_id
        self.strategy = strategy
        self._models = models
        self._clamp = clamp

    def plan(self, run: Run) -> Plan:
        """Filter by capability and window, then ask the strategy.

        Raises:
            UnsupportedParameter: no model of the tier can honour some parameter; it is never dropped.
            ContextLengthExceeded: prompt and output cap fit no model.
        """
        given = PlanInput(
            request=run.request,
            principal=run.principal,
            candidates=self.candidates(run.request, hosted=run.may_spill),
            now=run.ts,
            deadline_s=run.deadline - run.started,
        )
        return self.strategy.plan(given)

    def candidates(self, request: ChatRequest, *, hosted: bool = True) -> list[Candidate]:
        """The models that can honour the whole request, in fallback order.

        With `hosted=False` those of hosted pools only where no other can.
        """
        able = [m for m in self._models if request.needs <= m.capabilities] if request.needs else self._models
        if all(model.role.startswith("peer") for model in able):
            raise self._unable(request)
        fitting = [candidate for model in able if (candidate := self._fit(model, request)) is not None]
        if all(candidate.is_peer for candidate in fitting):
            raise self._too_long(able, request)
        if not hosted:
            theirs = {model.model_id for model in able if model.hosted}
            own = [candidate for candidate in fitting if candidate.model_id not in theirs]
            fitting = fitting if all(candidate.is_peer for candidate in own) else own
        return fitting

    def _fit(self, given: TierModel, request: ChatRequest) -> Candidate | None:
        model = given.model
        window = model.context_window
        prompt = request.input_tokens_bound(model.bytes_per_token)
        output = request.max_output_tokens
        if window is not None:
            # The bound is conservative, so only a prompt that is certain not to fit (8 bytes a token) is turned away
            # here; a closer call is the engine's, whose refusal moves the plan to a larger window.
            if request.input_tokens_bound(8.0) > window:
                return None
            if not self._clamp and output is not None and prompt + output > window:
                return None
        return Candidate(
            model_id=given.model_id,
            role=given.role,
            replicas=given.replicas,
            input_tokens=prompt,
            output_tokens=most_written(request, model, clamp=self._clamp) * choices_written(request),
            context_window=window,
        )

    def _unable(self, request: ChatRequest) -> UnsupportedParameter:
        anywhere: frozenset[str] = frozenset().union(*(model.capabilities for model in self._models))
        missing = sorted(request.needs - anywhere) or sorted(request.needs)
        names = ", ".join(missing)
        what = names if request.needs - anywhere else f"all of {names} together"
        return UnsupportedParameter(
            f"no model of tier `{self.tier_id}` supports {what}", param=_param(missing[0], request)
        )

    def _too_long(self, able: Sequence[TierModel], request: ChatRequest) -> ContextLengthExceeded:
        largest = max(able, key=lambda model: model.model.context_window or 0)
        prompt = request.input_tokens_bound(largest.model.bytes_per_token)
        cap = request.max_output_tokens
        asked = f"about {prompt} prompt tokens" + (f" and {cap} output tokens" if cap else "")
        return ContextLengthExceeded(
            f"the request has {asked}; the largest window of tier `{self.tier_id}` is {largest.model.context_window}",
            param="max_tokens" if cap and not self._clamp else "messages",
        )


def _param(capability: str, request: ChatRequest) -> str:
    """The field of this request that asks for a capability."""
    if capability == "engine_fields":
        return min(ENGINE_FIELDS.intersection(request.fields))
    if capability == "tools" and "tools" not in request.fields:
        return "functions"
    return _PARAM.get(capability, capability)
