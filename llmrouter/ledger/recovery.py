"""Ends the reservations that nobody else will end: those of processes that died, and our own whose time is over."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from llmrouter.ledger import owners, reservations
from llmrouter.ledger.batch import Batch, Recording
from llmrouter.ledger.reservations import UnknownPolicy, unknown_entry
from llmrouter.ledger.transaction import transaction
from llmrouter.types import Reservation, Spent

__all__ = ["Recovered", "Terms", "bury_dead", "end_expired"]

Recovered = list[tuple[Reservation, Spent]]
"""Reservations that were turned into entries, and what these are billed."""

NewBatch = Callable[[sqlite3.Connection], Batch]


@dataclass(frozen=True, slots=True)
class Terms:
    """How the calls of the dead are booked."""

    folder: Path
    """Where the owners' locks lie."""
    own_name: str
    policy: UnknownPolicy
    new_batch: NewBatch
    patience_s: float
    """How long to wait for the write lock."""


def bury_dead(connection: sqlite3.Connection, terms: Terms) -> dict[str, Recovered]:
    """End what dead owners left; returns it by owner, one without open calls or a row of its own too.

    One transaction an owner: entries, settled limits, ended reservations and the owner's own row, all or nothing.
    Several processes may do this at once; each call is booked once.
    """
    found = owners.others(connection, terms.own_name)
    buried: dict[str, Recovered] = {}
    for number, name in found:
        with owners.dead_owner(terms.folder, name) as dead:
            if dead:
                with transaction(connection, terms.patience_s):
                    left = reservations.held_by(connection, number)
                    recovered = _book(connection, left, terms, "its process died")
                    connection.execute("DELETE FROM owners WHERE id = ?", (number,))
                buried[name] = recovered
    for name in owners.sweep(terms.folder, {terms.own_name, *(name for _, name in found)}):
        buried[name] = []  # it booked nothing, but may hold limits elsewhere
    return buried


def end_expired(
    connection: sqlite3.Connection, under_way: Sequence[Reservation], terms: Terms, now: datetime
) -> Recovered:
    """End our own reservations whose time is over, though nobody recorded an entry for them."""
    expired = [reservation for reservation in under_way if reservation.expires_at < now]
    if not expired:
        return []
    with transaction(connection, terms.patience_s):
        return _book(connection, expired, terms, "it was never booked and has expired")


def _book(connection: sqlite3.Connection, left: Sequence[Reservation], terms: Terms, reason: str) -> Recovered:
    entries = [unknown_entry(reservation, terms.policy, reason) for reservation in left]
    terms.new_batch(connection).apply([Recording(entry) for entry in entries])
    return [(reservation, entry.spent()) for reservation, entry in zip(left, entries, strict=True)]
