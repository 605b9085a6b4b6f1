"""`llmrouter rules`: what is in force, publishing, rolling back, explaining; all on the store itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from llmrouter.config import load
from llmrouter.database import database_path
from llmrouter.gateway.build import prepare_store, rules_drift
from llmrouter.routing.versions import RoutingStore
from tests.cli.command import llmrouter, two_models

SEEDED = """
[[routing.rules]]
rule_id = "code"
match = { intent = "code" }
tier_role = "large"
priority = 10

[[routing.rules]]
rule_id = "rest"
tier_role = "small"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = two_models(tmp_path, SEEDED)
    prepare_store(load(path))
    return path


def store(config: Path) -> RoutingStore:
    return RoutingStore(database_path(load(config).store.url))


def rules_file(folder: Path, *rules: Mapping[str, object], **more: object) -> Path:
    path = folder / "rules.json"
    path.write_text(json.dumps({"rules": rules, **more}))
    return path


ALL_LARGE = {"rule_id": "all", "tier_role": "large"}


def test_list_shows_the_rules_in_force_highest_priority_first(config: Path):
    listed = llmrouter("rules", "list", "--config", config)
    assert [line.split()[0] for line in listed.out.splitlines()] == ["RULE", "code", "rest"]
    assert '{"intent": "code"}' in listed.out
    assert "routing version 1" in listed.err


def test_list_as_json_is_what_the_admin_api_gives(config: Path):
    listed = llmrouter("rules", "list", "--json", "--config", config).json
    assert listed["version"] == 1
    assert [rule["rule_id"] for rule in listed["rules"]] == ["code", "rest"]


def test_list_without_a_store_shows_what_the_first_start_would_publish(tmp_path: Path):
    config = two_models(tmp_path, SEEDED)
    listed = llmrouter("rules", "list", "--config", config)
    assert "code" in listed.out
    assert "there is no store yet" in listed.err
    assert not (tmp_path / "llmrouter.db").exists()


def test_apply_publishes_on_top_of_the_version_in_force(config: Path, tmp_path: Path):
    done = llmrouter("rules", "apply", rules_file(tmp_path, ALL_LARGE), "--note", "try it", "--config", config)
    assert (done.code, done.out) == (0, "")
    assert "published version 2, based on 1: added all; removed code, rest" in done.err
    current = store(config).current()
    assert (current.version, current.note, [rule.rule_id for rule in current.rules]) == (2, "try it", ["all"])
    assert current.author.startswith("cli:")


def test_an_exported_version_can_be_edited_and_applied(config: Path, tmp_path: Path):
    exported = llmrouter("rules", "list", "--json", "--config", config).json
    exported["rules"][0]["priority"] = 20
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(exported))
    done = llmrouter("rules", "apply", path, "--json", "--config", config)
    assert done.json["changes"] == {"added": [], "changed": ["code"], "removed": []}
    again = llmrouter("rules", "apply", path, "--config", config)
    assert (again.code, again.out) == (1, "")
    assert "the current routing version is 2, not 1" in again.err


def test_a_base_that_is_no_longer_in_force_is_refused(config: Path, tmp_path: Path):
    path = rules_file(tmp_path, ALL_LARGE)
    assert llmrouter("rules", "apply", path, "--config", config).code == 0
    lost = llmrouter("rules", "apply", path, "--base-version", "1", "--config", config)
    assert lost.code == 1
    assert store(config).current().version == 2


def test_a_dry_run_changes_nothing(config: Path, tmp_path: Path):
    tried = llmrouter("rules", "apply", rules_file(tmp_path, ALL_LARGE), "--dry-run", "--json", "--config", config)
    assert (tried.json["dry_run"], tried.json["version"], tried.json["current_version"]) == (True, 2, 1)
    assert store(config).current().version == 1


def test_a_dry_run_needs_no_store_and_makes_none(tmp_path: Path):
    config = two_models(tmp_path, SEEDED)
    path = rules_file(tmp_path, ALL_LARGE)
    assert llmrouter("rules", "apply", path, "--dry-run", "--config", config).code == 0
    assert not (tmp_path / "llmrouter.db").exists()


def test_rules_that_name_what_is_not_there_are_refused_with_all_problems(config: Path, tmp_path: Path):
    bad = rules_file(tmp_path, {"rule_id": "a", "model_id": "xl"}, {"rule_id": "b", "tier_role": "frontier"})
    refused = llmrouter("rules", "apply", bad, "--config", config)
    assert refused.code == 2
    assert "rules[0].model_id" in refused.err
    assert "rules[1].tier_role" in refused.err
    assert store(config).current().version == 1


