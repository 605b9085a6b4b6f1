from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.gateway.books import Booked, Calls
from benchmarks.gateway.cli import main, parse_arguments
from benchmarks.gateway.record import Books, Run, write
from tests.benchmarks.measurements import measured


def kept(tmp_path: Path, *, faults: Sequence[str] = ()) -> Path:
    books = {"gateway": Books(Calls(), Booked(0, 0, 0, 0, 0), list(faults))}
    run = Run("2026-12-01", "2 cores", quick=True, load=0.0, measured=[measured()], books=books)
    path = tmp_path / "run.json"
    write(run, path)
    return path


def test_the_plain_command_measures_the_full_set_against_three_targets():
    given = parse_arguments([])
    assert given.targets == ["nginx", "floor", "gateway"]
    assert given.plan.rounds == 3


def test_targets_and_cases_can_be_chosen():
    given = parse_arguments(["--quick", "--only", "json-1", "paced-20", "--targets", "gateway, gateway-2"])
    assert given.targets == ["gateway", "gateway-2"]
    assert [case.name for case in given.plan.cases] == ["json-1", "paced-20"]
    assert given.plan.rounds == 1


@pytest.mark.parametrize("wrong", [["--targets", "apache"], ["--only", "json-2"], ["--quick", "--only", "paced-120"]])
def test_wrong_use_ends_with_code_2_and_names_what_is_known(wrong, capsys):
    with pytest.raises(SystemExit) as left:
        parse_arguments(wrong)
    assert left.value.code == 2
    assert "known: " in capsys.readouterr().err


def test_a_kept_run_is_reported_again_without_measuring(tmp_path, capsys):
    assert main(["--report", str(kept(tmp_path))]) == 0
    assert "0.500" in capsys.readouterr().out


def test_wrong_books_fail_the_run(tmp_path):
    assert main(["--report", str(kept(tmp_path, faults=["a row is missing"]))]) == 1


def test_a_page_without_marks_or_a_file_without_a_run_ends_with_code_2(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("")
    assert main(["--report", str(kept(tmp_path)), "--markdown", str(page)]) == 2
    assert main(["--report", str(page)]) == 2
    assert "not the --json file of a run" in capsys.readouterr().err
