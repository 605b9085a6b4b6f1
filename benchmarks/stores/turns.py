"""Contenders that do the same work by turns, so that what disturbs the machine disturbs all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Contender", "Part", "Result", "Turn", "play"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of one turn."""

    calls: int
    seconds: float
    cpu_s: float
    """User and system time of the processes that did the work; a server's own is not in it."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What else was measured, by the title of its column."""

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU microseconds a call."""
        return self.cpu_s / self.calls * 1e6


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the work."""

    name: str
    run: Callable[[], Turn]
    against: tuple[str, ...] = ()
    """The names of bare loops, one for each of the part's `loops`; none for a bare loop itself."""


@dataclass(frozen=True, slots=True)
class Part:
    """A table of contenders."""

    name: str
    title: str
    unit: str
    """What one of the counted is called."""
    loops: tuple[str, ...]
    """What the bare loops that contenders run against are called in the titles of columns."""
    contenders: Sequence[Contender]


@dataclass(frozen=True, slots=True)
class Result:
    """The turns of one contender, in the order of the rounds."""

    name: str
    turns: tuple[Turn, ...]
    rates: tuple[float, ...] = ()
    """Calls a second over those of each loop: medians over the rounds, each against the loop's turn of that round."""
    costs: tuple[float, ...] = ()
    """CPU a call over that of each loop, likewise."""

    def median(self, of: Callable[[Turn], float]) -> float:
        return statistics.median(map(of, self.turns))


def play(part: Part, rounds: int, tell: Callable[[str, Turn], None]) -> list[Result]:
    """All contenders one after the other, and all of it again in the next round."""
    turns: dict[str, list[Turn]] = {each.name: [] for each in part.contenders}
    for _ in range(rounds):
        for each in part.contenders:
            turn = each.run()
            turns[each.name].append(turn)
            tell(each.name, turn)
    return [
        Result(
            each.name,
            tuple(turns[each.name]),
            _ratios(each, turns, lambda turn: turn.rate),
            _ratios(each, turns, lambda turn: turn.cpu_us),
        )
        for each in part.contenders
    ]


def _ratios(
    contender: Contender, turns: Mapping[str, Sequence[Turn]], of: Callable[[Turn], float]
) -> tuple[float, ...]:
    mine = turns[contender.name]
    return tuple(
        statistics.median(of(one) / of(bare) for one, bare in zip(mine, turns[name], strict=True))
        for name in contender.against
    )
