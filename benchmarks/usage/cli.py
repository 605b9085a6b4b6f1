"""The command line: fills books, asks, prunes and archives a day, asks an archive of as many rows, and drops it.

Exit codes: 0 done, 1 the archive answered otherwise than the database, 2 wrong use, or a step failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.usage.books import fill, multiply
from benchmarks.usage.steps import Figures, run
from llmrouter.ledger.archive import Archive

__all__ = ["Line", "as_text", "lines", "main"]

Line = tuple[str, Figures]


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.usage",
        description="Measure reports, archive and retention; docs/usage.md has results. "
        "Ten million rows take a quarter of an hour and 8 GB of disk.",
    )
    parser.add_argument("--rows", type=int, default=1_000_000, metavar="N", help="calls in the books (1000000)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where to make them, instead of the system's")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures")
    given = parser.parse_args(argv)
    if given.rows < 1000:
        parser.error("--rows must be 1000 or more")
    try:
        with tempfile.TemporaryDirectory(prefix="llmrouter-usage-", dir=given.folder) as folder:
            found = lines(Path(folder) / "llmrouter.db", given.rows)
        if given.json:
            given.json.write_text(json.dumps([{"what": what, **figures} for what, figures in found], indent=1) + "\n")
    except (RuntimeError, OSError) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    print(as_text(found))
    return 0 if same(found) else 1


def lines(path: Path, rows: int) -> list[Line]:
    """All steps in order; the archive of as many rows is one archived day ten times."""
    began = time.perf_counter()
    fill(path, rows)
    found: list[Line] = [("fill SQLite", {"rows": rows + rows // 10, "seconds": time.perf_counter() - began})]
    size = path.stat().st_size

    def step(what: str, name: str, **more: Any) -> None:
        figures = run(name, path)
        found.append((what, {**figures, **more}))
        print(f"{what}: {figures['seconds']:.1f} s", file=sys.stderr, flush=True)

    step("report of calls, SQLite", "calls", size_mb=size / 1e6)
    step("report of attempts, SQLite", "attempts")
    step("report of one day, SQLite", "day")
    step("prune a day, SQLite", "prune")
    step("archive a day", "archive")
    step("report of one day, Parquet", "day")
    (day,) = Archive.of(path).days()
    path = path.with_name("ten.db")
    multiply(day, path)
    archived = sum(each.size_bytes() for each in Archive.of(path).days())
    step("report of calls, Parquet", "calls", size_mb=archived / 1e6)
    step("report of attempts, Parquet", "attempts")
    step("drop ten days, Parquet", "drop")
    return found


def same(found: Sequence[Line]) -> bool:
    """Whether the archived day gave the same answer as in the database, to the last digit."""
    sums = {what: figures["sum"] for what, figures in found if "sum" in figures}
    return sums["report of one day, SQLite"] == sums["report of one day, Parquet"]


def as_text(found: Sequence[Line]) -> str:
    """A Markdown table."""
    rows = ["| step | rows | seconds | rows/s | peak RSS | on disk |", "|---|--:|--:|--:|--:|--:|"]
    for what, figures in found:
        count, seconds = int(figures.get("rows", 0)), float(figures["seconds"])
        cells = [
            what,
            f"{count:,}" if count else "-",
            f"{seconds:.2f}" if seconds < 10 else f"{seconds:.0f}",
            f"{count / seconds:,.0f}" if count else "-",
            f"{float(figures['peak_mb']):.0f} MB" if "peak_mb" in figures else "-",
            f"{float(figures['size_mb']):,.0f} MB" if "size_mb" in figures else "-",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
