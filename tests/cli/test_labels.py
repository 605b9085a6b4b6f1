"""`llmrouter labels`: in from files, out to files, listed and counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import llmrouter, two_models

Q = {"id": "q", "prompt": "1+1?", "scores": {"s": 0, "l": 1}}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return two_models(tmp_path)


def written(folder: Path, *rows: Any, name: str = "in.jsonl") -> Path:
    path = folder / name
    text = "".join(f"{json.dumps(row) if not isinstance(row, str) else row}\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def imported(config: Path, *arguments: str | Path) -> Any:
    return llmrouter("labels", "import", *arguments, "--config", config)


def exported(config: Path, *arguments: str) -> list[Any]:
    out = config.parent / "out.jsonl"
    assert llmrouter("labels", "export", "--out", out, *arguments, "--config", config).code == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_import_makes_the_store_and_export_gives_back_what_came(config: Path, tmp_path: Path):
    done = imported(config, written(tmp_path, Q, name="in.jsonl.gz"))
    assert (done.code, done.out) == (0, "")
    assert "in.jsonl.gz: 1 objects; 2 labels new, 0 known already, 0 objects refused" in done.err
    assert exported(config) == [Q]


def test_import_tells_faults_by_line_and_exits_1_with_the_others_taken(config: Path, tmp_path: Path):
    done = imported(config, written(tmp_path, Q, "{broken", {"id": "r", "scores": {"s": 2}}))
    assert done.code == 1
    assert "in.jsonl: line 2: is not valid JSON" in done.err
    assert "in.jsonl: line 3: scores.s: must be a number from 0 to 1, not 2" in done.err
    assert "2 labels new, 0 known already, 2 objects refused" in done.err
    assert exported(config) == [Q]


def test_import_does_not_drown_the_reader_in_complaints(config: Path, tmp_path: Path):
    done = imported(config, written(tmp_path, *["{"] * 50))
    assert done.err.count("is not valid JSON") == 20
    assert "and 30 more" in done.err


def test_import_reports_as_json(config: Path, tmp_path: Path):
    path = written(tmp_path, Q, Q)
    done = imported(config, path, "--json")
    assert done.json == {
        "dry_run": False,
        "files": {str(path): {"objects": 2, "new": 2, "known": 2, "refused": 0}},
    }


def test_a_dry_run_counts_and_writes_nothing(config: Path, tmp_path: Path):
    imported(config, written(tmp_path, Q))
    done = imported(config, written(tmp_path, Q, {**Q, "id": "r"}), "--dry-run")
    assert "2 labels would be new, 2 known already, 0 objects would be refused" in done.err
    assert exported(config) == [Q]


def test_a_dry_run_without_a_store_says_so_and_makes_none(config: Path, tmp_path: Path):
    done = imported(config, written(tmp_path, Q), "--dry-run")
    assert done.code == 2
    assert "there is no store at" in done.err
    assert not (tmp_path / "llmrouter.db").exists()


def test_an_empty_file_is_warned_of(config: Path, tmp_path: Path):
    done = imported(config, written(tmp_path))
    assert "in.jsonl: holds no labels" in done.err


def test_kind_and_judge_are_for_labels_that_do_not_say(config: Path, tmp_path: Path):
    imported(config, written(tmp_path, Q), "--kind", "human", "--judge", "alice")
    assert exported(config) == [{**Q, "kind": "human", "judge": "alice"}]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("import", "none.jsonl"), "none.jsonl: no such file"),
        (("import", "none.jsonl", "--kind", "guess"), "--kind 'guess' is none of eval, shadow, human, import"),
        (("list", "--since", "soon"), "--since 'soon' is neither a time such as 7d or 12h nor an ISO date"),
        (("list", "--since", "0001-01-01T00:00+14:00"), "is neither a time such as 7d or 12h nor an ISO date"),
        (("export", "--out", "."), ".: cannot be written: it is a folder"),
        (("export", "--out", "x.parquet"), "labels are written as .jsonl or .jsonl.gz, not as Parquet"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    config: Path, tmp_path: Path, arguments: tuple[str, ...], complaint: str
):
    imported(config, written(tmp_path, Q))
    done = llmrouter("labels", *arguments, "--config", config)
    assert done.code == 2
    assert complaint in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("command", [("list",), ("stats",), ("export", "--out", "-")])
def test_without_a_store_the_others_say_how_to_make_one(config: Path, command: tuple[str, ...]):
    done = llmrouter("labels", *command, "--config", config)
    assert done.code == 2
    assert "`llmrouter serve` or `llmrouter labels import` makes one" in done.err


def test_a_store_of_an_older_version_is_named(config: Path, tmp_path: Path):
    from llmrouter.database import downgrade, migrate

    migrate(tmp_path / "llmrouter.db")
    downgrade(tmp_path / "llmrouter.db", "0002_reservations_limits")
    done = llmrouter("labels", "list", "--config", config)
    assert done.code == 2
    assert "was made by an older llmrouter" in done.err


def test_export_takes_filters(config: Path, tmp_path: Path):
    imported(config, written(tmp_path, {**Q, "judged_at": "2026-11-01"}, {**Q, "id": "r", "kind": "human"}))
    assert [row["id"] for row in exported(config, "--kind", "human")] == ["r"]
    assert [row["scores"] for row in exported(config, "--model", "l")] == [{"l": 1}, {"l": 1}]
    assert [row["id"] for row in exported(config, "--since", "1h")] == ["r"]
    assert [row["id"] for row in exported(config, "--since", "2026-11-01")] == ["q", "r"]


def test_list_and_stats_show_what_is_there(config: Path, tmp_path: Path):
    imported(config, written(tmp_path, {**Q, "judge": "exact"}))
    listed = llmrouter("labels", "list", "--config", config, "--json").json["labels"]
    assert [(each["item_id"], each["model_id"], each["score"], each["judge"]) for each in listed] == [
        ("q", "l", 1.0, "exact"),
        ("q", "s", 0.0, "exact"),
    ]
    counted = llmrouter("labels", "stats", "--config", config, "--json").json["models"]
    assert [(each["model_id"], each["labels"], each["mean_score"]) for each in counted] == [
        ("l", 1, 1.0),
        ("s", 1, 0.0),
    ]
    assert "exact" in llmrouter("labels", "list", "--config", config).out
    assert "0.0000" in llmrouter("labels", "stats", "--config", config).out
