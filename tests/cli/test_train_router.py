"""`llmrouter train-router`: what is wrong is told before anything is trained, and what little labels promise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import llmrouter


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """As many as can be trained on."""
    rows = (
        {"id": f"q{at}", "prompt": f"What is {at} times {at}?", "scores": {"s": at % 2, "l": 1}} for at in range(60)
    )
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def refusal(labels: Path, *more: str | Path) -> str:
    """What is said of it; nothing was trained."""
    done = llmrouter("train-router", labels, "--models", "s,l", *more)
    assert done.code == 2
    assert "trying" not in done.err
    assert "training" not in done.err
    return done.err


def test_a_folder_of_something_else_is_refused(tmp_path: Path, labels: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept.txt").write_text("kept")
    assert "is no artefact" in refusal(labels, "--out", tmp_path / "mine")
    assert "is no folder" in refusal(labels, "--out", tmp_path / "mine" / "kept.txt" / "deeper")


def test_a_mix_of_unknown_sources_is_refused(tmp_path: Path, labels: Path) -> None:
    told = refusal(labels, "--out", tmp_path / "router", "--weights", "sums=1,nosuch=1")
    assert "--weights names nosuch" in told


def test_a_seed_that_nothing_can_be_trained_with_is_refused(tmp_path: Path, labels: Path) -> None:
    assert "--seed" in refusal(labels, "--out", tmp_path / "router", "--seed", str(2**32))


def test_publishing_without_a_configuration_is_refused(tmp_path: Path, labels: Path) -> None:
    told = refusal(labels, "--out", tmp_path / "router", "--publish", "--config", tmp_path / "none.toml")
    assert "none.toml" in told


def test_few_labels_promise_no_more_than_the_reference(tmp_path: Path, labels: Path) -> None:
    """The certificate of always calling the reference holds, and saves nothing; it says what more labels would take."""
    command = ("train-router", labels, "--models", "s,l", "--out", tmp_path / "router", "--json")
    told = llmrouter(*command, "--max-quality-loss", "1").json
    assert told["point"]["chosen"] == 0
    guarantee = told["guarantee"]
    assert (guarantee["large_share"], guarantee["cost_saving"], guarantee["point"]) == (1.0, 0.0, 0)
    assert guarantee["max_quality_loss"] == pytest.approx(1.0)
    assert guarantee["confidence"] == pytest.approx(0.95)
    assert 0 <= guarantee["broken_promise_estimate"] <= 1
    assert (tmp_path / "router" / "manifest.json").is_file()
    for name in ("apgr", "cpt50", "cpt80", "cpt95", "n_train", "n_cal", "n_test", "decision_us"):
        assert name in told
