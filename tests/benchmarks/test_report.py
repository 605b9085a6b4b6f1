from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gateway.books import Booked, Calls
from benchmarks.gateway.measure import Idle
from benchmarks.gateway.record import Books, Run, read, warnings, write
from benchmarks.gateway.report import BEGIN, END, as_markdown, as_text, replace_block
from benchmarks.gateway.targets import Start
from tests.benchmarks.measurements import measured


def a_run(**changes: Any) -> Run:
    values: dict[str, Any] = {
        "date": "2026-12-01",
        "machine": "2 cores",
        "quick": False,
        "load": 0.1,
        "measured": [measured(target="nginx", cpu_s=0.05), measured(cpu_s=0.25), measured(cpu_s=0.35)],
        "idle": [Idle("gateway", 2.0, 90.0)],
        "starts": {"gateway": [Start(1.0, 0.8)]},
        "books": {"gateway": Books(Calls(issued=5, good=5), Booked(5, 5, 7500, 2000, 5), [])},
        **changes,
    }
    return Run(**values)


def line_of(text: str, words: str) -> str:
    return next(line for line in text.splitlines() if words in line)


def test_a_cell_has_median_spread_and_ratio_to_nginx():
    line = line_of(as_text(a_run()), "16 connections: CPU s/1K")
    assert "0.300 (0.250..0.350) x6" in line
    assert line.count(" x") == 1


def test_markdown_has_the_same_figures_as_a_table():
    line = line_of(as_markdown(a_run()), "16 connections: CPU s/1K")
    assert line.split("|")[2:4] == [" 0.050 ", " 0.300 (0.250..0.350) x6 "]


def test_verdicts_name_the_limit_as_it_was_set_and_as_it_applies_here():
    line = line_of(as_text(a_run()), "everything on, CPU s/1K at 16 connections")
    assert [word for word in line.split() if word[0].isdigit()] == ["16", "0.42", "0.467", "0.3"]
    assert line.endswith("met")
    assert "NOT MET" not in line


def test_wrong_books_are_told_loudly():
    wrong = Books(Calls(), Booked(1, 1, 0, 0, 1), ["1 rows for 0 calls"])
    assert "BOOKS WRONG (gateway): 1 rows for 0 calls" in as_text(a_run(books={"gateway": wrong}))


def test_a_quiet_machine_is_not_warned_of():
    assert warnings(a_run()) == []
    assert "WARNING" not in as_text(a_run())


def test_a_busy_machine_is_warned_of_before_and_during_the_run():
    assert "load average 0.90" in warnings(a_run(load=0.9))[0]
    busy = a_run(measured=[measured(others_cpu_s=1.0, wall_s=2.0)])
    assert "0.50 cores" in warnings(busy)[0]
    assert "host" in warnings(a_run(measured=[measured(stolen_s=1.0)]))[0]


def test_what_was_left_out_is_always_said():
    for text in (as_text(a_run()), as_markdown(a_run(notes=["nginx is not installed"]))):
        assert "No TLS" in text
    assert "NOTE: nginx is not installed." in as_text(a_run(notes=["nginx is not installed"]))


def test_only_the_block_between_the_marks_of_a_page_is_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        replace_block(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"


def test_a_page_without_marks_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("mine")
    with pytest.raises(ValueError, match="no block"):
        replace_block(page, "new")
    assert page.read_text() == "mine"


def test_a_run_comes_back_from_its_file_as_it_was(tmp_path):
    run = a_run(notes=["n"])
    write(run, tmp_path / "run.json")
    assert read(tmp_path / "run.json") == run


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"measured": 1}'])
def test_a_file_that_holds_no_run_is_refused(tmp_path, text):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"run\.json"):
        read(path)
