"""The benchmark of decisions, on the generic artefact and a few prompts."""

import json

import pytest

from benchmarks.decision.cli import GOALS_US, as_text, lines, main, reached, texts_of
from benchmarks.decision.rival import DictScorer
from llmrouter.routing.artifact import generic_artefact

PROMPTS = [f"Which of these {at} gases is noble, and why? " * 15 for at in range(30)]


def test_both_lengths_are_timed_beside_the_dict() -> None:
    found = lines(generic_artefact(), PROMPTS, 1)
    assert found.keys() == GOALS_US.keys()
    for figures in found.values():
        assert 0 < figures["decision_us"] <= figures["decision_p99_us"]
        assert figures["ratio"] == pytest.approx(figures["decision_us"] / figures["dict_us"])
    assert as_text(found).count("\n") == 3


def test_prompts_are_near_the_length_or_joined_to_it() -> None:
    assert texts_of(PROMPTS, 660) == PROMPTS
    joined = texts_of(PROMPTS, 6000)
    assert joined
    assert all(len(text) == 6000 for text in joined)


def test_a_goal_is_missed_by_the_median_or_by_the_slowest() -> None:
    good = {"decision_us": 100.0, "decision_p99_us": 900.0}
    assert reached({660: good, 6000: good})
    assert not reached({660: good | {"decision_us": 151.0}, 6000: good})
    assert not reached({660: good, 6000: good | {"decision_p99_us": 1001.0}})


def test_the_rival_scores_known_words_and_passes_over_others() -> None:
    rival = DictScorer(["a noble gas", "a common gas"], 2)
    assert rival.score("noble gas") != [0.0, 0.0]
    assert rival.score("unknown words") == [0.0, 0.0]


def test_wrong_use_is_told_in_one_line(tmp_path, capsys) -> None:
    assert main(["--artefact", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.startswith("benchmark: ")
    labels = tmp_path / "labels.jsonl"
    labels.write_text(json.dumps({"id": "1"}) + "\n")
    assert main(["--labels", str(labels)]) == 2
