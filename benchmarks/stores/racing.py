"""Several processes on one file, all beginning at the same moment.

`python -m benchmarks.stores.racing WAY FILE CALLS AT_ONCE LIMITED` books its part when a line comes in, and says what
came of it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.stores.books import WAYS, Load
from benchmarks.stores.turns import Turn

__all__ = ["race"]

_LONGEST_S = 60.0


def race(way: str, path: Path, load: Load, processes: int) -> Turn:
    """So many processes, each with that load; CPU and figures are the means over all calls.

    Raises:
        RuntimeError: one of them failed.
    """
    command = [sys.executable, "-m", "benchmarks.stores.racing", way, str(path)]
    command += [str(load.calls), str(load.at_once), str(int(load.limited))]
    runners = [_started(command) for _ in range(processes)]
    try:
        for runner in runners:
            _line(runner)
        began = time.perf_counter()
        for runner in runners:
            assert runner.stdin is not None
            runner.stdin.write("go\n")
            runner.stdin.flush()
        turns = [Turn(**json.loads(_line(runner))) for runner in runners]
        seconds = time.perf_counter() - began
    finally:
        for runner in runners:
            runner.kill()
            runner.communicate()
    return _together(turns, seconds)


def _together(turns: Sequence[Turn], seconds: float) -> Turn:
    figures = {name: statistics.fmean(turn.figures[name] for turn in turns) for name in turns[0].figures}
    return Turn(sum(turn.calls for turn in turns), seconds, sum(turn.cpu_s for turn in turns), figures)


def _started(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _line(runner: subprocess.Popen[str]) -> str:
    assert runner.stdout is not None
    line = runner.stdout.readline()
    if not line:
        raise RuntimeError(f"a process that books has failed: {runner.communicate(timeout=_LONGEST_S)[1][-500:]}")
    return line


def main() -> None:
    way, path, count, at_once, limited = sys.argv[1:]

    def start() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    turn = WAYS[way](Path(path), Load(int(count), int(at_once), limited == "1"), start)
    print(json.dumps(asdict(turn)), flush=True)


if __name__ == "__main__":
    main()
