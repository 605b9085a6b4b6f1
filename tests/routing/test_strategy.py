import dataclasses
import json

import pytest

from llmrouter.errors import RequestError
from llmrouter.protocols import Strategy
from llmrouter.routing.explain import explain
from llmrouter.routing.strategy import RulesStrategy, build_rules_strategy, fallback_chain
from llmrouter.types import Bound, Decision, Principal
from tests.routing.rig import ALL, CONFIG, ask, auto, candidate, given, rule, rules


def strategy(*given_rules, tier=None) -> RulesStrategy:
    return RulesStrategy("auto", tier or auto(), rules(*given_rules))


def models(chain) -> list[str]:
    return [each.model_id for each in chain]


def test_the_strategy_keeps_the_protocol_and_is_built_from_the_configuration():
    built: Strategy = build_rules_strategy("economy", CONFIG, rules())
    plan = built.plan(given(candidates=ALL[:1]))
    assert plan.decision == Decision("rules", "default:small", None, 3)
    assert isinstance(plan.bound(), Bound)
    assert next(plan.steps()).model_id == "m8"


def test_a_plan_starts_with_the_rules_choice_and_falls_back_to_later_roles_only():
    """A cheaper model never replaces the one that a rule chose for its quality."""
    plan = strategy(rule("code", "large", intent="code")).plan(given(ask(intent="code")))
    assert plan.decision == Decision("rules", "rule:code", "code", 3)
    assert models(plan.chain) == ["m70", "hosted"]


def test_the_default_falls_back_through_the_whole_order():
    assert models(strategy().plan(given()).chain) == ["m8", "m70", "hosted"]


def test_the_last_role_has_nothing_to_fall_back_to():
    assert models(strategy(rule("r", "frontier")).plan(given()).chain) == ["hosted"]


def test_retries_waits_and_deadline_come_from_the_tier_and_the_request():
    plan = strategy(tier=auto(retries=3)).plan(given())
    assert plan.bound().attempts == 4 * 3 + 3


@pytest.mark.parametrize(
    ("fallback", "role", "chain"),
    [
        (("large", "small", "frontier"), "large", ["m70", "m8", "hosted"]),
        (("small", "large"), "frontier", ["hosted"]),
        (("small", "large"), "small", ["m8", "m70"]),
        (("large",), "small", ["m8", "m70"]),
        (("small", "frontier"), "large", ["m70", "hosted"]),
    ],
)
def test_the_tiers_own_order_is_followed(fallback, role, chain):
    assert models(fallback_chain(auto(fallback=fallback), ALL, role)) == chain


def test_a_model_in_two_roles_is_in_the_chain_once_and_first_where_it_was_chosen():
    both = (candidate("small", "m8"), candidate("large"), candidate("frontier", "m8"))
    assert [(c.role, c.model_id) for c in fallback_chain(auto(), both, "small")] == [("small", "m8"), ("large", "m70")]


def test_models_that_cannot_take_the_request_are_not_in_the_chain():
    assert models(fallback_chain(auto(), (ALL[0], ALL[2], candidate("peer")), "small")) == ["m8", "hosted"]


@pytest.mark.parametrize(("default", "reason"), [("frontier", "default:frontier"), (None, "default:small")])
def test_the_tiers_default_role_answers_without_a_rule(default, reason):
    assert strategy(tier=auto(default=default)).plan(given()).decision.reason == reason


def test_a_default_that_cannot_take_the_request_gives_way_to_later_then_earlier_roles():
    large_first = strategy(tier=auto(default="large"))
    assert large_first.plan(given(candidates=(ALL[0], ALL[2]))).decision.reason == "capable:frontier"
    assert large_first.plan(given(candidates=ALL[:1])).decision.reason == "capable:small"


def test_peers_alone_cannot_answer():
    with pytest.raises(RequestError, match="no model of tier 'auto'"):
        strategy().plan(given(candidates=(candidate("peer"),)))


def test_rules_compare_with_the_largest_token_bound():
    counted = (candidate("small", input_tokens=90), candidate("large", input_tokens=110))
    assert (
        strategy(rule("long", "large", input_tokens={"min": 110})).choose(given(candidates=counted)).rule_id == "long"
    )


