"""Runs cases against targets and keeps what came of each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gateway.books import Calls
from benchmarks.gateway.cases import Case, Plan
from benchmarks.gateway.instruments import Engine, Instruments, ask, client_arguments
from benchmarks.gateway.payload import write_bodies
from benchmarks.gateway.processes import Cpu, Resident, cpu_of, machine, resident
from benchmarks.gateway.targets import Target

__all__ = ["Bench", "Idle", "Measured"]

_SETTLE_S = 0.6
"""After the last answer: what a target puts off (the ledger, its checkpoint) counts for the calls that made it."""
_LOOK_S = 0.25

_WARM_UP = (
    Case("warm-up", "whole answers", 0.5, connections=16),
    Case("warm-up", "streams", 0.5, connections=16, stream=True),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One case against one target, once."""

    case: str
    target: str
    round: int
    client: dict[str, Any]
    """The client's report."""
    cpu_s: float
    root_cpu_s: float
    """Of `cpu_s`: the supervisor's part."""
    wall_s: float
    instruments_cpu_s: float
    """Of engine and client, which share a core."""
    others_cpu_s: float
    """Of processes that have nothing to do with the benchmark."""
    stolen_s: float
    """What the host took from this machine."""
    load: float
    """The machine's load average of a minute, just before."""
    open_streams: int = 0
    """The most that was seen open at once at the engine, looking four times a second; 0 where nobody looked."""
    resident_mb: float = 0.0
    """The most that was seen, of the whole tree."""
    largest_mb: float = 0.0
    """The same of its largest process."""


@dataclass(frozen=True, slots=True)
class Idle:
    """What a target that nobody asks uses."""

    target: str
    cpu_ms_per_s: float
    resident_mb: float


@dataclass(slots=True)
class _Watch:
    """Looks at a target while it is under load."""

    engine: Engine
    pid: int | None
    open_streams: int = 0
    resident: Resident = field(default_factory=lambda: Resident(0.0, 0.0))

    def look(self) -> None:
        self.open_streams = max(self.open_streams, self.engine.counts()["open"])
        if self.pid is not None:
            self.resident = max(self.resident, resident(self.pid), key=lambda seen: seen.total_mb)


@dataclass(slots=True)
class Bench:
    """The instruments, set up, and the count of what they have asked of each target."""

    instruments: Instruments
    engine: Engine
    folder: Path
    calls: dict[str, Calls] = field(default_factory=dict)
    _bodies: dict[bool, Path] = field(init=False)

    def __post_init__(self) -> None:
        self._bodies = write_bodies(self.folder)

    def warm_up(self, target: Target) -> None:
        """Let pools fill and code be compiled; also makes sure that the target answers at all.

        Raises:
            RuntimeError: it does not.
        """
        for case in _WARM_UP:
            measured = self.measure(case, target, 0)
            if measured.client["good"] == 0:
                raise RuntimeError(f"{target.name} answers nothing: {measured.client}")

    def rounds(
        self, plan: Plan, targets: Sequence[Target], direct: Target, tell: Callable[[Measured], None]
    ) -> list[Measured]:
        """All cases, each against one target after the other, and all of it again in the next round."""
        found = []
        for round_number in range(1, plan.rounds + 1):
            for case in plan.cases:
                if round_number > (case.rounds or plan.rounds):
                    continue
                asked = [target for target in targets if case.asks(target.name)]
                # Of a paced stream the engine tells the same every time, and it takes long.
                if case.direct and (round_number == 1 or not case.paced):
                    asked = [direct, *asked]
                for target in asked:
                    found.append(self.measure(case, target, round_number))
                    tell(found[-1])
        return found

    def measure(self, case: Case, target: Target, round_number: int) -> Measured:
        """One case against one target."""
        self.engine.pace(case.pace)
        load = os.getloadavg()[0]
        arguments = client_arguments(
            case, f"{target.root}/v1/chat/completions", target.bearer, self._bodies[case.stream], seed=round_number
        )
        watch = _Watch(self.engine, target.pid)
        counted, before, began = self.engine.counts(), self._used(target), time.perf_counter()
        if case.requests is None:
            client = ask(self.instruments.client, arguments)
        else:
            client = ask(self.instruments.client, arguments, meanwhile=watch.look, every_s=_LOOK_S)
        time.sleep(_SETTLE_S)
        used, wall_s, counts = self._used(target).since(before), time.perf_counter() - began, self.engine.counts()
        answered = counts["whole"] + counts["streams"] - counted["whole"] - counted["streams"]
        self.calls.setdefault(target.name, Calls()).add(client, case.pace.tokens, answered)
        return Measured(
            case=case.name,
            target=target.name,
            round=round_number,
            client=client,
            cpu_s=used.target.total_s,
            root_cpu_s=used.target.root_s,
            wall_s=wall_s,
            instruments_cpu_s=used.engine_s + client["client_cpu_s"],
            others_cpu_s=max(used.busy_s - used.ours_s, 0.0),
            stolen_s=used.stolen_s,
            load=load,
            open_streams=watch.open_streams,
            resident_mb=watch.resident.total_mb,
            largest_mb=watch.resident.largest_mb,
        )

    def idle(self, target: Target, seconds: float) -> Idle:
        """Watch a target that nobody asks."""
        assert target.pid is not None
        before = cpu_of(target.pid)
        time.sleep(seconds)
        used = cpu_of(target.pid) - before
        return Idle(target.name, used.total_s / seconds * 1000, resident(target.pid).total_mb)

    def _used(self, target: Target) -> _Used:
        everything = machine()
        return _Used(
            target=cpu_of(target.pid) if target.pid is not None else Cpu(0.0, 0.0),
            engine_s=cpu_of(self.engine.pid).total_s,
            # All that the benchmark started are children of this process.
            ours_s=cpu_of(os.getpid()).total_s,
            busy_s=everything.busy_s,
            stolen_s=everything.stolen_s,
        )


@dataclass(frozen=True, slots=True)
class _Used:
    """CPU seconds up to a moment."""

    target: Cpu
    engine_s: float
    ours_s: float
    busy_s: float
    stolen_s: float

    def since(self, earlier: _Used) -> _Used:
        return _Used(
            self.target - earlier.target,
            self.engine_s - earlier.engine_s,
            self.ours_s - earlier.ours_s,
            self.busy_s - earlier.busy_s,
            self.stolen_s - earlier.stolen_s,
        )
