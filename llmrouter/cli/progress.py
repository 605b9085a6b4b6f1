"""Tells of work that takes a while, on standard error: lines in a log, one moving line on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self, TextIO

from llmrouter.backends.runners.events import RunnerEvent

__all__ = ["CallProgress", "RunnerProgress", "StageProgress"]

_STEP_PERCENT = 10
_ERASE_LINE = "\r\x1b[2K"


class RunnerProgress:
    """Called with each `RunnerEvent`; writes to standard error and never blocks on anything else."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._terminal = self._out.isatty()
        self._told: dict[str, tuple[str, int]] = {}
        self._moving = False

    def __call__(self, event: RunnerEvent) -> None:
        if event.kind == "downloading":
            self._download(event)
            return
        self._end_moving_line()
        self._out.write(f"{event.replica}: {event.message}\n")
        self._out.flush()

    def _download(self, event: RunnerEvent) -> None:
        percent = 100 * event.done_bytes // event.total_bytes if event.total_bytes else 0
        text = f"{event.replica}: {event.message}"
        if event.done_bytes:
            whole = f" of {event.total_bytes / 1e6:,.0f} MB ({percent} %)" if event.total_bytes else " MB"
            text += f" {event.done_bytes / 1e6:,.0f}{whole}"
        if self._terminal:
            self._out.write(_ERASE_LINE + text)
            self._moving = True
        elif self._is_news(event, percent):
            self._out.write(text + "\n")
        self._out.flush()

    def _is_news(self, event: RunnerEvent, percent: int) -> bool:
        """Without a terminal, each step of ten per cent is told once."""
        step = (event.message, percent // _STEP_PERCENT)
        if self._told.get(event.replica) == step:
            return False
        self._told[event.replica] = step
        return True

    def _end_moving_line(self) -> None:
        if self._moving:
            self._out.write("\n")
            self._moving = False


class CallProgress:
    """Tells how many of a known number of calls are done; on leaving it ends the moving line."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._terminal = self._out.isatty()
        self._told = -1
        self._moving = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._moving:
            self._out.write("\n")
            self._out.flush()

    def __call__(self, done: int, total: int, failed: int) -> None:
        """Told on a terminal each time, else at each step of ten per cent; writes and never blocks on anything else."""
        percent = 100 * done // total if total else 100
        step = percent // _STEP_PERCENT
        if not self._terminal and step == self._told:
            return
        self._told = step
        text = f"{done} of {total} calls ({percent} %)" + (f", {failed} failed" if failed else "")
        self._out.write(_ERASE_LINE + text if self._terminal else text + "\n")
        self._moving = self._terminal
        self._out.flush()


class StageProgress:
    """Tells what is being computed and how much of it is done, on a terminal alone: a log would only fill with it."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._terminal = self._out.isatty()
        self._moving = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Told as often as one likes; `total` is 0 where it is not known."""
        if not self._terminal:
            return
        share = f"{100 * done // total} %" if total else f"{done:,}"
        self._out.write(f"{_ERASE_LINE}{what}: {share}")
        self._out.flush()
        self._moving = True

    def pause(self) -> None:
        """Erase the moving line, so that something else may be written."""
        if self._moving:
            self._out.write(_ERASE_LINE)
            self._out.flush()
            self._moving = False
