"""Processes as the kernel accounts for them: CPU time and memory of whole trees, cores, and what others use."""

from __future__ import annotations

import contextlib
import os
import platform
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Cores",
    "Cpu",
    "Machine",
    "Resident",
    "choose_cores",
    "cpu_of",
    "description",
    "machine",
    "pinned",
    "resident",
    "tree",
]

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds (user and system together) of a target: all of it, and the part of its first process."""

    total_s: float
    root_s: float
    """The supervisor of the gateway, the master of nginx."""

    def __sub__(self, earlier: Cpu) -> Cpu:
        return Cpu(self.total_s - earlier.total_s, self.root_s - earlier.root_s)


@dataclass(frozen=True, slots=True)
class Resident:
    """Memory in 10^6 bytes: of a whole tree, and of its largest process, which of a gateway is a worker."""

    total_mb: float
    largest_mb: float


@dataclass(frozen=True, slots=True)
class Machine:
    """CPU seconds since the machine started."""

    busy_s: float
    """Of processes; interrupts are on nobody's account, the network's neither."""
    stolen_s: float
    """Wanted, but taken by the host for others."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Who runs where."""

    instruments: frozenset[int]
    target: frozenset[int]
    two_workers: frozenset[int]


def choose_cores(available: Iterable[int]) -> Cores:
    """One core for engine and client, another for the target; two for the target with two workers.

    With fewer than four cores two workers must share with the instruments: what they hold there is a lower bound.

    Raises:
        ValueError: there is only one core.
    """
    cores = sorted(available)
    if len(cores) < 2:
        raise ValueError("two cores are needed: one for the target, one for engine and client")
    both = frozenset(cores[1:3]) if len(cores) >= 4 else frozenset(cores[:2])
    return Cores(frozenset(cores[:1]), frozenset(cores[1:2]), both)


@contextlib.contextmanager
def pinned(cores: frozenset[int]) -> Iterator[None]:
    """Within it, what is started runs on these cores, children of children included."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def tree(root: int) -> list[int]:
    """A process and all below it, the root first."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_of(root: int) -> Cpu:
    """CPU seconds of a process tree since it started, those of ended children included."""
    seconds = {pid: _cpu_s(pid) for pid in tree(root)}
    return Cpu(sum(seconds.values()), seconds[root])


def resident(root: int) -> Resident:
    """Resident memory of a process tree; pages that processes share count once for each."""
    sizes = [_resident_bytes(pid) / 1e6 for pid in tree(root)]
    return Resident(sum(sizes), max(sizes))


def machine() -> Machine:
    """All cores and all processes together."""
    fields = (_PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _, _, _, _, stolen = map(int, fields[:8])
    return Machine((user + nice + system) / _TICKS, stolen / _TICKS)


def description() -> str:
    """Processor, kernel and Python in a line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.machine())
    # A Python built without these is a tenth slower and more.
    optimised = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    build = "" if optimised else " (built without profile-guided optimisation)"
    return f"{os.cpu_count()} cores ({model}), Linux {platform.release()}, Python {platform.python_version()}{build}"


def _cpu_s(pid: int) -> float:
    """Of one process and its children that have ended.

    Its `stat` rounds down to ticks of 10 ms; the scheduler's figures are exact but leave out threads that have ended.
    Both are lower bounds, so the larger one counts.
    """
    fields = _stat(pid)
    if not fields:
        return 0.0
    own, ended = (sum(map(int, part)) / _TICKS for part in (fields[11:13], fields[13:15]))
    return max(own, _scheduled_s(pid)) + ended


def _scheduled_s(pid: int) -> float:
    try:
        files = list((_PROC / str(pid) / "task").glob("*/schedstat"))
        return sum(int(file.read_text().split()[0]) for file in files) / 1e9
    except (OSError, IndexError):
        return 0.0


def _resident_bytes(pid: int) -> int:
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, from the state on; none for a process that has gone."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
