"""Real answers of real models, from the example labels: those that are judged equal have equal scores."""

import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmrouter.routing.answer_kind import kind_of_answers
from llmrouter.routing.ask import Ask
from llmrouter.routing.evidence import AnswerKind
from llmrouter.routing.normalise import canonical

LABELS = Path(__file__).parents[2] / "examples" / "labels" / "train.jsonl.gz"
KINDS: dict[str, AnswerKind] = {"zeroeval_gsm8k": "number", "zeroeval_crux": "code", "mmlu_pro": "choice"}


@pytest.fixture(scope="module")
def rows() -> dict[str, list[dict[str, Any]]]:
    read = [json.loads(line) for line in gzip.decompress(LABELS.read_bytes()).splitlines()]
    return {source: [row for row in read if row["source"] == source][:600] for source in KINDS}


def pairs(row: dict[str, Any]) -> Iterator[tuple[str | None, str | None, bool, bool]]:
    """Of each two answers: their forms, whether they are written the same, and whether they scored the same."""
    answers = [(each, row["scores"][model]) for model, each in row["answers"].items() if each is not None]
    kind = kind_of_answers(Ask(row["prompt"]), [each for each, _ in answers])
    for (one, score), (other, second) in itertools.combinations(answers, 2):
        yield canonical(kind, one), canonical(kind, other), one == other, score == second


@pytest.mark.parametrize("source", KINDS)
def test_the_kind_is_known_by_the_answers(rows: dict[str, list[dict[str, Any]]], source: str):
    kinds = [kind_of_answers(Ask(row["prompt"]), list(row["answers"].values())) for row in rows[source]]
    assert kinds.count(KINDS[source]) >= 0.99 * len(kinds)


@pytest.mark.parametrize("source", KINDS)
def test_answers_judged_equal_have_equal_scores(rows: dict[str, list[dict[str, Any]]], source: str):
    agreeing = [same for row in rows[source] for one, other, _, same in pairs(row) if one is not None and one == other]
    assert len(agreeing) > 500
    assert agreeing.count(False) <= 0.001 * len(agreeing)


def test_more_answers_agree_than_are_written_the_same(rows: dict[str, list[dict[str, Any]]]):
    told = [each for row in rows["zeroeval_crux"] for each in pairs(row)]
    assert sum(one == other for one, other, _, _ in told) > 1.1 * sum(written for _, _, written, _ in told)