def rules_chosen(sticky: str, conversations: int) -> set[str | None]:
    shared = strategy(rule("a", weight=1), rule("b", weight=1), tier=auto(sticky=sticky))
    return {shared.choose(given(ask(conversation=f"c{i}"))).rule_id for i in range(conversations)}


def test_a_share_sticks_to_the_conversation_or_to_the_key():
    assert rules_chosen("conversation", 40) == {"a", "b"}
    assert len(rules_chosen("key", 40)) == 1


def test_without_a_conversation_a_share_sticks_to_the_key():
    shared = strategy(rule("a", weight=1), rule("b", weight=1))
    by_key = {
        key: {shared.choose(given(principal=Principal("acme", key))).rule_id for _ in range(3)} for key in "abcdefghij"
    }
    assert all(len(chosen) == 1 for chosen in by_key.values())
    assert set.union(*by_key.values()) == {"a", "b"}


def test_planning_changes_nothing_in_its_input():
    asked = given()
    before = dataclasses.replace(asked)
    strategy(rule("r", "large")).plan(asked)
    assert asked == before


def test_explain_tells_every_rules_standing_and_what_failed():
    told = explain(
        strategy(
            rule("no", "large", priority=9, intent="code", tenant="globex"),
            rule("no-vision", "small", priority=8),
            rule("one", "large", priority=5, weight=1000),
            rule("two", "m70", priority=5, weight=0.001),
            rule("below", "frontier"),
        ),
        given(ask("private words", intent="qa", conversation="c"), candidates=ALL[1:]),
    )
    assert [(v.rule_id, v.standing, v.held) for v in told.rules] == [
        ("no", "not_held", False),
        ("no-vision", "not_held", False),
        ("one", "won", True),
        ("two", "outdrawn", True),
        ("below", "outranked", True),
    ]
    assert told.rules[0].why_not == (
        "intent: wants 'code', request has 'qa'",
        "tenant: wants 'globex', request has 'acme'",
    )
    assert told.rules[1].why_not == ("tier_role: small cannot take this request (capabilities or context window)",)
    assert told.filtered_out == {"small": "m8"}


def test_explain_agrees_with_the_plan_and_is_plain_json_without_the_prompt():
    asked = given(ask("private words", conversation="c"))
    explained = strategy(rule("r", "large", regex="private"))
    told = explain(explained, asked)
    plan = explained.plan(asked)
    assert (told.rule_id, told.reason) == (plan.decision.rule_id, plan.decision.reason)
    assert [link.model_id for link in told.chain] == models(plan.chain)
    assert told.max_attempts == plan.bound().attempts
    shown = json.loads(json.dumps(told.to_dict()))
    assert "words" not in json.dumps(shown)
    assert {key: shown[key] for key in ("tier_id", "routing_version", "sticky_by", "input_tokens", "role")} == {
        "tier_id": "auto",
        "routing_version": 3,
        "sticky_by": "conversation",
        "input_tokens": 100,
        "role": "large",
    }
    assert shown["chain"][0] == {
        "role": "large", "model_id": "m70", "replicas": 2, "input_tokens": 100, "context_window": 32768,
    }  # fmt: skip


def test_explain_without_a_rule_names_the_default_and_models_outside_the_tier():
    economy = RulesStrategy("economy", CONFIG.tiers["economy"], rules(rule("r", "m70")))
    told = explain(economy, given(candidates=ALL[:1]))
    assert (told.rule_id, told.reason, told.sticky_by) == (None, "default:small", "key")
    assert told.rules[0].why_not == ("model_id: m70 plays no role in tier 'economy'",)


def test_a_role_that_the_request_insists_on_wins_over_every_rule():
    plan = strategy(rule("code", "small", intent="code")).plan(given(ask(intent="code", role="large")))
    assert plan.decision == Decision("rules", "override:large", None, 3)
    assert models(plan.chain) == ["m70", "hosted"]


def test_a_role_that_the_tier_has_not_is_refused_by_name():
    with pytest.raises(RequestError, match=r"no frontier model .* it has small") as caught:
        strategy().plan(given(ask(role="frontier"), candidates=ALL[:1]))
    assert caught.value.param == "x-llmrouter-role"
