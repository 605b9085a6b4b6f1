"""Shows what the supervisor does while somebody waits: a bar for each engine, lines where there is no terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from llmrouter.backends.runners.events import RunnerEvent
from llmrouter.cli.output import say
from llmrouter.cli.progress import RunnerProgress

__all__ = ["Watch"]

_SHOWN_LINES = 8


class Watch:
    """Told of the supervisor's events; writes to standard error.

    Between `open` and `close` engines are being fetched and started; later only what goes wrong is told.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = sys.stderr if out is None else out
        self._bars: Progress | None = None
        self._rows: dict[str, TaskID] = {}
        self._lines = RunnerProgress(self._out)
        self._starting = False
        self.serving = False
        """The report is done and somebody uses the gateway: tell how it ends."""
        self.faults: list[str] = []
        """Ends of engines that nobody asked for, with the last lines of their logs."""

    def open(self) -> None:
        """Begin to show progress."""
        self._starting = True
        if self._out.isatty():
            columns = (TextColumn("  {task.fields[pool]:<8}{task.description}"), BarColumn(bar_width=24))
            console = Console(file=self._out)
            self._bars = Progress(*columns, DownloadColumn(), TransferSpeedColumn(), console=console)
            self._bars.start()

    def close(self) -> None:
        """Stop showing progress. Repeatable."""
        self._starting = False
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def __call__(self, name: str, facts: dict[str, Any]) -> None:
        if name == "runner":
            self._runner(facts["event"])
        elif not self.serving:
            return
        elif name == "draining":
            say(f"draining: requests under way have {facts['drain_s']:g} s to finish")
        elif name == "stopped":
            say("stopped")

    def _runner(self, event: RunnerEvent) -> None:
        if event.kind == "exited":
            self.faults.append(f"{event.replica} {event.message}{_last_lines(event)}")
        if self._bars is not None:
            self._move(self._bars, event)
        elif self._starting or event.kind in ("exited", "restarting", "ready"):
            self._lines(event)

    def _move(self, bars: Progress, event: RunnerEvent) -> None:
        row = self._rows.get(event.pool_id)
        if row is None:
            row = self._rows[event.pool_id] = bars.add_task("", total=None, pool=event.pool_id)
        if event.kind == "downloading":
            bars.update(row, description=event.message, completed=event.done_bytes, total=event.total_bytes)
        else:
            total = bars.tasks[row].total
            bars.update(row, description=event.message, completed=total or 0)


def _last_lines(event: RunnerEvent) -> str:
    """The end of the log that the event's message names, if it names one."""
    _, named, path = event.message.partition("; log: ")
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines() if named else []
    except OSError:
        lines = []
    return "".join(f"\n  {line[:200]}" for line in lines[-_SHOWN_LINES:])
