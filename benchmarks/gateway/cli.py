"""The command line of the benchmark.

Exit codes: 0 done, 1 the books of a target are wrong, 2 wrong use, or something that is needed is missing.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.gateway.books import faults, read_books
from benchmarks.gateway.cases import FULL, QUICK, TARGETS, Plan, select
from benchmarks.gateway.instruments import Engine, build
from benchmarks.gateway.measure import Bench, Measured
from benchmarks.gateway.processes import Cores, choose_cores, description, pinned
from benchmarks.gateway.record import Books, Run, read, write
from benchmarks.gateway.report import as_markdown, as_text, replace_block
from benchmarks.gateway.targets import Target, direct, find_nginx, start

__all__ = ["main", "parse_arguments"]

_DEFAULT_TARGETS = "nginx,floor,gateway"


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Check the arguments; leaves the process with code 2 when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gateway",
        description="Measure the gateway against a plain nginx proxy in the same run; docs/performance.md explains.",
    )
    parser.add_argument("--quick", action="store_true", help="one short round without the heaviest cases")
    parser.add_argument("--only", nargs="+", default=[], metavar="CASE", help="only these cases")
    parser.add_argument("--targets", default=_DEFAULT_TARGETS, metavar="LIST", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep all that was measured")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="put the table into this page, between its marks")
    parser.add_argument("--report", type=Path, metavar="FILE", help="measure nothing; report what --json has kept")
    given = parser.parse_args(argv)
    given.targets = [name.strip() for name in given.targets.split(",") if name.strip()]
    for name in given.targets:
        if name not in TARGETS:
            parser.error(f"no target {name!r}; known: {', '.join(TARGETS)}")
    try:
        given.plan = select(QUICK if given.quick else FULL, given.only)
    except ValueError as error:
        parser.error(str(error))
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    given = parse_arguments(argv)
    try:
        run = read(given.report) if given.report else _run(given.plan, given.targets, quick=given.quick)
        if given.json:
            write(run, given.json)
        if given.markdown:
            replace_block(given.markdown, as_markdown(run))
    except (RuntimeError, ValueError, OSError) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    print(as_text(run))
    return 1 if any(books.faults for books in run.books.values()) else 0


def _run(plan: Plan, names: list[str], *, quick: bool) -> Run:
    cores = choose_cores(os.sched_getaffinity(0))
    run = Run(_today(), description(), quick, load=os.getloadavg()[0])
    names = _present(names, run)
    _note_cores(names, cores, run)
    _allow_many_files()
    began = time.perf_counter()
    _say(f"about {plan.seconds(names):.0f} s for {', '.join(names)}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="llmrouter-bench-")))
        folder.chmod(0o755)
        # This process too: it must not disturb the target's core.
        stack.enter_context(pinned(cores.instruments))
        instruments = build(folder)
        engine = Engine(instruments.engine)
        stack.callback(engine.stop)
        bench = Bench(instruments, engine, folder)
        targets = []
        for name in names:
            targets.append(start(name, engine.root, folder / name, cores))
            stack.callback(targets[-1].stop)
            run.starts.setdefault(name, []).append(targets[-1].started)
            bench.warm_up(targets[-1])
        run.measured = bench.rounds(plan, targets, direct(engine.root), _tell)
        run.idle = [bench.idle(target, plan.idle_s) for target in targets]
        _close_books(bench, targets, run)
        _start_again(names, plan.cold_starts - 1, engine.root, folder, cores, run)
    _say(f"done in {time.perf_counter() - began:.0f} s")
    return run


def _close_books(bench: Bench, targets: Sequence[Target], run: Run) -> None:
    for target in targets:
        target.stop()
        if target.store is not None:
            calls, booked = bench.calls[target.name], read_books(target.store)
            run.books[target.name] = Books(calls, booked, faults(calls, booked))


def _start_again(names: Sequence[str], times: int, engine: str, folder: Path, cores: Cores, run: Run) -> None:
    """Further cold starts, each with a new store."""
    for turn in range(times):
        for name in names:
            target = start(name, engine, folder / f"{name}-{turn}", cores)
            target.stop()
            run.starts[name].append(target.started)


def _present(names: list[str], run: Run) -> list[str]:
    if "nginx" in names and find_nginx() is None:
        run.notes.append("nginx is not installed, so there are no ratios (Debian: apt install nginx-light)")
        return [name for name in names if name != "nginx"]
    return names


def _note_cores(names: list[str], cores: Cores, run: Run) -> None:
    if "gateway-2" in names and cores.two_workers & cores.instruments:
        run.notes.append("gateway-2 shares its second core with engine and client, for want of four cores")


def _allow_many_files() -> None:
    """900 streams are some 2,000 sockets of a proxy; children inherit the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"


def _tell(one: Measured) -> None:
    client = one.client
    cpu = f"{one.cpu_s / client['good'] * 1000:8.3f} s/1K" if client["good"] and one.target != "direct" else " " * 13
    others = one.others_cpu_s / one.wall_s
    _say(
        f"round {one.round}  {one.case:<10} {one.target:<10} {client['good']:>6} of {client['issued']:>6} {cpu}"
        f"  load {one.load:.2f}, others {others:.2f} cores"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
