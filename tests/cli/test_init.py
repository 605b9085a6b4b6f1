"""`llmrouter init` writes a file that works, and that names every setting with its default."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from llmrouter import config as configuration
from llmrouter.cli.effective import effective_values
from llmrouter.cli.init import template
from llmrouter.config import Config, LlamaCppRunner, parse
from llmrouter.config_checks import contradictions, oddities
from tests.cli.command import llmrouter

_VARIABLES = re.findall(r"\$\{(\w+)\}", template())
_ENVIRON = dict.fromkeys(_VARIABLES, base64.b64encode(bytes(range(32))).decode())


def uncommented() -> str:
    """The template with every commented setting and example in use."""
    return re.sub(r"(?m)^#(?=[^ \n])", "", template())


def test_the_file_passes_its_own_check(tmp_path: Path):
    path = tmp_path / "new.toml"
    assert llmrouter("init", path).code == 0
    checked = llmrouter("config", "check", "--config", path)
    assert (checked.code, checked.err) == (0, "")


def test_it_uses_two_real_models_on_this_machine_and_needs_no_variable():
    config = parse(template(), environ={})
    runners = {pool_id: pool.runner for pool_id, pool in config.pools.items()}
    assert all(isinstance(runner, LlamaCppRunner) for runner in runners.values())
    assert {pool_id: runner.model for pool_id, runner in runners.items() if runner is not None} == {
        "small": "smollm2-135m",
        "large": "qwen2.5-coder-0.5b",
    }
    assert contradictions(config) == oddities(config) == []


def test_every_commented_setting_and_example_can_be_used_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in _ENVIRON.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "all.toml"
    path.write_text(uncommented())
    checked = llmrouter("config", "check", "--config", path, "--json")
    assert checked.json["errors"] == []


def test_commented_settings_show_their_defaults():
    """Where a setting of the working part is commented out, removing the `#` changes nothing."""
    plain = {value.key: value.value for value in effective_values(parse(template()), {}, {})}
    whole = {value.key: value.value for value in effective_values(parse(uncommented(), environ=_ENVIRON), {}, {})}
    changed = {key for key, value in plain.items() if whole.get(key) != value}
    no_default = {
        *("admin.listen", "store.secret", "models.smollm2-135m.max_output_tokens"),
        *("tiers.auto.frontier", "tiers.auto.fallback", "routing.rules[0].weight"),
        *("store.ledger_url", "store.limits_url", "limits.reserve_bytes_per_token", "ledger.keep_days", "groups"),
        "samples.key",
    }
    chains = {key for key in changed if ".chain." in key}
    assert changed - chains <= no_default


def models_of(section: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield section
    for name in section.model_json_schema().get("$defs", {}):
        yield getattr(configuration, name)


@pytest.mark.parametrize(
    ("section", "key"),
    sorted({(section.__name__, key) for section in models_of(Config) for key in section.model_fields}),
)
def test_every_key_of_every_section_is_in_the_file(section: str, key: str):
    text = template()
    named = re.search(rf"(?m)^#?(?:price\.)?{key} = |^#?\[+(?:[^]\n]*\.)?{key}(?:\.[^]\n]*)?\]+", text)
    assert named, f"{section}.{key} is not in init.toml"


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path):
    path = tmp_path / "llmrouter.toml"
    path.write_text("mine")
    refused = llmrouter("init", tmp_path)
    assert (refused.code, path.read_text()) == (2, "mine")
    assert "--force" in refused.err
    assert llmrouter("init", tmp_path, "--force").code == 0
    assert path.read_text() == template()


def test_a_folder_that_is_not_there_is_said_to_be_missing(tmp_path: Path):
    refused = llmrouter("init", tmp_path / "nowhere" / "llmrouter.toml")
    assert refused.code == 2
    assert "No such file or directory" in refused.err
