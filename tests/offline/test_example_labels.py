"""The labels in `examples/labels`: small, whole, with the rows and models that their README promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmrouter.offline.label_reader import read_labels
from llmrouter.offline.label_report import LabelReport
from llmrouter.offline.labels import LabelSet
from llmrouter.offline.roles import Roles
from llmrouter.quality.label_files import read_objects

FOLDER = Path(__file__).parents[2] / "examples" / "labels"
SOURCES = {"zeroeval_gsm8k", "zeroeval_crux", "mmlu_pro", "routellm_mmlu", "mmlu_redux_helm"}


def read(split: str) -> tuple[LabelSet, LabelReport]:
    told: list[LabelReport] = []
    labels = read_labels([FOLDER / f"{split}.jsonl.gz"], Roles.load(FOLDER / "roles.json"), tell=told.append)
    return labels, told[0]


@pytest.fixture(scope="module")
def sets() -> dict[str, tuple[LabelSet, LabelReport]]:
    return {split: read(split) for split in ("train", "dev")}


def test_every_row_is_used(sets):
    for _, report in sets.values():
        assert report.read == report.used
        assert not report.left_out


def test_only_sources_with_a_clear_licence_are_there(sets):
    for labels, _ in sets.values():
        assert set(labels.sources) == SOURCES


def test_each_file_holds_its_split_only(sets):
    for split, (labels, _) in sets.items():
        assert set(labels.splits) == {split}


def test_no_question_is_in_both_files(sets):
    assert not set(sets["train"][0].groups) & set(sets["dev"][0].groups)


def test_the_readme_says_how_many_rows_there_are(sets):
    readme = (FOLDER / "README.md").read_text()
    for source in SOURCES:
        found = re.search(rf"\| `{source}` \| ([\d,]+), ([\d,]+) \|", readme)
        assert found is not None
        said = [int(number.replace(",", "")) for number in found.groups()]
        assert said == [sets[split][1].sources[source].rows for split in ("train", "dev")]


def test_only_models_of_the_roles_are_in_the_files():
    roles = Roles.load(FOLDER / "roles.json")
    for _, row in read_objects(FOLDER / "dev.jsonl.gz"):
        assert isinstance(row, dict)
        assert set(row["scores"]) == set(roles.of(row["source"]).values())


def test_peers_come_with_the_answers_that_agreement_compares(sets):
    report = sets["train"][1]
    for source in ("zeroeval_gsm8k", "zeroeval_crux", "mmlu_pro"):
        roles = report.sources[source].roles
        assert all(roles[role].answers > 0.7 * roles[role].labels for role in ("small", "large", "peer1", "peer2"))


def test_the_files_stay_small():
    assert sum(file.stat().st_size for file in FOLDER.glob("*.gz")) < 2_000_000
