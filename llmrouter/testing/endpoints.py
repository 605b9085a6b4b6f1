"""What the fake says on paths that take no part in a script: health, models, metrics, tokenize."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmrouter.testing.actions import Engine, Plan, Step
from llmrouter.testing.answers import Json, Text
from llmrouter.testing.records import Incoming

__all__ = ["DEFAULT_ROUTES", "INFERENCE_PATHS", "PROBE_PATHS", "metrics_text"]

INFERENCE_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})
PROBE_PATHS = frozenset({"/health", "/ping", "/version", "/load", "/metrics", "/v1/models"})


@dataclass(frozen=True, slots=True)
class Health:
    """Healthy, in the engine's words."""

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        healthy: Step = Json({"status": "ok"}) if engine.dialect == "llama_cpp" else Text()
        return healthy.plan(request, engine)


@dataclass(frozen=True, slots=True)
class Models:
    """The list of served models."""

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        owner = {"vllm": "vllm", "llama_cpp": "llamacpp", "openai": "system"}[engine.dialect]
        data = [
            {"id": model, "object": "model", "created": engine.created, "owned_by": owner} for model in engine.models
        ]
        return Json({"object": "list", "data": data}).plan(request, engine)


@dataclass(frozen=True, slots=True)
class Tokenize:
    """One token a word, numbered from 1."""

    def plan(self, request: Incoming, engine: Engine) -> Plan:
        tokens = list(range(1, request.prompt_words + 1))
        body: dict[str, Any] = {"tokens": tokens}
        if engine.dialect == "vllm":
            body = {"count": len(tokens), "max_model_len": 8192, "tokens": tokens, "token_strs": None}
        return Json(body).plan(request, engine)


DEFAULT_ROUTES: Mapping[str, Step] = {
    "/health": Health(),
    "/ping": Health(),
    "/version": Json({"version": "0.0.0+fake"}),
    "/v1/models": Models(),
    "/tokenize": Tokenize(),
}


def metrics_text(engine: Engine, *, running: int, waiting: int) -> str:
    """The two gauges a router balances by, under the engine's names; an API has none."""
    names = {
        "vllm": ("vllm:num_requests_running", "vllm:num_requests_waiting"),
        "llama_cpp": ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
        "openai": (),
    }[engine.dialect]
    labels = f'{{engine="0",model_name="{engine.models[0]}"}}' if engine.dialect == "vllm" else ""
    lines = [
        f"# TYPE {name} gauge\n{name}{labels} {value:.1f}\n"
        for name, value in zip(names, (running, waiting), strict=False)
    ]
    return "".join(lines)
