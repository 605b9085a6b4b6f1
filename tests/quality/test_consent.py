"""What the configuration says of samples, and what it refuses."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from llmrouter.config import Config, parse
from llmrouter.errors import ConfigError
from llmrouter.quality.samples import SamplePolicy
from tests.support import model, pool, tier

KEY = base64.b64encode(bytes(range(32))).decode()


def config(*more: str, **environ: str) -> Config:
    return parse(
        "\n".join([model("m"), pool("m", ["http://127.0.0.1:9/v1"]), tier("auto", small="m"), *more]), environ=environ
    )


def test_nothing_is_kept_unless_a_tenant_consents():
    assert SamplePolicy.of(config("[tenants.a]\n[tenants.b.samples]\nrate = 1")).terms == {}


def test_the_terms_are_those_of_the_tenant():
    policy = SamplePolicy.of(config("[tenants.a.samples]\nconsent = true\nrate = 0.5\nkeep_days = 3\nredact = []"))
    terms = policy.terms["a"]
    assert (terms.rate, terms.keep_days, terms.redactor.masks, terms.vault) == (0.5, 3, False, None)


def test_encryption_without_a_key_is_refused_when_the_file_is_checked():
    with pytest.raises(ConfigError, match=r"tenants\.a\.samples\.encrypt: set samples\.key"):
        config("[tenants.a.samples]\nconsent = true\nencrypt = true")


def test_only_the_tenant_that_asks_for_it_is_encrypted():
    consents = "[tenants.a.samples]\nconsent = true\nencrypt = true\n[tenants.b.samples]\nconsent = true"
    policy = SamplePolicy.of(config(consents, '[samples]\nkey = "${K}"', K=KEY))
    assert policy.terms["a"].vault is not None
    assert policy.terms["b"].vault is None


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("not base64!", "not base64"),
        (base64.b64encode(bytes(31)).decode(), "holds 31 bytes, must hold 32"),
        ("", "holds 0 bytes"),
    ],
)
@pytest.mark.parametrize("line", ['key = "{}"', 'old_keys = ["{}"]'])
def test_a_key_of_another_form_is_refused_without_being_shown(key: str, complaint: str, line: str):
    with pytest.raises(ConfigError, match=complaint) as refused:
        config(f"[samples]\n{line.format(key)}")
    assert not key or key not in refused.value.message


def test_a_key_of_another_type_is_not_shown():
    with pytest.raises(ConfigError) as refused:
        config("[samples]\nkey = 20261201")
    assert "20261201" not in refused.value.message


def test_an_unknown_kind_to_mask_is_refused():
    with pytest.raises(ConfigError, match=r"redact.*'emial'"):
        config('[tenants.a.samples]\nredact = ["emial"]')


def test_the_keys_are_not_in_what_config_explain_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from tests.cli.command import llmrouter, two_models

    monkeypatch.setenv("OLD", KEY)
    file = two_models(tmp_path, f'[samples]\nkey = "{KEY}"\nold_keys = ["{KEY}", "${{OLD}}"]')
    shown = llmrouter("config", "explain", "--config", file)
    assert shown.code == 0
    assert "samples.key" in shown.out
    assert "${OLD}" in shown.out
    assert KEY not in shown.out
