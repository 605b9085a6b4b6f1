"""Any mix of reservations and entries in one transaction, each in the order in which it came."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from llmrouter.ledger import append, reservations
from llmrouter.ledger.limits import Counters
from llmrouter.ledger.spending import Spending
from llmrouter.types import Admission, LedgerEntry, Limit, Reservation, Spent

__all__ = ["Batch", "Opening", "Operation", "Recording", "Releasing"]

_NOTHING_USED = Spent(requests=0)


@dataclass(slots=True, eq=False)
class Opening:
    """Admit a call."""

    reservation: Reservation
    took: bool = False
    """Whether a committed transaction wrote its reservation; a repeat writes none."""


@dataclass(slots=True, eq=False)
class Recording:
    """Book a call, and end its reservation."""

    entry: LedgerEntry


@dataclass(slots=True, eq=False)
class Releasing:
    """Take back what an opening took, as if it had never come: whoever asked is gone."""

    opening: Opening


Operation = Opening | Recording | Releasing


@dataclass(slots=True)
class _Held:
    """A reservation that has not ended."""

    taken_ms: int
    by: Opening | None = None
    """The opening of this batch that made it; None for one that was there."""


@dataclass(slots=True)
class Batch:
    """Applies operations inside a write transaction that the caller has begun and ends."""

    connection: sqlite3.Connection
    owner: Callable[[], int]
    """The number of this process among the owners; asked when a reservation is written."""
    spending: Spending | None
    """None where the limits are kept elsewhere: reservations are written, nothing is counted."""
    now_ms: int
    under_way: Mapping[str, Reservation]
    """Reservations that need not be read again."""
    taken: list[Opening] = field(default_factory=list)
    """Openings that have written a reservation, once `apply` has returned."""
    ended: list[Reservation] = field(default_factory=list)
    """Reservations that were there and are no more."""
    _counters: Counters | None = None
    _booked: set[str] = field(default_factory=set)
    _held: dict[str, _Held] = field(default_factory=dict)
    _entries: list[LedgerEntry] = field(default_factory=list)
    _made: dict[str, Reservation] = field(default_factory=dict)
    _gone: list[str] = field(default_factory=list)

    def apply(self, operations: Sequence[Operation]) -> list[Admission | None]:
        """Carry out the operations; returns the answers of the openings, None for all else.

        Raises whatever a value that cannot be stored raises; the caller then undoes the transaction.
        """
        if self.spending is not None:
            self._counters = Counters(self.connection, self.now_ms, self._begin, self._reserved)
        self._look_up([_request_id(operation) for operation in operations])
        answers = [self._carry_out(operation) for operation in operations]
        self._write()
        if self._counters is not None:
            self._counters.flush()
        return answers

    def _look_up(self, request_ids: Sequence[str]) -> None:
        """Read which of these are in the books and which are open."""
        for request_id, booked, taken_ms in self.connection.execute(_KNOWN, (orjson.dumps(request_ids).decode(),)):
            if booked:
                self._booked.add(request_id)
            if taken_ms is not None:
                self._held[request_id] = _Held(taken_ms)

    def _carry_out(self, operation: Operation) -> Admission | None:
        if isinstance(operation, Opening):
            return self._open(operation)
        if isinstance(operation, Recording):
            self._record(operation.entry)
        else:
            self._release(operation.opening)
        return None

    def _open(self, opening: Opening) -> Admission:
        reservation = opening.reservation
        request_id = reservation.request_id
        if request_id in self._held or request_id in self._booked:
            standings = () if self._counters is None else self._counters.standings(reservation.limits)
            return Admission(standings=standings)
        admission = Admission() if self._counters is None else self._counters.take(reservation)
        if admission.exceeded is None:
            self._held[request_id] = _Held(self.now_ms, opening)
            self._made[request_id] = reservation
            self.taken.append(opening)
        return admission

    def _record(self, entry: LedgerEntry) -> None:
        if entry.request_id not in self._booked:
            self._booked.add(entry.request_id)
            self._entries.append(entry)
        if entry.request_id in self._held:
            self._end(entry.request_id, entry.spent())

    def _release(self, opening: Opening) -> None:
        held = self._held.get(opening.reservation.request_id)
        if held is not None and (opening.took or held.by is opening):
            self._end(opening.reservation.request_id, _NOTHING_USED)

    def _end(self, request_id: str, spent: Spent) -> None:
        held = self._held.pop(request_id)
        reservation = self._made.pop(request_id, None)
        if reservation is None:
            self._gone.append(request_id)
            reservation = self.under_way.get(request_id) or reservations.held(self.connection, request_id)
        self.ended.append(reservation)
        if self._counters is not None:
            self._counters.settle(reservation, spent, held.taken_ms)

    def _begin(self, limit: Limit, since_ms: int, user_id: str | None) -> int:
        # The books have to hold what came before in this very batch.
        self._write()
        assert self.spending is not None
        return self.spending.since(self.connection, limit, since_ms, user_id)

    def _reserved(self, limit: Limit, since_ms: int, user_id: str | None) -> int:
        self._write()
        assert self.spending is not None
        return self.spending.reserved(self.connection, limit, since_ms, user_id)

    def _write(self) -> None:
        if self._entries:
            append.insert(self.connection, self._entries)
            self._entries.clear()
        if self._gone:
            reservations.delete(self.connection, self._gone)
            self._gone.clear()
        if self._made:
            reservations.insert(self.connection, self.owner(), self.now_ms, self._made.values())
            self._made.clear()


# One statement for both: most batches are small, and then the statements cost more than their rows.
_KNOWN = """
    SELECT value, EXISTS (SELECT 1 FROM ledger WHERE request_id = value),
        (SELECT taken_ms FROM reservations WHERE request_id = value)
    FROM json_each(?)
"""


def _request_id(operation: Operation) -> str:
    if isinstance(operation, Recording):
        return operation.entry.request_id
    opening = operation if isinstance(operation, Opening) else operation.opening
    return opening.reservation.request_id
