"""What runners do, in lines for a log and in one moving line for a terminal."""

from __future__ import annotations

import io

from llmrouter.backends.runners.events import RunnerEvent
from llmrouter.cli.progress import CallProgress, RunnerProgress, StageProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def download(done: int, total: int = 1000) -> RunnerEvent:
    return RunnerEvent("downloading", "small", "small", "m from the hub", None, done * 1_000_000, total * 1_000_000)


def test_a_log_gets_a_line_for_each_tenth_of_a_download():
    out = io.StringIO()
    tell = RunnerProgress(out)
    for done in range(0, 1001, 5):
        tell(download(done))
    lines = out.getvalue().splitlines()
    assert lines[0] == "small: m from the hub"
    assert lines[1] == "small: m from the hub 100 of 1,000 MB (10 %)"
    assert lines[-1] == "small: m from the hub 1,000 of 1,000 MB (100 %)"
    assert len(lines) == 11


def test_a_terminal_gets_one_line_that_moves_and_then_ends():
    out = Terminal()
    tell = RunnerProgress(out)
    tell(download(0))
    tell(download(500))
    tell(RunnerEvent("ready", "small", "small/0", "ready after 1.2 s", 1.2))
    assert out.getvalue().count("\n") == 2
    assert out.getvalue().endswith("(50 %)\nsmall/0: ready after 1.2 s\n")


def test_a_download_of_unknown_size_is_told_without_per_cent_of_nothing():
    out = io.StringIO()
    RunnerProgress(out)(download(3, 0))
    assert out.getvalue() == "small: m from the hub 3 MB\n"


def test_a_log_gets_a_line_for_each_tenth_of_the_calls():
    out = io.StringIO()
    with CallProgress(out) as tell:
        for done in range(101):
            tell(done, 100, done // 50)
    lines = out.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[0] == "0 of 100 calls (0 %)"
    assert lines[-1] == "100 of 100 calls (100 %), 2 failed"


def test_a_terminal_gets_one_line_of_calls_that_ends():
    out = Terminal()
    with CallProgress(out) as tell:
        tell(1, 2, 0)
        tell(2, 2, 0)
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().endswith("2 of 2 calls (100 %)\n")


def test_no_calls_at_all_are_all_done():
    out = io.StringIO()
    with CallProgress(out) as tell:
        tell(0, 0, 0)
    assert out.getvalue() == "0 of 0 calls (100 %)\n"


def test_a_terminal_shows_the_running_stage_and_nothing_once_it_has_ended():
    out = Terminal()
    with StageProgress(out) as tell:
        tell("reading labels.jsonl", 1500, 0)
        tell("small>large router", 50, 200)
        assert out.getvalue().endswith("\x1b[2Ksmall>large router: 25 %")
    assert "reading labels.jsonl: 1,500" in out.getvalue()
    assert out.getvalue().endswith("\r\x1b[2K")
    assert "\n" not in out.getvalue()


def test_a_log_is_not_told_of_stages():
    out = io.StringIO()
    with StageProgress(out) as tell:
        tell("predicting", 1, 2)
    assert out.getvalue() == ""
