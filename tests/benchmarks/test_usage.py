"""The measurement of reports and retention, with few rows."""

from __future__ import annotations

import pytest

from benchmarks.usage.books import fill
from benchmarks.usage.cli import as_text, lines, main, same
from benchmarks.usage.steps import run


@pytest.mark.process
def test_every_step_does_its_part_of_the_work(tmp_path):
    found = lines(tmp_path / "llmrouter.db", 1000)
    rows = {what: figures.get("rows") for what, figures in found}
    assert rows == {
        "fill SQLite": 1100,
        "report of calls, SQLite": 1000,
        "report of attempts, SQLite": 1100,
        "report of one day, SQLite": 100,
        "prune a day, SQLite": 100,
        "archive a day": 100,
        "report of one day, Parquet": 100,
        "report of calls, Parquet": 1000,
        "report of attempts, Parquet": 1100,
        "drop ten days, Parquet": None,
    }
    assert same(found)
    assert as_text(found).count("\n") == len(found) + 1


def test_a_day_that_answers_otherwise_is_told():
    assert not same([("report of one day, SQLite", {"sum": "1"}), ("report of one day, Parquet", {"sum": "2"})])


@pytest.mark.process
def test_a_step_that_fails_says_why(tmp_path):
    fill(tmp_path / "l.db", 1000)
    with pytest.raises(RuntimeError, match=r"calls: .*StoreUnavailable"):
        run("calls", tmp_path / "none.db")


def test_too_few_rows_are_wrong_use(capsys):
    with pytest.raises(SystemExit):
        main(["--rows", "10"])
    assert "1000 or more" in capsys.readouterr().err
