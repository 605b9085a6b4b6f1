"""Names of strategies → what makes them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from llmrouter import registry
from llmrouter.config import Config, parse
from llmrouter.errors import ConfigError
from llmrouter.registry import LearnedParts, build_strategy, strategy_factory
from llmrouter.routing.rules import RuleSet
from llmrouter.routing.strategy import RulesStrategy
from tests.support import model, pool, tier

RULES = RuleSet(1, ())
PARTS = LearnedParts(object(), 2, cast(Any, None), {}, lambda _prediction, _move: None)


def config() -> Config:
    parts = [model("s"), model("l"), pool("s", ["http://127.0.0.1:9/v1"]), pool("l", ["http://127.0.0.1:9/v1"])]
    return parse("\n".join([*parts, tier("auto", small="s", large="l")]), environ={})


class Point:
    """An entry point that a distribution declares."""

    def __init__(self, loaded: object) -> None:
        self.load = lambda: loaded


def test_plain_rules_need_no_parts():
    assert isinstance(build_strategy("auto", config(), RULES, None), RulesStrategy)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="no strategy 'dice'; known: cascade, router, rules"):
        strategy_factory("dice")


def test_a_plug_in_of_three_arguments_is_called_with_three(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "entry_points", lambda group, name: [Point(lambda *given: given)])
    dice = config().model_copy(update={"tiers": {"auto": config().tiers["auto"].model_copy(update={"strategy": "x"})}})
    made: object = build_strategy("auto", dice, RULES, PARTS)
    assert made == ("auto", dice, RULES)


def test_a_plug_in_that_asks_for_parts_gets_them(monkeypatch: pytest.MonkeyPatch):
    def factory(tier_id: str, config: Config, rule_set: RuleSet, parts: LearnedParts | None) -> object:
        return parts

    monkeypatch.setattr(registry, "entry_points", lambda group, name: [Point(factory)])
    dice = config().model_copy(update={"tiers": {"auto": config().tiers["auto"].model_copy(update={"strategy": "x"})}})
    made: object = build_strategy("auto", dice, RULES, PARTS)
    assert made is PARTS
