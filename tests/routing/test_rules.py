import json
import math
import re
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st

from llmrouter.config import RoutingConfig, parse
from llmrouter.routing.conditions import MATCH_KEYS, PATTERN_LIMIT, REPEAT_LIMIT
from llmrouter.routing.intent import INTENTS
from llmrouter.routing.match import REGEX_TEXT_LIMIT
from llmrouter.routing.problems import InvalidRules
from llmrouter.routing.rules import MAX_RULES, Able, Choice, RuleSet, compile_rules
from llmrouter.routing.sticky import draw, pick
from llmrouter.types import ChatRequest, Failure, Rule
from tests.routing.rig import ALL, CONFIG, NOON, ask, candidate, facts, rule, rules, version_of

ORDER = ("small", "large", "frontier")


def choose(
    rule_set: RuleSet, request: ChatRequest | None = None, *, key: str = "key-1", candidates=ALL, **changes
) -> Choice:
    fields: dict[str, Any] = {
        "tenant_id": "acme",
        "tier_id": "auto",
        "default_order": ORDER,
        "input_tokens": 100,
        "now": NOON,
    } | changes
    return rule_set.choose(request or ask(), sticky_key=key, candidates=candidates, **fields)


def test_the_highest_priority_that_holds_wins():
    rule_set = rules(
        rule("low", "small", priority=1),
        rule("high", "frontier", priority=9, intent="code"),
        rule("middle", "m70", priority=5, intent="code"),
    )
    assert choose(rule_set, ask(intent="code")) == Choice("high", "frontier", "hosted", "rule:high")
    assert choose(rule_set) == Choice("low", "small", "m8", "rule:low")


def test_a_rule_by_model_id_reports_the_role_the_model_plays():
    assert choose(rules(rule("r", "m70"))) == Choice("r", "large", "m70", "rule:r")


def test_without_a_rule_that_holds_the_default_role_answers():
    assert choose(rules(rule("r", intent="code"))) == Choice(None, "small", "m8", "default:small")
    assert choose(rules()).reason == "default:small"


def test_a_default_that_cannot_take_the_request_is_replaced_by_the_next_able_role():
    assert choose(rules(), candidates=ALL[1:]) == Choice(None, "large", "m70", "capable:large")


def test_g100_a_rule_whose_model_the_capability_filter_removed_does_not_hold():
    """An image request classed as easy goes to a model that sees, never to the text-only one that the rule names."""
    rule_set = rules(rule("easy-to-small", "small", priority=9), rule("rest", "frontier"))
    assert choose(rule_set, ask(needs=frozenset({"vision"})), candidates=[candidate("frontier")]).rule_id == "rest"


def test_a_rule_whose_model_plays_no_role_in_the_tier_does_not_hold():
    economy: dict[str, Any] = {"tier_id": "economy", "default_order": ("small",), "candidates": ALL[:1]}
    assert choose(rules(rule("r", "m70")), **economy).reason == "default:small"


def test_a_peer_is_never_chosen():
    able = Able([candidate("peer", "m70"), candidate("small")])
    assert rules(rule("r", "m70")).winner(facts(), able, "k") is None


def test_all_kinds_of_facts_reach_the_rules():
    rule_set = rules(
        rule("by-tenant", priority=6, tenant="globex"),
        rule("by-tokens", priority=5, input_tokens={"min": 5000}),
        rule("by-time", priority=4, time={"days": "wed"}),
        rule("by-regex", priority=3, regex="refund"),
        rule("by-tag", priority=2, tag={"team": "ads"}),
        rule("by-need", priority=1, needs="logprobs"),
    )
    assert choose(rule_set, tenant_id="globex").rule_id == "by-tenant"
    assert choose(rule_set, input_tokens=5000).rule_id == "by-tokens"
    assert choose(rule_set, now=NOON + timedelta(days=1)).rule_id == "by-time"
    assert choose(rule_set, ask("a refund")).rule_id == "by-regex"
    assert choose(rule_set, ask(tags={"team": "ads"})).rule_id == "by-tag"
    assert choose(rule_set, ask(needs=frozenset({"logprobs"}))).rule_id == "by-need"


