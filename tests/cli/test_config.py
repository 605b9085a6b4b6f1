"""`llmrouter config`: a file's faults, and what it comes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmrouter.config import load
from llmrouter.gateway.build import prepare_store
from tests.cli.command import llmrouter, two_models
from tests.support import model, pool, tier

RULE = '[[routing.rules]]\nrule_id = "r"\n'


def values(*arguments: str | Path) -> dict[str, tuple[object, str]]:
    found = llmrouter("config", "explain", "--json", *arguments).json
    return {entry["key"]: (entry["value"], entry["source"]) for entry in found["values"]}


def test_a_good_file_is_ok(tmp_path: Path):
    checked = llmrouter("config", "check", "--config", two_models(tmp_path))
    assert (checked.code, checked.out, checked.err) == (0, f"{tmp_path}/llmrouter.toml: ok\n", "")


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ('model_id = "xl"', "rules[0].model_id: no model 'xl'"),
        ('tier_role = "small"\nmatch = { tenant = "nobody" }', "rules[0].match.tenant: no tenant 'nobody'"),
        ('tier_role = "small"\nmatch = { tier = "gold" }', "rules[0].match.tier: no tier 'gold'"),
        ('tier_role = "frontier"', "rules[0].tier_role: any tier has no frontier model"),
        ('tier_role = "small"\nmatch = { intnet = "code" }', "did you mean 'intent'"),
    ],
)
def test_g046_a_rule_for_what_does_not_exist_is_an_error_not_silence(tmp_path: Path, rule: str, complaint: str):
    checked = llmrouter("config", "check", "--config", two_models(tmp_path, RULE + rule))
    assert (checked.code, checked.out) == (2, "")
    assert complaint in checked.err


def test_g086_contradictory_settings_fail_the_check_and_keep_serve_from_starting(tmp_path: Path):
    path = two_models(tmp_path, "[tiers.slow]\nsmall = 's'\nretries = 0\nmax_wait_s = 9\n")
    for command in (("config", "check"), ("serve",)):
        refused = llmrouter(*command, "--config", path)
        assert refused.code == 2
        assert "tiers.slow.max_wait_s: retries = 0 allows no call after a wait" in refused.err
    assert not (tmp_path / "llmrouter.db").exists()


def test_everything_wrong_is_told_at_once(tmp_path: Path):
    path = two_models(
        tmp_path,
        '[server]\nlisten = "8080"\n[models.m]\nprice.table = "openai/no-such-model-of-theirs"\n',
        "[pools.m]\nmodel = 'm'\nurls = ['http://h/v1', 'http://h/v1/']\n",
        f'{RULE}model_id = "xl"\n',
    )
    found = llmrouter("config", "check", "--json", "--config", path)
    assert found.code == 2
    assert found.json["ok"] is False
    for part in ("pools.m.urls: ", "'8080' is not HOST:PORT", "models.m.price.table: ", "routing.rules[0].model_id: "):
        assert [line for line in found.json["errors"] if part in line], part
    assert found.json["warnings"] == [f"{path}: models.m: plays no role in any tier, so its pool gets no request"]


def test_a_file_that_cannot_be_read_is_reported_as_json_too(tmp_path: Path):
    found = llmrouter("config", "check", "--json", "--config", two_models(tmp_path, "[servr]\n"))
    assert found.code == 2
    assert found.json["errors"] == [f"{tmp_path}/llmrouter.toml: servr: unknown key; did you mean 'server'?"]


def test_warnings_do_not_fail_the_check(tmp_path: Path):
    checked = llmrouter(
        "config", "check", "--config", two_models(tmp_path, model("idle"), pool("idle", ["http://h/v1"]))
    )
    assert checked.code == 0
    assert "warning: " in checked.err


def test_rules_in_force_must_fit_a_changed_file(tmp_path: Path):
    """The gateway would not start with them, so the check says it before."""
    prepare_store(load(two_models(tmp_path, RULE + 'model_id = "l"')))
    path = two_models(tmp_path)
    path.write_text(path.read_text().replace('large = "l"', ""))
    checked = llmrouter("config", "check", "--config", path)
    assert checked.code == 2
    assert "llmrouter.db: routing version 1: rules[0].model_id: 'l' plays no role in any tier" in checked.err


def test_explain_says_where_each_value_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DRAIN_HOST", "10.0.0.9")
    monkeypatch.setenv("POOL_KEY", "sk-very-secret")
    path = two_models(
        tmp_path,
        "[server]\nworkers = 2\n",
        model("h"),
        '[pools.h]\nmodel = "h"\nurls = ["http://${DRAIN_HOST}/v1"]\n',
        'api_key = "${POOL_KEY}"\nheaders = { x-a = "plain" }',
    )
    found = values("--workers", "4", "--config", path)
    assert found["server.workers"] == (4, "flag --workers")
    assert found["server.listen"] == ("127.0.0.1:8080", "default")
    assert found["tiers.auto.small"] == ("s", "file")
    assert found["pools.h.urls"] == (["http://${DRAIN_HOST}/v1"], "environment DRAIN_HOST")
    assert found["pools.h.api_key"] == ("${POOL_KEY}", "environment POOL_KEY")
    assert found["pools.h.headers.x-a"] == ("***", "file")
    assert values("server", "--config", path)["server.workers"] == (2, "file")


def test_the_folder_of_an_artefact_is_taken_from_that_of_the_file(tmp_path: Path):
    path = two_models(
        tmp_path, tier("clever", small="s", large="l", extra='strategy = "router"\nartefact = "trained/r"')
    )
    assert load(path).tiers["clever"].artefact_folder == tmp_path / "trained" / "r"
    assert values("tiers.clever.artefact", "--config", path) == {
        "tiers.clever.artefact": (str(tmp_path / "trained" / "r"), "file")
    }


def test_explain_shows_what_is_derived(tmp_path: Path):
    found = values("--config", two_models(tmp_path))
    assert found["routing.reference_model"] == ("l", "derived: last role of the first tier")
    assert found["tiers.auto.default"] == ("small", "derived: first of fallback that the tier has")
    assert found["tiers.auto.chain.small"][0] == ["s", "l"]
    assert found["tiers.auto.chain.large"][0] == ["l"]
    assert found["pools.s.max_tokens_field"] == ("max_tokens", "derived: api vllm")
    assert "json_schema" in str(found["models.s.capabilities"][0])
    assert found["models.s.capabilities"][1] == "derived: what its engine is known to do"


def test_secrets_are_never_shown(tmp_path: Path):
    path = two_models(
        tmp_path,
        '[store]\nsecret = "pepper-pepper-pepper"\n',
        model("v"),
        '[pools.v]\nmodel = "v"\napi_key = "sk-literal"\n[pools.v.runner]\nkind = "vllm"\nmodel = "m"\n',
        'env = { TOKEN = "hf-literal" }\n',
        'extra_args = ["--api-key", "sk-flag", "--seed", "7", "--hf-token=sk-joined"]\n',
        model("u"),
        '[pools.u]\nmodel = "u"\nurls = ["https://user:sk-url@host/v1"]\n',
    )
    for form in ((), ("--json",)):
        shown = llmrouter("config", "explain", *form, "--config", path)
        assert shown.code == 0
        for secret in ("pepper-pepper", "sk-literal", "hf-literal", "sk-flag", "sk-joined", "sk-url"):
            assert secret not in shown.out
    assert values("pools.v.runner", "--config", path)["pools.v.runner.extra_args"][0] == [
        *("--api-key", "***", "--seed", "7", "--hf-token=***")
    ]


def test_a_key_selects_what_is_below_it(tmp_path: Path):
    path = two_models(tmp_path, RULE + 'tier_role = "small"')
    assert set(values("pools.s.breaker", "--config", path)) == {
        f"pools.s.breaker.{name}" for name in ("failures", "window_s", "share", "open_s", "max_open_s")
    }
    assert "routing.rules[0].weight" in values("routing.rules", "--config", path)
    refused = llmrouter("config", "explain", "pools.s.braker", "--config", path)
    assert refused.code == 2
    assert "did you mean 'pools.s.breaker'?" in refused.err


def test_explain_says_which_file_and_why_that_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = two_models(tmp_path)
    assert llmrouter("config", "explain", "--json", "--config", path).json["file_from"] == "flag --config"
    monkeypatch.setenv("LLMROUTER_CONFIG", str(path))
    assert llmrouter("config", "explain", "--json").json["file_from"] == "environment LLMROUTER_CONFIG"
    monkeypatch.delenv("LLMROUTER_CONFIG")
    monkeypatch.chdir(tmp_path)
    assert llmrouter("config", "explain", "--json").json["file_from"] == "default path"
