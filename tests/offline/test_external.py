"""Another router's decisions, as they come in a file."""

from pathlib import Path

import numpy as np
import pytest

from llmrouter.errors import UsageError
from llmrouter.offline.external import External, parse_external, read_external
from tests.offline.label_rows import labels_of

LABELS = labels_of({"small": [0, 1, 1], "large": [1, 1, 0]}, models={"made": {"small": "s-8b", "large": "l-70b"}})
ROLES = ("small", "large")


def read(folder: Path, text: str) -> External:
    path = folder / "decisions.csv"
    path.write_text(text, encoding="utf-8")
    return read_external("peer", path, LABELS, ROLES)


def test_models_and_roles_are_understood(tmp_path):
    found = read(tmp_path, "id,model\nq0,l-70b\nq1,small\nq2,s-8b\n")
    assert found.choice.tolist() == [1, 0, 0]
    assert (found.unknown, found.missing, found.score) == (0, 0, None)
    assert found.notes() == []


def test_ids_that_are_unknown_or_missing_are_counted_and_told(tmp_path):
    found = read(tmp_path, "\ufeffID, Decision\nq0,large\nz9,large\nz8,gpt\n")
    assert found.choice.tolist() == [1, -1, -1]
    assert found.decided.tolist() == [True, False, False]
    assert found.notes() == [
        "peer says nothing of 2 of 3 labels; it is measured on the others",
        "peer has 2 lines whose id no label has; they are left out",
    ]


def test_scores_are_read_beside_decisions_or_alone(tmp_path):
    both = read(tmp_path, "id,model,score\nq0,large,0.9\nq1,small,0.2\n")
    assert both.score is not None
    assert both.score[:2].tolist() == [0.9, 0.2]
    assert np.isnan(both.score[2])
    alone = read(tmp_path, "id,score\nq0,0.9\nq1,0.2\nq2,-3\n")
    assert (alone.roles, alone.missing) == ((), 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "needs a heading"),
        ("id\nq0\n", "needs a heading"),
        ("name,model\nq0,large\n", "needs a heading"),
        ("id,model\nq0,gpt-9\n", r"line 2: 'gpt-9' is neither a role nor a model of made"),
        ("id,model\nq0,large\nq0,small\n", r"line 3: the id 'q0' stands there twice"),
        ("id,model,score\nq0,large,much\n", r"line 2: the score 'much' is no number"),
        ("id,model,score\nq0,large,inf\n", r"line 2: the score 'inf' is no number"),
        ("id,model\nx,large\n", r"none of its 1 ids is that of a label; labels have ids like 'q0'"),
        ("id,model\nq0\n", r"line 2: '' is neither"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_the_line(tmp_path, text, says):
    with pytest.raises(UsageError, match=says):
        read(tmp_path, text)


def test_many_faults_are_told_as_a_few_and_a_count(tmp_path):
    many = labels_of({"small": [0] * 9, "large": [1] * 9})
    path = tmp_path / "decisions.csv"
    path.write_text("id,role\n" + "".join(f"q{row},huge\n" for row in range(9)))
    with pytest.raises(UsageError, match="and 4 more"):
        read_external("peer", path, many, ROLES)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.csv: cannot be read: No such file"):
        read_external("peer", tmp_path / "none.csv", LABELS, ROLES)
    (tmp_path / "binary.csv").write_bytes(b"id,model\n\xff\xfe,large\n")
    with pytest.raises(UsageError, match="not a CSV file in UTF-8"):
        read_external("peer", tmp_path / "binary.csv", LABELS, ROLES)


def test_an_option_is_a_name_and_a_file():
    assert parse_external("nadir=out/x=1.csv") == ("nadir", Path("out/x=1.csv"))
    for text in ("nadir", "=x.csv", "nadir="):
        with pytest.raises(UsageError, match="NAME=FILE"):
            parse_external(text)
