from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from llmrouter.config import Config, parse
from llmrouter.errors import ConfigError
from llmrouter.gateway.verifiers import Verifiers
from llmrouter.protocols import Steps
from llmrouter.testing import Answer, FakeBackend
from llmrouter.types import Accepted, ChatRequest, Target
from tests.gateway.rig import two
from tests.gateway.scripted import asking, follow_script
from tests.support import model, pool, running, tier


class Judge:
    async def score(self, request: ChatRequest, answer_text: str) -> float | None:
        return None


def config(verifier: str | None, *, strategy: str = "cascade") -> Config:
    named = "" if verifier is None else f'cascade.verifier = "{verifier}"'
    models = model("s") + model("l") + pool("s", ["http://s"]) + pool("l", ["http://l"])
    auto = tier("auto", small="s", large="l", extra=f'strategy = "{strategy}"\n{named}\n')
    return parse(models + auto, environ={})


def test_a_verifier_is_made_once_and_kept_over_reloads():
    made: list[str] = []

    def load(name: str) -> Any:
        made.append(name)
        return Judge()

    verifiers = Verifiers(load)
    first = verifiers.of(config("judge"))
    assert verifiers.of(config(None)) == {}
    assert verifiers.of(config("judge")) == first
    assert (made, list(first)) == (["judge"], ["judge"])


def test_one_that_no_tier_asks_is_not_made():
    assert Verifiers().of(config("nobody-has-this", strategy="router")) == {}


def test_one_that_nobody_provides_is_a_configuration_error():
    with pytest.raises(ConfigError, match="nobody-has-this"):
        Verifiers().of(config("nobody-has-this"))


async def test_an_installed_verifier_judges_the_answers_of_a_served_request(tmp_path, monkeypatch):
    """As a package installer leaves it: an entry point of a distribution on the path."""
    declared = tmp_path / "plug_in-1.dist-info"
    declared.mkdir()
    (declared / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-in\nVersion: 1\n")
    (declared / "entry_points.txt").write_text("[llmrouter.verifiers]\ngrounded = grounded:Grounded\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "verifiers"))
    verdicts: list[float | None] = []

    def script(request: ChatRequest) -> Steps:
        first = yield Target("s", "small", "policy", ask=asking(request), observe=True, verifier="grounded")
        assert first.seen is not None
        verdicts.append(first.seen.verdict)
        if first.seen.verdict == 1:
            return Accepted(first)
        return Accepted((yield Target("l", "large", "check:verifier", ask=asking(request))))

    try:
        installed = Verifiers().of(config("grounded"))
        async with (
            FakeBackend(Answer("It is 42 km long."), Answer("It is 24 km long.")) as engine,
            FakeBackend(Answer("24 km.")) as other,
            running(two(engine, other), tmp_path) as gateway,
        ):
            pipeline = gateway.assembly._pipeline
            pipeline.state = dataclasses.replace(pipeline.state, verifiers=installed)
            follow_script(gateway, script)
            replies = [await gateway.chat("The road is 24 km long. How long is it?") for _ in range(2)]
    finally:
        sys.modules.pop("grounded", None)
    assert verdicts == [0, 1]
    assert [reply.json()["choices"][0]["message"]["content"] for reply in replies] == ["24 km.", "It is 24 km long."]
