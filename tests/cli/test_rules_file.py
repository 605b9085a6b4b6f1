"""Files of rules: TOML or JSON, by hand or exported."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from llmrouter.cli.rules_file import read_rules_file
from llmrouter.errors import UsageError
from llmrouter.types import Rule

TOML = """
[[rules]]
rule_id = "code"
match = { intent = "code" }
tier_role = "large"
priority = 10
"""
CODE = Rule("code", {"intent": "code"}, tier_role="large", priority=10)
AS_JSON = {"rule_id": "code", "match": {"intent": "code"}, "tier_role": "large", "priority": 10}


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rules.toml", TOML),
        ("rules.json", json.dumps({"rules": [AS_JSON]})),
        ("rules.json", json.dumps([AS_JSON])),
        ("rules", TOML),
        ("rules", json.dumps([AS_JSON])),
    ],
)
def test_the_same_rules_in_every_form(tmp_path: Path, name: str, text: str):
    found = read_rules_file(written(tmp_path, name, text))
    assert found.rules == (CODE,)
    assert (found.base_version, found.note) == (None, "")


@pytest.mark.parametrize("text", [TOML, json.dumps({"rules": [AS_JSON]})])
def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert read_rules_file(Path("-")).rules == (CODE,)


def test_the_body_of_the_admin_api_brings_its_base_and_note(tmp_path: Path):
    body = {"base_version": 7, "rules": [AS_JSON], "note": "why"}
    found = read_rules_file(written(tmp_path, "body.json", json.dumps(body)))
    assert (found.base_version, found.note) == (7, "why")


def test_an_exported_version_is_what_the_rules_are_based_on(tmp_path: Path):
    exported = {"version": 8, "base_version": 7, "note": "old", "author": "x", "rules": [AS_JSON], "created_at": "t"}
    found = read_rules_file(written(tmp_path, "rules.json", json.dumps(exported)))
    assert (found.base_version, found.note) == (8, "")


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("rules.json", "{", "neither JSON nor TOML"),
        ("rules.toml", "[[rules]", "neither JSON nor TOML"),
        ("rules.toml", "a = 1", "holds no rules"),
        ("rules.json", "3", "neither JSON nor TOML|holds no rules"),
        ("rules.json", '{"rules": [], "bese_version": 1}', "unknown key 'bese_version'; did you mean 'base_version'"),
        ("rules.json", '{"rules": [], "base_version": "7"}', "base_version must be a whole number"),
        ("rules.json", '{"rules": 3}', "rules: "),
        ("rules.json", '[{"rule_id": "a"}]', r"rules\[0\]: give exactly one of model_id, tier_role"),
        (
            "rules.json",
            '[{"rule_id": "a", "tier_role": "small", "wieght": 1}]',
            "wieght: unknown key; did you mean 'weight'",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, text: str, complaint: str):
    with pytest.raises(UsageError, match=complaint):
        read_rules_file(written(tmp_path, name, text))


def test_every_malformed_rule_is_named_at_once(tmp_path: Path):
    rules = '[{"tier_role": "small"}, {"rule_id": "b", "tier_role": "tiny"}, {"rule_id": "c", "tier_role": "small"}]'
    with pytest.raises(UsageError) as caught:
        read_rules_file(written(tmp_path, "rules.json", rules))
    assert [line.split(": ")[1] for line in caught.value.message.splitlines()] == [
        "rules[0].rule_id",
        "rules[1].tier_role",
    ]


def test_a_file_that_cannot_be_read_is_a_wrong_use(tmp_path: Path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_rules_file(tmp_path / "missing.json")
    (tmp_path / "latin.json").write_bytes(b'[{"rule_id": "caf\xe9"}]')
    with pytest.raises(UsageError, match="cannot be read"):
        read_rules_file(tmp_path / "latin.json")