def test_a_rule_that_can_never_win_is_warned_of_and_published(config: Path, tmp_path: Path):
    path = rules_file(
        tmp_path,
        {"rule_id": "all", "tier_role": "large", "priority": 5},
        {"rule_id": "never", "tier_role": "large", "match": {"intent": "code"}},
    )
    done = llmrouter("rules", "apply", path, "--config", config)
    assert done.code == 0
    assert "can never win" in done.err


def test_rollback_publishes_an_old_version_again(config: Path, tmp_path: Path):
    llmrouter("rules", "apply", rules_file(tmp_path, ALL_LARGE), "--config", config)
    done = llmrouter("rules", "rollback", "1", "--note", "too dear", "--config", config)
    assert done.code == 0
    current = store(config).current()
    assert (current.version, current.rolled_back_to, len(current.rules)) == (3, 1, 2)
    listed = llmrouter("rules", "list", "--history", "--config", config).out.splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["3", "2", "1"]
    assert "back to 1: too dear" in listed[1]
    versions = llmrouter("rules", "list", "--history", "--limit", "2", "--json", "--config", config).json["versions"]
    assert [version["version"] for version in versions] == [3, 2]


def test_rollback_to_a_version_that_never_was_is_refused(config: Path):
    refused = llmrouter("rules", "rollback", "9", "--config", config)
    assert refused.code == 2
    assert "no routing version 9" in refused.err


def test_explain_names_the_rule_and_the_chain(config: Path):
    told = llmrouter("rules", "explain", "--prompt", "Fix this Python function: def f(x): retrun x", "--config", config)
    facts = dict(line.split(maxsplit=1) for line in told.out.partition("\n\n")[0].splitlines())
    assert facts["because"] == "rule:code"
    assert facts["chain"] == "l (large)"
    assert "asking as tenant default" in told.err


def test_g046_explain_shows_which_rule_and_fallback_chain_a_sample_request_gets(config: Path):
    request = config.parent / "request.json"
    body = {"model": "auto", "messages": [{"role": "user", "content": "Good morning"}], "max_tokens": 5}
    request.write_text(json.dumps(body))
    told = llmrouter("rules", "explain", "--request", request, "--json", "--config", config).json
    assert (told["rule_id"], told["model_id"]) == ("rest", "s")
    assert [link["model_id"] for link in told["chain"]] == ["s", "l"]
    assert {rule["rule_id"]: rule["standing"] for rule in told["rules"]} == {"code": "not_held", "rest": "won"}


TENANTS = """
[tenants.acme]
classes = ["standard", "batch"]
on_budget = "degrade"
degrade_to = "cheap"
limits.usd_per_day = 5
user_limits.tokens_per_minute = 90000
[tiers.cheap]
small = "s"
latency_class = "batch"
limits.concurrent_requests = 7
"""


def test_g046_explain_shows_which_limits_class_and_budget_policy_a_sample_request_gets(tmp_path: Path):
    config = two_models(tmp_path, TENANTS)
    asked = ("rules", "explain", "--tier", "cheap", "--prompt", "Hi", "--tenant", "acme", "--config", config)
    told = llmrouter(*asked, "--header", "x-llmrouter-user=bob", "--json").json
    assert [(limit["whose"], limit["kind"], limit["limit"]) for limit in told["limits"]] == [
        ("user bob of tenant acme", "tokens_per_minute", 90000),
        ("tenant acme", "usd_per_day", "5.00"),
        ("tier cheap", "concurrent_requests", 7),
    ]
    assert (told["latency_class"], told["on_budget"], told["degrade_to"]) == ("batch", "degrade", "cheap")
    assert told["reserves"]["tokens"] > 4096
    assert float(told["reserves"]["cost_usd"]) > 0
    shown = llmrouter(*asked).out
    assert "latency class    batch" in shown
    assert "spent budget     goes to tier cheap" in shown
    assert shown.splitlines()[-2].split() == ["tenant", "acme", "usd_per_day", "$5.00", "-"]


def test_explain_refuses_a_class_as_a_request_would_be(tmp_path: Path):
    config = two_models(tmp_path, TENANTS)
    asked = ("rules", "explain", "--tier", "cheap", "--prompt", "Hi", "--tenant", "acme", "--config", config)
    refused = llmrouter(*asked, "--header", "x-llmrouter-class=interactive")
    assert refused.code == 1
    assert "it may ask for: standard, batch" in refused.err