@pytest.mark.parametrize(
    ("patterns", "text", "wanted"),
    [
        (["aa", {"pattern": "BB", "ignore_case": True}], "xbbx", "r1"),
        (["(?i)aa|cc", "bb"], "BB", None),
        (["(?i)aa|cc", "bb"], "CC", "r0"),
        ([r"\Qa)b", "c"], "a)b", "r0"),
        ([r"\Qa", r"\Qb\E"], "b", "r1"),
        (["^a$", "^b$"], "ab", None),
        ([r"\pL{3}\s\pL+x", r"\pN+\s\pL+y"], "12 ay", "r1"),
    ],
)
def test_searching_for_all_patterns_at_once_never_hides_a_match(patterns, text, wanted):
    rule_set = rules(*[rule(f"r{i}", priority=-i, regex=pattern) for i, pattern in enumerate(patterns)])
    assert choose(rule_set, ask(text)).rule_id == wanted


# Shares by weight


def shares(weights: dict[str, float], keys: int = 4000) -> dict[str, set[str]]:
    """Which of many conversations each rule gets."""
    rule_set = rules(*[rule(rule_id, weight=weight) for rule_id, weight in weights.items()])
    got: dict[str, set[str]] = {rule_id: set() for rule_id in weights}
    for i in range(keys):
        got[choose(rule_set, key=f"conversation-{i}").rule_id or ""].add(f"conversation-{i}")
    return got


def test_rules_of_equal_priority_share_by_weight():
    """4,000 draws at 10 % have a standard deviation of 19, so 5 of them are 95."""
    got = shares({"stable": 90, "canary": 10})
    assert abs(len(got["canary"]) - 400) < 95


def test_a_share_is_sticky_and_the_same_in_every_process():
    """The drawn numbers are part of the contract: changing them would move every running conversation."""
    assert draw("canary", "conversation-1") == pytest.approx(0.627022377759472, abs=1e-15)
    rule_set = rules(rule("stable", weight=9), rule("canary", weight=1))
    assert len({choose(rule_set, key="same").rule_id for _ in range(5)}) == 1


def test_raising_a_weight_only_moves_conversations_to_that_rule():
    before, after = shares({"a": 5, "b": 4, "c": 1}), shares({"a": 5, "b": 4, "c": 3})
    assert before["c"] < after["c"]
    assert after["a"] < before["a"]
    assert after["b"] < before["b"]


def test_removing_a_rule_only_moves_its_own_conversations():
    before, after = shares({"a": 5, "b": 4, "c": 1}), shares({"a": 5, "b": 4})
    assert before["a"] < after["a"]
    assert before["b"] < after["b"]


def test_only_rules_that_hold_take_part_in_the_share():
    rule_set = rules(rule("canary", "large", weight=1, tenant="globex"), rule("stable", "small", weight=1))
    assert {choose(rule_set, key=str(i)).rule_id for i in range(50)} == {"stable"}


@hypothesis_given(st.text(max_size=20), st.text(max_size=20))
def test_a_draw_lies_strictly_between_0_and_1(rule_id, key):
    assert 0 < draw(rule_id, key) < 1
    assert math.log(draw(rule_id, key)) < 0


@hypothesis_given(
    st.dictionaries(st.text(max_size=5), st.floats(1e-6, 1e6), min_size=1, max_size=6),
    st.text(max_size=9),
    st.randoms(),
)
def test_a_pick_depends_neither_on_order_nor_on_the_scale_of_weights(weights, key, random):
    pairs = list(weights.items())
    random.shuffle(pairs)
    assert pick(pairs, key) == pick(weights.items(), key)
    assert pick([(rule_id, 2 * weight) for rule_id, weight in pairs], key) == pick(pairs, key)


# What is refused


def problems_of(*given: Rule) -> dict[str, str]:
    with pytest.raises(InvalidRules) as caught:
        rules(*given)
    return {problem.param: problem.message for problem in caught.value.problems}


def test_g046_unknown_names_are_refused_with_the_nearest_known_one():
    """A rule for a tenant, tier or model that doesn't exist would never hold, in silence."""
    found = problems_of(
        rule("a", "m71"), rule("b", tenant="acmee"), rule("c", tier=["auto", "econmy"]), rule("d", needs="visoin")
    )
    assert found == {
        "rules[0].model_id": "no model 'm71' in the configuration; did you mean 'm70'?",
        "rules[1].match.tenant": "no tenant 'acmee' in the configuration; did you mean 'acme'?",
        "rules[2].match.tier": "no tier 'econmy' in the configuration; did you mean 'economy'?",
        "rules[3].match.needs": "no capability 'visoin'; did you mean 'vision'?",
    }


def test_a_goal_must_lie_in_a_tier_that_the_rule_can_reach():
    found = problems_of(
        rule("a", "spare"), rule("b", "m70", tier="economy"), rule("c", "frontier", tier="economy"), rule("d", "large")
    )
    assert found == {
        "rules[0].model_id": "'spare' plays no role in any tier; add it to a tier of the configuration",
        "rules[1].model_id": "'m70' plays no role in tier 'economy'; add it to a tier of the configuration",
        "rules[2].tier_role": "tier 'economy' has no frontier model",
    }


