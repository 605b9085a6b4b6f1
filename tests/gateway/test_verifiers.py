from __future__ import annotations

from typing import Any

import pytest

from llmrouter.config import Config, parse
from llmrouter.errors import ConfigError
from llmrouter.gateway.verifiers import Verifiers
from llmrouter.types import ChatRequest
from tests.support import model, pool, tier


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
