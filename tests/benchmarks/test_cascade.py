"""What checks save by the benchmark: a check that tells saves, and its noisier beginning saves less."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cascade.cli import main
from benchmarks.cascade.replay import Replay, saving_at


def signals(sure: float, tokens: int) -> dict[str, float]:
    return {"tokens": tokens, "mean_logprob": sure, "min_logprob": 2 * sure, "first_logprob": sure}


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    dice = random.Random(3)
    path = tmp_path / "labels.jsonl"
    with path.open("w") as file:
        for number in range(200):
            sure = -2 * dice.random()
            blurred = min(sure + dice.gauss(0, 0.8), 0.0)
            row = {
                "id": f"q{number}",
                "prompt": f"Question {number}?",
                "group": f"g{number}",
                "scores": {"s": int(dice.random() < 1 / (1 + math.exp(-5 * sure - 4))), "l": int(dice.random() < 0.9)},
                "signals": {"s": signals(sure, 40)},
                "prefix_signals": {"s": signals(blurred, 24)},
            }
            file.write(json.dumps(row) + "\n")
    return path


def test_a_check_that_tells_saves_and_its_beginning_saves_less(labels: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("benchmarks.cascade.cli._BOOTSTRAP", 5)
    monkeypatch.setattr("benchmarks.cascade.replay._TRADEOFFS", (0.05, 0.2, 0.5, 1.0))
    out = tmp_path / "out.json"
    assert main([str(labels), "--models", "s,l", "--loss", "3", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    saved = {name: each[0] for name, each in found["saving_at_loss"]["3"].items() if name != "held_keeps"}
    assert saved["logprobs"] > saved["logprobs:held"] > saved["none"]
    assert saved["self_check"] == saved["none"]
    assert 0 < found["saving_at_loss"]["3"]["held_keeps"] < 1
    assert found["checks"]["logprobs"]["auc"] > 0.7


def test_labels_of_one_model_are_wrong_use(labels: Path, capsys):
    assert main([str(labels), "--models", "s,nobody"]) == 2
    assert "no label is of 'nobody'" in capsys.readouterr().err


def test_a_mix_of_two_points_saves_in_proportion():
    points = Replay(np.array([[1.0, 1.0], [0.8, 0.8]]), np.array([[1.0, 1.0], [0.2, 0.2]]))
    assert saving_at(points, 0.1) == pytest.approx(0.4)
    assert saving_at(points, 0.5) == pytest.approx(0.8)