def test_ids_goals_weights_and_numbers_of_rules_are_checked():
    found = problems_of(
        rule("a"),
        rule("a"),
        Rule("b", {}),
        Rule("c", {}, "m8", "small"),
        Rule("d", {}, None, "medium"),
        rule("e", weight=0),
        rule("f", weight=math.nan),
        rule("g", weight=math.inf),
    )
    assert list(found) == [
        "rules[2]", "rules[3]", "rules[4].tier_role", "rules[5].weight", "rules[6].weight", "rules[7].weight",
        "rules[1].rule_id",
    ]  # fmt: skip
    many = [rule(f"r{i}") for i in range(MAX_RULES + 1)]
    assert list(problems_of(*many)) == ["rules"]


def test_the_error_serves_the_admin_api_and_the_shell():
    with pytest.raises(InvalidRules) as caught:
        rules(rule("a", intnt="x"), rule("b", stream=1))
    error = caught.value
    assert (error.status, error.exit_code, error.code, error.param) == (400, 2, "invalid_rules", "rules[0].match.intnt")
    assert str(error).splitlines() == [
        "2 problems in the rules:",
        "rules[0].match.intnt: no such condition; did you mean 'intent'?",
        "rules[1].match.stream: must be true or false, not 1",
    ]
    with pytest.raises(InvalidRules, match=r"^rules\[0\]\.match\.intnt: no such condition"):
        rules(rule("a", intnt="x"))


# What is warned of


def warnings_of(*given: Rule) -> list[str]:
    return list(rules(*given).warnings)


def test_a_rule_below_one_that_always_holds_can_never_win():
    assert warnings_of(rule("all", "frontier", priority=5), rule("code", "large", intent="code")) == [
        "rules[1] 'code' can never win: 'all' has a higher priority and holds whenever it does"
    ]


def test_a_rule_below_a_wider_one_can_never_win():
    wide = rule("wide", priority=5, intent=["code", "math"], input_tokens={"max": 900}, tag={"team": ["a", "b"]})
    narrow = rule(
        "narrow", intent="code", input_tokens={"min": 5, "max": 900}, tag={"team": "a", "x": "y"}, stream=True
    )
    assert [text for text in warnings_of(wide, narrow) if "can never win" in text]
    for other in (
        rule("n", intent=["code", "qa"], input_tokens={"max": 900}, tag={"team": "a"}),
        rule("n", intent="code", input_tokens={"max": 901}, tag={"team": "a"}),
        rule("n", intent="code", input_tokens={"max": 900}, tag={"team": ["a", "c"]}),
        rule("n", intent="code", tag={"team": "a"}),
    ):
        assert not warnings_of(wide, other)


def test_a_rule_whose_model_can_do_more_still_wins_what_the_upper_one_cannot_take():
    assert warnings_of(rule("all", "small", priority=5), rule("rest", "frontier", intent="code")) == []


def test_a_rule_that_reaches_more_tiers_still_wins_there():
    assert warnings_of(rule("all", "m70", priority=5), rule("rest", "small", intent="code")) == []


def test_sharing_with_a_rule_without_conditions_is_pointed_out():
    (warning,) = warnings_of(rule("code", intent="code"), rule("all", "small"))
    assert warning.startswith("rules[0] 'code' gets only its share by weight, because 'all' has the same priority")
    assert warnings_of(rule("stable", weight=95), rule("canary", "small", weight=5)) == []


def test_tiers_without_the_goal_needs_and_windows_that_contradict_it_are_pointed_out():
    assert warnings_of(rule("a", "large", tier=["auto", "economy"])) == [
        "rules[0] 'a' never holds in tier 'economy', which has no large"
    ]
    assert warnings_of(rule("a", "small", needs=["tools", "logprobs"])) == [
        "rules[0] 'a' never holds: it asks for requests that its model cannot take (m8 lacks tools)"
    ]
    assert warnings_of(rule("a", "small", input_tokens={"min": 21846})) == [
        "rules[0] 'a' never holds: input_tokens starts at 21846, far past the context window of its model (m8 8192)"
    ]
    assert warnings_of(rule("a", "small", input_tokens={"min": 21845})) == []


def test_a_misspelt_built_in_intent_is_pointed_out_and_a_custom_one_is_not():
    (warning,) = warnings_of(rule("a", intent=["summarisation", "invoice-check"]))
    assert warning.endswith("'summarisation', which only clients can send; the built-in one is 'summarization'")


