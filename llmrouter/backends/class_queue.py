"""The queue in front of a pool: three latency classes that take turns by weight, of bounded length.

Turns between classes are counted in started calls. A class that does not wait, or may not start because its share of
slots is taken, saves up no turns for later.
"""

from __future__ import annotations

from llmrouter.backends.tenant_queue import TenantQueue
from llmrouter.backends.waiting import Ticket, Waiter
from llmrouter.tenancy_sections import CLASSES, ClassesConfig

__all__ = ["RANKS", "ClassQueue"]

RANKS = {name: rank for rank, name in enumerate(CLASSES)}
"""Place of each class, from 0 for the most urgent."""


class ClassQueue:
    """Who is served next, and who has to go when the queue is full. Decides only; answering is the pool's part."""

    __slots__ = ("_count", "_limit", "_lines", "_places", "_turns", "_weights")

    def __init__(self, limit: int, classes: ClassesConfig) -> None:
        self._count = 0
        self._lines = tuple(TenantQueue() for _ in CLASSES)
        self._turns = [0.0] * len(CLASSES)
        self.configure(limit, classes)

    def configure(self, limit: int, classes: ClassesConfig) -> None:
        """Take other bounds and weights; whoever waits stays."""
        self._limit = limit
        self._weights = tuple(classes.of(name).weight for name in CLASSES)
        self._places = tuple(
            max(int(limit * weight / sum(self._weights)), 1) if limit >= len(CLASSES) else 0 for weight in self._weights
        )

    def __len__(self) -> int:
        return self._count

    def waiting(self, rank: int) -> int:
        """How many of one class wait."""
        return self._lines[rank].count

    def join(self, waiter: Waiter) -> Waiter | None:
        """Let somebody wait; returns who must be sent away for it, who is in the queue no longer.

        While there is room, that is nobody. In a full queue it is the newest waiter of the tenant with the most
        waiting for its weight: in the least urgent of the less urgent classes, or in the same class if the newcomer's
        tenant has less than its share there, or else the newcomer itself. No class is pushed below the places it
        has by its weight, and one that has fewer takes them back.
        """
        loser = self._loser(waiter) if self._count >= self._limit else None
        if loser is not waiter:
            if loser is not None:
                self.leave(loser)
            self._lines[RANKS[waiter.ticket.latency_class]].add(waiter)
            self._count += 1
        return loser

    def first(self, classes: int) -> Waiter | None:
        """Whose turn it is among so many of the most urgent classes; it stays in the queue until `take` or `leave`."""
        while (line := self._next(classes)) is not None:
            waiter = line.first()
            if not waiter.settled:
                return waiter
            self.leave(waiter)
        return None

    def take(self, waiter: Waiter) -> None:
        """Its call starts: take it out and count the turn. It must be what `first` has just given."""
        rank = RANKS[waiter.ticket.latency_class]
        self._lines[rank].take(waiter)
        self._count -= 1
        turn = self._turns[rank]
        self._turns[rank] = turn + 1 / self._weights[rank]
        self._turns = [max(other, turn) for other in self._turns]

    def leave(self, waiter: Waiter) -> None:
        """Take out one waiter, wherever it stands, at the cost of nobody's turn; harmless when it is out already."""
        if self._lines[RANKS[waiter.ticket.latency_class]].remove(waiter):
            self._count -= 1

    def ahead_of(self, ticket: Ticket) -> tuple[float, float]:
        """About how many calls start before a newcomer's: those of its own class, and those of all classes.

        The others' are the turns that fall between those of its own class, as far as somebody waits to take them.
        Rather too few than too many.
        """
        rank = RANKS[ticket.latency_class]
        own = self._lines[rank].ahead_of(ticket)
        between = (
            min(line.count, own * weight / self._weights[rank])
            for other, (line, weight) in enumerate(zip(self._lines, self._weights, strict=True))
            if other != rank
        )
        return own, own + sum(between)

    def _next(self, classes: int) -> TenantQueue | None:
        chosen = None
        lowest = float("inf")
        for line, turn in zip(self._lines[:classes], self._turns, strict=False):
            if line.count and turn < lowest:
                chosen, lowest = line, turn
        return chosen

    def _loser(self, newcomer: Waiter) -> Waiter:
        rank = RANKS[newcomer.ticket.latency_class]
        entitled = self._lines[rank].count < self._places[rank]
        for other in reversed(range(len(self._lines))):
            outranked = other > rank or (entitled and other != rank)
            if outranked and self._lines[other].count > self._places[other]:
                return self._lines[other].newest_of_largest()
        if self._lines[rank].has_share_left(newcomer.ticket):
            return self._lines[rank].newest_of_largest()
        return newcomer
