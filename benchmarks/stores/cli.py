"""The command line: starts what servers it needs, plays all parts in less than three minutes.

Exit codes: 0 done, 1 the books were wrong, 2 wrong use, or something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.gateway.processes import description
from benchmarks.gateway.report import replace_block
from benchmarks.stores.books import WrongBooks, pause_of_sync
from benchmarks.stores.parts import PARTS, ROUNDS
from benchmarks.stores.report import BEGIN, END, Run, Table, as_json, as_markdown
from benchmarks.stores.servers import NotInstalled
from benchmarks.stores.turns import Turn, play

__all__ = ["main", "parse_arguments"]


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Check the arguments; leaves the process with code 2 when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stores",
        description="Measure ledger, limits and shipping against bare loops; docs/performance.md explains. "
        "Takes three minutes.",
    )
    parser.add_argument(
        "--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART", help=", ".join(PARTS)
    )
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where to make the files, instead of the system's")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep all that was measured")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="put the tables into this page, between its marks"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    given = parse_arguments(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="llmrouter-stores-", dir=given.folder) as folder:
            run = _run(Path(folder), given.only)
        if given.json:
            given.json.write_text(json.dumps(as_json(run), indent=1) + "\n")
        if given.markdown:
            replace_block(given.markdown, as_markdown(run), BEGIN, END)
    except WrongBooks as error:
        print(f"benchmark: the books are wrong: {error}", file=sys.stderr)
        return 1
    except (RuntimeError, ValueError, OSError) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    print(as_markdown(run))
    return 0


def _run(folder: Path, names: Sequence[str]) -> Run:
    # A server that must not run as root has to get at its folder.
    folder.chmod(0o755)
    run = Run(f"{datetime.now(UTC):%Y-%m-%d}", description(), ROUNDS)
    run.sync_ms = pause_of_sync(folder / "sync") * 1000
    for name in PARTS:
        if name not in names:
            continue
        run.loads.append(os.getloadavg()[0])
        try:
            with PARTS[name](folder) as part:
                run.tables.append(Table(part, play(part, ROUNDS, _tell)))
        except NotInstalled as error:
            run.notes.append(f"{name} left out: {error}")
    run.loads.append(os.getloadavg()[0])
    return run


def _tell(name: str, turn: Turn) -> None:
    print(f"{name:<60} {turn.rate:>8,.0f}/s {turn.cpu_us:>6.0f} µs", file=sys.stderr, flush=True)
