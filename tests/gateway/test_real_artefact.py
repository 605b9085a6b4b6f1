"""A router that was really trained, from its labels to the requests that it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmrouter.gateway.publishing import publish_artefact
from llmrouter.offline.heads import HeadSettings, train_heads
from llmrouter.offline.policy_fit import fit_policy
from llmrouter.routing.artifact import Artefact, write_artefact
from llmrouter.routing.drift import statistics_of
from llmrouter.testing import FakeBackend
from tests.cli.command import llmrouter
from tests.offline.test_heads import TOPICS, labels_of
from tests.support import model, pool, running, tier

LABELS = labels_of(400)
EASY, HARD = (next(ask.text for ask in LABELS.asks if TOPICS[topic] in ask.text) for topic in (1, 0))
COSTS = {"small": 1.0, "frontier": 10.0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Artefact:
    """Learned from questions of three topics, of which the small model knows two."""
    heads = train_heads(LABELS, settings=HeadSettings(trees_from=10_000))
    predicted = {role: heads.quality[:, at] for at, role in enumerate(("small", "frontier"))}
    policy = fit_policy(LABELS, predicted, policy="route", costs=COSTS)
    manifest: dict[str, Any] = {
        "created_at": "2026-12-01T00:00:00Z",
        "llmrouter_version": "0",
        "seed": 0,
        "generic": False,
        "policy": "route",
        "roles": {"small": ["s"], "frontier": ["f"]},
        "costs": COSTS,
        "data": {"digest": "d", "n_train": 400, "n_cal": 0, "n_test": 0},
        "heads": heads.manifest,
        "calibration": statistics_of(predicted),
        "policy_parameters": {**policy.parameters, "certified": None},
        "guarantee": None,
        "metrics": {},
    }
    return write_artefact(tmp_path_factory.mktemp("trained") / "router", manifest, {**heads.arrays, **policy.arrays})


async def test_a_trained_router_is_published_serves_and_explains_itself(tmp_path: Path, trained: Artefact):
    async with FakeBackend() as small, FakeBackend() as frontier:
        parts = [
            *(model("s"), model("f", usd_in="10", usd_out="20")),
            *(pool("s", [small.url]), pool("f", [frontier.url])),
            tier("auto", small="s", frontier="f", extra='strategy = "router"\nartefact = "published"'),
        ]
        text = "\n".join(parts)
        async with running(text.replace('"router"', '"rules"'), tmp_path) as gateway:
            # Far enough from the cautious points: 400 labels leave much room for bad luck.
            publish_artefact(gateway.config, trained, author="me", point=20)
        async with running(text, tmp_path, with_admin=True) as gateway:
            assert (await gateway.chat(EASY)).headers["x-llmrouter-model"] == "s"
            assert (await gateway.chat(HARD)).headers["x-llmrouter-model"] == "f"
            answer = await gateway.http.post(
                "/v1/admin/routing/explain",
                json={"request": {"model": "auto", "messages": [{"role": "user", "content": HARD}]}},
                headers={"authorization": f"Bearer {gateway.admin_key}"},
            )
            told = answer.json()
            assert (told["model_id"], told["artefact"]["digest"]) == ("f", trained.digest)
            assert told["learned"]["quality"]["small"] < 0.35
            assert told["learned"]["because"]
            hard = next(entry for entry in gateway.books() if entry.model_id == "f")
            assert (hard.strategy, hard.route) == ("router", "frontier")
            assert list(gateway.assembly.state.watches) == ["auto"]
        shown = llmrouter("rules", "explain", "--prompt", HARD, "--config", tmp_path / "llmrouter.toml")
        assert f"the published artefact {trained.digest[:12]}" in shown.out
        assert "what in the prompt moved the prediction" in shown.out
