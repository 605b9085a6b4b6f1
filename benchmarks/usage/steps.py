"""What is measured, each in a process of its own, so that its peak memory is its own, too.

`python -m benchmarks.usage.steps NAME DATABASE` does one step and prints its figures as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from benchmarks.usage.books import DAYS, FIRST_DAY
from llmrouter.ledger.archive import Archive
from llmrouter.ledger.archiving import archive_entries
from llmrouter.ledger.prune import prune
from llmrouter.ledger.usage import Measure, Question, ask
from llmrouter.ledger.usage_books import usage_sources

__all__ = ["STEPS", "Figures", "run"]

Figures = dict[str, float | int | str]
_SECOND_DAY = FIRST_DAY + timedelta(days=1)
_END = FIRST_DAY + timedelta(days=DAYS)


def _report(measure: Measure, until: date = _END) -> Callable[[Path], Figures]:
    def make(path: Path) -> Figures:
        with usage_sources(path) as sources:
            report = ask(sources, Question(measure, ("tenant", "model"), FIRST_DAY, until))
        total = report.total()
        return {"rows": total[0], "groups": len(report.groups), "sum": str(total)}

    return make


def _prune(path: Path) -> Figures:
    return {"rows": prune(path, datetime(FIRST_DAY.year, FIRST_DAY.month, FIRST_DAY.day, tzinfo=UTC))}


def _archive(path: Path) -> Figures:
    return {"rows": sum(rolled.entries for rolled in archive_entries(path, _SECOND_DAY))}


def _drop(path: Path) -> Figures:
    return {"days": len(Archive.of(path).drop(_END))}


STEPS: dict[str, Callable[[Path], Figures]] = {
    "calls": _report("calls"),
    "attempts": _report("attempts"),
    "day": _report("calls", _SECOND_DAY),
    "prune": _prune,
    "archive": _archive,
    "drop": _drop,
}


def run(step: str, path: Path) -> Figures:
    """Do one step in a new process; raises `RuntimeError` with what it said if it fails."""
    command = [sys.executable, "-m", "benchmarks.usage.steps", step, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{step}: {done.stderr.strip().splitlines()[-1:]}")
    figures: Figures = json.loads(done.stdout)
    return figures


def main() -> None:
    step, path = sys.argv[1], Path(sys.argv[2])
    began, before = time.perf_counter(), _peak_mb()
    figures = STEPS[step](path)
    seconds = time.perf_counter() - began
    print(json.dumps({**figures, "seconds": seconds, "peak_mb": _peak_mb(), "idle_mb": before}))


def _peak_mb() -> float:
    # Not `ru_maxrss`: a process begins with that of the one which started it.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    main()
