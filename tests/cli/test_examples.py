"""The example configuration works as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import llmrouter

EXAMPLE = Path(__file__).parents[2] / "examples" / "llmrouter.toml"


def test_the_example_passes_the_check_once_its_variables_are_set(monkeypatch: pytest.MonkeyPatch):
    for name in ("LLMROUTER_SECRET", "VLLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, f"a value for {name.lower()}")
    checked = llmrouter("config", "check", "--config", EXAMPLE)
    assert (checked.code, checked.err) == (0, "")


def test_the_example_says_which_variable_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LLMROUTER_SECRET", "x" * 20)
    monkeypatch.setenv("VLLM_API_KEY", "x")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    checked = llmrouter("config", "check", "--config", EXAMPLE)
    assert checked.code == 2
    assert "pools.gpt-4o.api_key: environment variable OPENAI_API_KEY is not set" in checked.err
