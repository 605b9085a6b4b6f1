"""The command line: plays three phases in less than a minute.

Exit codes: 0 all goals met, 1 one was missed, 2 wrong use, or the gateway did not start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.classes.gateway import SLOTS, serving
from benchmarks.classes.report import Goal, Row, as_json, as_text, goals, rows_of
from benchmarks.classes.traffic import LOADS, Phase, engine, play
from llmrouter.backends.class_queue import RANKS
from llmrouter.backends.shares import Shares
from llmrouter.config import ClassesConfig

__all__ = ["main"]

_ALL = tuple(LOADS)
_PHASES = (
    Phase("interactive alone", ("interactive",), 14.0, warm_up_s=1.0),
    Phase("all together", _ALL, 24.0),
    Phase("the same, all sent as batch", _ALL, 8.0, sent_as="batch"),
)
_SEED = 11


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.classes",
        description="Show what latency classes do for a saturated pool; docs/classes.md explains. Takes 55 s.",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures")
    given = parser.parse_args(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="llmrouter-classes-") as folder:
            rows, found = asyncio.run(_run(Path(folder)))
        if given.json:
            given.json.write_text(json.dumps(as_json(rows, found), indent=1) + "\n")
    except (RuntimeError, OSError) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    print(as_text(rows, found))
    return 0 if all(goal.met for goal in found) else 1


async def _run(folder: Path) -> tuple[list[Row], list[Goal]]:
    rows: list[Row] = []
    async with engine() as backend:
        with ExitStack() as stack:
            # The engine lives in this loop, which must not stand still while the gateway starts and probes it.
            gateway = await asyncio.to_thread(stack.enter_context, serving(backend.url, folder))
            for number, phase in enumerate(_PHASES):
                print(f"{phase.name}: {phase.warm_up_s + phase.seconds:.0f} s", file=sys.stderr, flush=True)
                rows += rows_of(phase.name, await play(gateway, phase, _SEED + 100 * number))
    alone, together = rows[0], rows[1 : 1 + len(_ALL)]
    batch_most = Shares(SLOTS, ClassesConfig()).bound(RANKS["batch"]) or SLOTS
    return rows, goals(alone, together, slots=SLOTS, batch_most=batch_most)