def test_a_header_can_name_the_intent(config: Path):
    asked = ("rules", "explain", "--prompt", "Good morning", "--json", "--config", config)
    assert llmrouter(*asked, "--header", "X-LLMRouter-Intent=code").json["rule_id"] == "code"
    assert llmrouter(*asked, "--header", "X-LLMRouter-Intent").code == 2


def test_explain_asks_with_the_scopes_of_a_key(tmp_path: Path):
    config = two_models(tmp_path, '[tiers.other]\nsmall = "s"\n')
    key = llmrouter("keys", "create", "--tenant", "default", "--tier", "other", "--json", "--config", config).json
    asked = ("rules", "explain", "--tier", "auto", "--prompt", "Hi", "--key-id", key["key_id"], "--config", config)
    assert llmrouter(*asked, "--json").json["allowed"] is False
    assert "403" in llmrouter(*asked).err
    assert "no key" in llmrouter(*asked[:-3], "0", "--config", config).err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "give either --prompt TEXT or --request FILE"),
        (("--prompt", "Hi", "--request", "x"), "give either --prompt TEXT or --request FILE"),
        (("--prompt", "Hi", "--tenant", "nobody"), "no tenant 'nobody'"),
        (("--prompt", "Hi", "--tenant", "default", "--key-id", "x"), "not both"),
        (("--request", "missing.json"), "cannot be read"),
    ],
)
def test_explain_refuses_half_a_question(config: Path, arguments: tuple[str, ...], complaint: str):
    refused = llmrouter("rules", "explain", *arguments, "--config", config)
    assert refused.code == 2
    assert complaint in refused.err


def test_explain_fails_as_the_request_itself_would(config: Path):
    refused = llmrouter("rules", "explain", "--tier", "gold", "--prompt", "Hi", "--config", config)
    assert refused.code == 1
    assert "no model `gold`" in refused.err


def test_a_dry_run_fails_where_publishing_would(config: Path, tmp_path: Path):
    path = rules_file(tmp_path, ALL_LARGE)
    tried = llmrouter("rules", "apply", path, "--dry-run", "--base-version", "7", "--config", config)
    assert tried.code == 1
    assert "version" in tried.err


def test_a_configuration_is_a_rules_file_too(config: Path):
    """The examples of docs/routing.md are parts of a configuration, and people publish the file they have edited."""
    config.write_text(config.read_text().replace('tier_role = "small"', 'tier_role = "large"'))
    assert llmrouter("rules", "apply", config, "--config", config).code == 0
    assert {rule.tier_role for rule in store(config).current().rules} == {"large"}


def test_rules_of_the_file_that_are_not_in_force_are_pointed_out(config: Path):
    loaded = load(config)
    path = database_path(loaded.store.url)
    assert rules_drift(loaded, path) is None
    config.write_text(config.read_text().replace("priority = 10", "priority = 11"))
    assert "routing version 1 has others" in str(rules_drift(load(config), path))


def test_show_tells_of_any_version(config: Path, tmp_path: Path):
    llmrouter("rules", "apply", rules_file(tmp_path, ALL_LARGE), "--config", config)
    shown = llmrouter("rules", "show", "1", "--config", config)
    assert [line.split()[0] for line in shown.out.splitlines()] == ["RULE", "code", "rest"]
    assert "routing version 1" in shown.err
    assert llmrouter("rules", "show", "2", "--json", "--config", config).json["version"] == 2
    missing = llmrouter("rules", "show", "9", "--config", config)
    assert (missing.code, "no routing version 9" in missing.err) == (2, True)


def test_diff_tells_what_has_changed(config: Path, tmp_path: Path):
    rest = {"rule_id": "rest", "tier_role": "small", "weight": 2}
    llmrouter("rules", "apply", rules_file(tmp_path, ALL_LARGE, rest), "--config", config)
    told = llmrouter("rules", "diff", "1", "--config", config).out.splitlines()
    assert told[0] == "from version 1 to 2: added all; changed rest; removed code"
    assert [line.split()[:2] for line in told[2:]] == [["+", "all"], ["-", "code"], ["-", "rest"], ["+", "rest"]]
    as_json = llmrouter("rules", "diff", "2", "1", "--json", "--config", config).json
    assert as_json["changes"] == {"added": ["code"], "changed": ["rest"], "removed": ["all"]}
    assert llmrouter("rules", "diff", "1", "1", "--config", config).out == "from version 1 to 1: no rule changes\n"
