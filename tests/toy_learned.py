"""A toy of what is learned: artefacts that are a line of JSON, and a strategy whose operating point is its answer.

Point 0 of a toy sends everything to the tier's best model, its last point everything to the small one, and it predicts
that the small one fails on what is called hard. What the gateway does with artefacts can so be seen without training.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from llmrouter import registry
from llmrouter.config import Config
from llmrouter.errors import ArtefactError, ConfigError
from llmrouter.protocols import Plan, PlanInput
from llmrouter.registry import LearnedParts
from llmrouter.routing.evidence import Move, Prediction
from llmrouter.routing.plan import FallbackPlan
from llmrouter.routing.rules import RuleSet
from llmrouter.routing.strategy import fallback_chain
from llmrouter.types import Decision

__all__ = ["ToyArtefact", "ToyStrategy", "toy_learning", "write_toy"]


@dataclass(frozen=True)
class ToyArtefact:
    """Stands in for `routing.artifact.Artefact`."""

    manifest: Mapping[str, Any]
    digest: str
    arrays: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, **changes: Any) -> ToyArtefact:
        manifest = {
            "generic": False,
            "policy": "route",
            "roles": {"small": ["s"], "large": ["l"]},
            "costs": {"small": 1, "large": 1},
            "data": {"digest": "d", "n_train": 1, "n_cal": 2, "n_test": 3},
            "policy_parameters": {"points": [{}, {}, {}], "chosen": 2, "certified": 2},
            "guarantee": {"max_quality_loss": 1.0, "confidence": 0.95, "reference_role": "large"},
            **changes,
        }
        return cls(manifest, hashlib.sha256(_bytes(manifest)).hexdigest())


class ToyStrategy:
    """Routes by its operating point; keeps how often it was made in its memory."""

    def __init__(self, tier_id: str, config: Config, rule_set: RuleSet, parts: LearnedParts) -> None:
        self.tier = config.tiers[tier_id]
        self.rule_set = rule_set
        self.parts = parts
        parts.memory["made"] = parts.memory.get("made", 0) + 1

        parameters = parts.artefact.manifest["policy_parameters"]
        self.point = parameters["chosen"] if parts.point is None else parts.point
        roles = sorted(self.tier.roles, key=("small", "large", "frontier").index)
        self.role = roles[0] if self.point == len(parameters["points"]) - 1 else roles[-1]

    def observe(self, text: str) -> None:
        """Predict and tell, as for every request."""
        prediction = Prediction({"small": 0.1 if "hard" in text else 0.9, "large": 0.95})
        self.parts.observed(prediction, Move("route", self.role))

    def plan(self, given: PlanInput) -> Plan:
        decision = Decision("router", f"point:{self.point}", None, self.rule_set.version, route=self.role)
        self.observe(given.request.last_user_text)
        chain = fallback_chain(self.tier, given.candidates, self.role)
        return FallbackPlan(decision, chain, retries=0, max_wait_s=0, deadline_s=given.deadline_s)


def build_toy(tier_id: str, config: Config, rule_set: RuleSet, parts: LearnedParts | None) -> ToyStrategy:
    assert parts is not None
    if "broken" in parts.artefact.manifest:
        raise ArtefactError("its heads are not whole")
    return ToyStrategy(tier_id, config, rule_set, parts)


def write_toy(folder: Path, artefact: ToyArtefact) -> Path:
    """The toy as a folder."""
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_bytes(_bytes(artefact.manifest))
    return folder


@pytest.fixture
def toy_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toys in the places of artefacts and of the strategies `router` and `cascade`."""
    module = ModuleType("llmrouter.routing.artifact")
    module.__dict__.update(
        read_artefact=_read,
        pack_artefact=lambda artefact: _bytes(artefact.manifest),
        load_artefact=lambda folder: _read((folder / "manifest.json").read_bytes()),
        generic_artefact=lambda: ToyArtefact.of(generic=True, guarantee=None),
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    toys = dict.fromkeys(("router", "cascade"), f"{__name__}:build_toy")
    monkeypatch.setattr(registry, "_STRATEGIES", {**registry._STRATEGIES, **toys})


def _bytes(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True).encode()


def _read(content: bytes) -> ToyArtefact:
    try:
        return ToyArtefact.of(**json.loads(content))
    except ValueError as error:
        raise ConfigError("the artefact is not one") from error
