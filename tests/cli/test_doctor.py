"""`llmrouter doctor` as a whole: what it looks at, what it makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmrouter.testing import Answer, FakeBackend, HttpError
from tests.cli.command import Ran, llmrouter, two_models
from tests.support import model

GOOD = Answer("{}")


def served(folder: Path, url: str, *extra: str) -> Path:
    path = two_models(folder, *extra, url=url)
    path.write_text(path.read_text().replace("probe_interval_s", 'upstream_model = "fake-model"\nprobe_interval_s'))
    return path


def found(ran: Ran) -> dict[tuple[str, str], str]:
    return {(each["subject"], each["aspect"]): each["status"] for each in ran.json["findings"]}


def test_all_is_well_when_everything_answers(tmp_path: Path):
    with FakeBackend.in_thread(default=GOOD) as engine:
        path = served(tmp_path, engine.url)
        llmrouter("keys", "create", "--tenant", "default", "--config", path)
        text = llmrouter("doctor", "--config", path)
        as_json = llmrouter("doctor", "--json", "--config", path)
    assert (text.code, as_json.code) == (0, 0)
    assert text.out.splitlines()[-1].endswith("0 failed")
    assert as_json.json["ok"] is True
    checks = found(as_json)
    for subject, aspect in [
        *(("machine", "clock"), ("machine", "open files"), ("machine", "disk"), ("configuration", "secrets")),
        *(("store", "writable"), ("store", "schema"), ("store", "keys"), ("store", "rules")),
        *(("s/0", "answers"), ("s/0", "stream"), ("l/0", "answers"), ("l/0", "priority")),
    ]:
        assert (subject, aspect) in checks


def test_a_replica_that_is_down_is_exit_code_1(tmp_path: Path):
    checked = llmrouter("doctor", "--json", "--config", served(tmp_path, "http://127.0.0.1:9/v1"))
    assert checked.code == 1
    assert found(checked)["s/0", "reachable"] == "fail"
    assert checked.json["counts"]["fail"] == 2


def test_warnings_alone_are_exit_code_0(tmp_path: Path):
    """No key exists yet and the engine reports no usage: both are warned of."""
    with FakeBackend.in_thread(default=Answer("{}", usage={})) as engine:
        path = served(tmp_path, engine.url)
        llmrouter("rules", "apply", "/dev/null", "--config", path)
        checked = llmrouter("doctor", "--json", "--config", path)
    assert (checked.code, found(checked)["s/0", "answers"]) == (0, "warning")


def test_only_the_named_pools_are_asked(tmp_path: Path):
    with FakeBackend.in_thread(default=GOOD) as engine:
        path = served(tmp_path, engine.url)
        checked = found(llmrouter("doctor", "--pool", "l", "--json", "--config", path))
        refused = llmrouter("doctor", "--pool", "xl", "--config", path)
    assert ("l/0", "answers") in checked
    assert ("s/0", "answers") not in checked
    assert (refused.code, "no pool 'xl'" in refused.err) == (2, True)


def test_pools_with_a_runner_or_an_echo_are_told_of_without_a_call(tmp_path: Path):
    path = tmp_path / "llmrouter.toml"
    path.write_text(
        model("a")
        + model("b")
        + '[pools.a]\nmodel = "a"\napi = "echo"\n'
        + '[pools.b]\nmodel = "b"\n[pools.b.runner]\nkind = "llama_cpp"\nmodel = "/no/such.gguf"\n'
        + '[tiers.auto]\nsmall = "a"\nlarge = "b"\n'
    )
    checked = llmrouter("doctor", "--json", "--config", path)
    assert checked.code == 1
    assert found(checked)["a", "answers"] == "ok"
    assert found(checked)["b", "model file"] == "fail"


def test_every_missing_secret_is_told_and_nothing_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SMALL_KEY", raising=False)
    monkeypatch.delenv("LARGE_KEY", raising=False)
    path = served(tmp_path, "http://127.0.0.1:9/v1")
    for name, variable in (("s", "SMALL_KEY"), ("l", "LARGE_KEY")):
        path.write_text(path.read_text().replace(f"[pools.{name}]", f'[pools.{name}]\napi_key = "${{{variable}}}"'))
    checked = llmrouter("doctor", "--json", "--config", path)
    assert checked.code == 1
    assert [each["message"] for each in checked.json["findings"] if each["status"] == "fail"] == [
        "environment variable SMALL_KEY is not set",
        "environment variable LARGE_KEY is not set",
    ]


def test_a_file_that_is_wrong_is_exit_code_2(tmp_path: Path):
    broken = llmrouter("doctor", "--config", served(tmp_path, "http://127.0.0.1:9/v1", "[servr]\n"))
    assert broken.code == 2
    assert "servr: unknown key" in broken.err
    (tmp_path / "llmrouter.toml").write_text("[server")
    assert "not valid TOML" in llmrouter("doctor", "--config", tmp_path / "llmrouter.toml").err


def test_contradictory_settings_fail(tmp_path: Path):
    with FakeBackend.in_thread(default=GOOD) as engine:
        path = served(tmp_path, engine.url, '[tiers.slow]\nsmall = "s"\nretries = 0\nmax_wait_s = 1\n')
        checked = llmrouter("doctor", "--json", "--config", path)
    assert (checked.code, found(checked)["configuration", "contradiction"]) == (1, "fail")


def test_a_running_gateway_is_asked_for_each_tier_of_the_key(tmp_path: Path):
    """The fake engine stands in for the gateway: it has the same paths."""
    with FakeBackend.in_thread(default=GOOD, models=("auto", "premium")) as gateway:
        for path in ("/live", "/ready"):
            gateway.routes[path] = gateway_health(200)
        config = served(tmp_path, gateway.url)
        asked = ("doctor", "--pool", "s", "--gateway", gateway.root_url, "--json", "--config", config)
        with_key = found(llmrouter(*asked, "--key", "lr-1"))
        gateway.routes["/ready"] = gateway_health(503)
        without = llmrouter(*asked)
    assert with_key["gateway", "tier auto"] == with_key["gateway", "tier premium"] == "ok"
    assert found(without)["gateway", "ready"] == "fail"
    assert found(without)["gateway", "tiers"] == "info"
    assert without.code == 1


def gateway_health(status: int) -> HttpError:
    return HttpError(status, "no pool of tier auto has a usable replica")


def test_a_gateway_that_is_not_there_fails(tmp_path: Path):
    with FakeBackend.in_thread(default=GOOD) as engine:
        path = served(tmp_path, engine.url)
        checked = llmrouter("doctor", "--gateway", "http://127.0.0.1:9", "--json", "--config", path)
    assert found(checked)["gateway", "reachable"] == "fail"