_MATCHES = st.fixed_dictionaries(
    {},
    optional={
        "intent": st.lists(st.sampled_from(["code", "math", "chat"]), min_size=1, max_size=2),
        "tenant": st.sampled_from(["acme", "globex"]),
        "tier": st.sampled_from(["auto", ["auto", "economy"]]),
        "input_tokens": st.sampled_from([{"min": 10}, {"max": 10}, {"min": 5, "max": 20}]),
        "stream": st.booleans(),
        "needs": st.sampled_from(["logprobs", ["logprobs", "n"]]),
    },
)
_RULES = st.lists(
    st.tuples(_MATCHES, st.sampled_from(["small", "large", "frontier", "m8", "hosted"]), st.integers(0, 2)), max_size=5
)
_REQUESTS = st.tuples(
    st.sampled_from(["code", "math", "chat"]),
    st.sampled_from(["acme", "globex"]),
    st.sampled_from(["auto", "economy"]),
    st.sampled_from([1, 5, 10, 15, 30]),
    st.booleans(),
    st.frozensets(st.sampled_from(["logprobs", "n", "tools", "vision", "completions"])),
)


@hypothesis_given(_RULES, st.lists(_REQUESTS, max_size=12))
def test_a_rule_said_never_to_win_never_wins(given_rules, requests):
    """For any rules and requests, with the capability filter as serving applies it."""
    rule_set = rules(*[rule(f"r{i}", goal, priority=p, **match) for i, (match, goal, p) in enumerate(given_rules)])
    dead = {text.split("'")[1] for text in rule_set.warnings if "can never win" in text or "never holds:" in text}
    for intent, tenant, tier, tokens, stream, needs in requests:
        able = [c for c in (ALL if tier == "auto" else ALL[:1]) if needs <= CONFIG.capabilities_of(c.model_id)]
        asked = facts(tenant=tenant, tier=tier, tokens=tokens, intent=intent, stream=stream, needs=needs)
        won = rule_set.winner(asked, Able(able), "key")
        assert won is None or won[0].rule.rule_id not in dead


def test_a_new_configuration_can_make_old_rules_invalid():
    """After a reload without the model, the rules that name it are refused instead of silently dead."""
    smaller = parse(
        """
        models.m8.price.usd = { input_usd_per_mtok = "1", output_usd_per_mtok = "1" }
        pools.p.model = "m8"
        pools.p.urls = ["http://127.0.0.1:1/v1"]
        tiers.auto.small = "m8"
        """,
        environ={},
    )
    with pytest.raises(InvalidRules, match="no model 'm70'"):
        compile_rules(version_of(rule("r", "m70")), smaller)


def test_the_rule_set_knows_its_version():
    assert compile_rules(version_of(rule("r"), version=7), CONFIG).version == 7


# The page for users


PAGE = (Path(__file__).parents[2] / "docs" / "routing.md").read_text(encoding="utf-8")


def test_the_examples_of_the_page_compile_without_a_warning():
    blocks = [tomllib.loads(block)["routing"] for block in re.findall(r"```toml\n(.*?)```", PAGE, re.S)]
    seeds = [seed for block in blocks for seed in RoutingConfig.model_validate(block).rules]
    config = CONFIG.model_copy(
        update={
            "models": {**CONFIG.models, "llama-70b": CONFIG.models["m70"]},
            "tiers": {"auto": CONFIG.tiers["auto"].model_copy(update={"large": "llama-70b"})},
            "pools": {**CONFIG.pools, "p70": CONFIG.pools["p70"].model_copy(update={"model": "llama-70b"})},
        }
    )
    compiled = rules(*[Rule(**seed.model_dump()) for seed in seeds], config=config)
    assert len(compiled.rules) == len(seeds) == 7
    assert compiled.warnings == ()


@pytest.mark.parametrize(
    "word", [*MATCH_KEYS, *INTENTS, *Failure, f"{REGEX_TEXT_LIMIT:,}", f"{PATTERN_LIMIT:,}", str(REPEAT_LIMIT)]
)
def test_the_page_names_every_condition_intent_failure_and_limit(word):
    assert re.search(rf"(?<!\w){re.escape(word)}(?!\w)", PAGE)


def test_the_example_body_of_the_page_is_one_the_rules_take():
    (body,) = re.findall(r"```json\n(.*?)```", PAGE, re.S)
    assert rules(*[Rule(**each) for each in json.loads(body)["rules"]]).warnings == ()
