"""The benchmark of certificates, on a few hundred made-up labels."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.certificate.cli import as_text, main
from benchmarks.certificate.scores import losses_by_share, out_of_fold


def labels_file(folder: Path, n: int = 400) -> Path:
    """Short asks are easy for both models; long ones are hard for the small one."""
    rng = np.random.default_rng(0)
    rows = []
    for row in range(n):
        hard = row % 2 == 1
        small = int(rng.random() > (0.4 if hard else 0.02))
        large = int(rng.random() > 0.02)
        prompt = f"{'prove the theorem' if hard else 'name the capital'} of item {row}"
        rows.append({"id": str(row), "source": "made", "prompt": prompt, "scores": {"s": small, "l": large}})
    path = folder / "made.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_it_counts_broken_promises_of_both_tests(tmp_path, capsys):
    kept = tmp_path / "figures.json"
    arguments = ["--models", "s,l", "--rows", "200", "--draws", "20", "--loss", "5", "--json", str(kept)]
    assert main([str(labels_file(tmp_path)), *arguments]) in (0, 1)
    figures = json.loads(kept.read_text())
    assert [(line["test"], line["again"]) for line in figures] == [
        ("exact", False),
        ("betting", False),
        ("exact", True),
        ("betting", True),
    ]
    assert all(0 <= line["broken"] <= 1 and line["saving"] <= 1 for line in figures)
    assert figures[0]["saving"] > 0.2
    assert capsys.readouterr().out.strip() == as_text(figures)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["--rows", "1000"], "there are only 400 rows"),
        (["--between", "small,frontier"], "the labels have no frontier"),
        (["--between", "small"], "give two roles"),
    ],
)
def test_wrong_use_is_told_in_one_line(tmp_path, capsys, extra, says):
    assert main([str(labels_file(tmp_path)), "--models", "s,l", *extra]) == 2
    assert says in capsys.readouterr().err


def test_a_row_is_scored_by_a_model_that_has_not_seen_its_group():
    """Groups that share no word with the others cannot be told apart, however often they repeat."""
    prompts = ["alpha alpha"] * 10 + ["beta beta"] * 10 + ["gamma"] * 10 + ["delta"] * 10 + ["epsilon"] * 10
    gain = np.array([1.0] * 10 + [0.0] * 40)
    groups = [prompt.split()[0] for prompt in prompts]
    scores = out_of_fold(prompts, gain, groups)
    assert scores[:10] == pytest.approx(scores[0])
    assert scores[0] < 0.5


def test_policies_go_from_the_strong_model_alone_to_the_weak_one():
    losses = losses_by_share(np.array([0.1, 0.9, 0.5, 0.3]), np.array([1.0, -1.0, 0.0, 1.0]), 2)
    assert losses.tolist() == [[0, 0, 0, 0], [1.0, 0, 0, 1.0], [1.0, -1.0, 0, 1.0]]
