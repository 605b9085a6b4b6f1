"""What is measured: each case one kind of load, and how long and how often it runs in the full and the quick set."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["FULL", "PACE", "QUICK", "TARGETS", "TOKENS", "Case", "Pace", "Plan", "select"]

TOKENS = 400
"""Of every answer, unless a case says otherwise."""

TARGETS = ("nginx", "floor", "gateway", "gateway-2", "gateway-limits")


@dataclass(frozen=True, slots=True)
class Pace:
    """How the engine streams: times in milliseconds, both 0 for as fast as the stream is read."""

    ttft_ms: float = 0.0
    itl_ms: float = 0.0
    tokens: int = TOKENS

    @property
    def duration_ms(self) -> float:
        """From the request to the last token."""
        return self.ttft_ms + (self.tokens - 1) * self.itl_ms


PACE = Pace(ttft_ms=200.0, itl_ms=10.0)
"""The paced stream of the targets: 4.19 s long."""

_LONG = Pace(ttft_ms=500.0, itl_ms=250.0, tokens=36)


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of load. Either `connections` ask as fast as they are answered, or `rate` streams a second begin."""

    name: str
    words: str
    seconds: float
    connections: int = 0
    rate: float = 0.0
    stream: bool = False
    pace: Pace = Pace()
    requests: int | None = None
    """No more than so many."""
    direct: bool = False
    """Asked of the engine without a target between, too: what the instruments themselves take."""
    rounds: int | None = None
    """None: as many as the plan says."""
    two_workers: bool = False
    """Asked of `gateway-2` too, whose purpose is the highest rate."""
    limits: bool = False
    """Asked of `gateway-limits` too: limits are taken and settled once a call, however its answer comes."""

    @property
    def paced(self) -> bool:
        return self.stream and self.pace.itl_ms > 0

    def asks(self, target: str) -> bool:
        """Whether a target is measured in this case."""
        return {"gateway-2": self.two_workers, "gateway-limits": self.limits}.get(target, True)

    @property
    def drain_s(self) -> float:
        """How long streams under way may go on at the end: their nominal time and as much for a target that lags."""
        return 2.0 + 2.0 * self.pace.duration_ms / 1000


@dataclass(frozen=True, slots=True)
class Plan:
    """A set of cases and how often they run."""

    cases: tuple[Case, ...]
    rounds: int
    cold_starts: int
    idle_s: float

    def seconds(self, targets: Sequence[str]) -> float:
        """About how long a run takes."""
        total = len(targets) * (self.cold_starts * 3.0 + self.idle_s + 3.0)
        for case in self.cases:
            turns = case.rounds or self.rounds
            asked = turns * sum(case.asks(target) for target in targets) + case.direct * (1 if case.paced else turns)
            total += asked * (case.seconds + case.pace.duration_ms / 1000 + 0.8)
        return total


def _cases(
    connections: tuple[int, ...], rates: tuple[int, ...], *, whole_s: float, eager_s: float, paced_s: float
) -> tuple[Case, ...]:
    whole = [
        Case(
            f"json-{n}",
            f"whole answers, {n} connection{'s' if n > 1 else ''}",
            whole_s,
            connections=n,
            direct=n == 1,
            limits=n == 16,
        )
        for n in connections
    ]
    eager = Case("stream-16", "zero-delay streams, 16 at a time", eager_s, connections=16, stream=True)
    paced = [
        Case(
            f"paced-{r}",
            f"{r} streams started a second",
            paced_s,
            rate=r,
            stream=True,
            pace=PACE,
            direct=r == rates[0],
            two_workers=r == rates[-1],
        )
        for r in rates
    ]
    return (*whole, eager, *paced)


_OPEN = Case("open-900", "900 streams open", 4.0, rate=300, stream=True, pace=_LONG, requests=900, rounds=1)

FULL = Plan(
    (*_cases((1, 16, 128), (20, 60, 120), whole_s=2.0, eager_s=3.0, paced_s=6.0), _OPEN),
    rounds=3,
    cold_starts=3,
    idle_s=3.0,
)
QUICK = Plan(_cases((1, 16), (20, 60), whole_s=0.8, eager_s=1.2, paced_s=2.0), rounds=1, cold_starts=1, idle_s=0.5)


def select(plan: Plan, names: list[str]) -> Plan:
    """The plan with only the named cases, asked of all targets; none named: all.

    Raises:
        ValueError: there is no case of a name.
    """
    known = [case.name for case in plan.cases]
    for name in names:
        if name not in known:
            raise ValueError(f"no case {name!r}; known: {', '.join(known)}")
    if not names:
        return plan
    cases = tuple(dataclasses.replace(case, two_workers=True, limits=True) for case in plan.cases if case.name in names)
    return dataclasses.replace(plan, cases=cases)
