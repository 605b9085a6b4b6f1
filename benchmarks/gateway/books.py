"""Whether the ledger holds exactly the calls that were made: a fast gateway with wrong books is not fast."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Booked", "Calls", "faults", "read_books"]

PROMPT_TOKENS = 1500
"""What the engine says of every prompt."""


@dataclass(slots=True)
class Calls:
    """What the client asked of one target over the whole run, and what the engine answered meanwhile."""

    issued: int = 0
    good: int = 0
    lost: int = 0
    """Calls of which the client cannot tell how they ended in the target: timed out, broken off, given up."""
    refused: int = 0
    """Answers with another status than 200, which may or may not be booked."""
    output_tokens: int = 0
    """Of the good ones."""
    answered: int = 0
    """By the engine, begun streams included."""

    def add(self, report: Mapping[str, Any], tokens: int, answered: int) -> None:
        """Count one run of the client, whose answers have so many tokens each."""
        self.issued += report["issued"]
        self.good += report["good"]
        self.lost += sum(report[name] for name in ("unreachable", "broken", "wrong", "late", "unfinished"))
        self.refused += report["refused"]
        self.output_tokens += report["good"] * tokens
        self.answered += answered


@dataclass(frozen=True, slots=True)
class Booked:
    """What the ledger holds."""

    rows: int
    complete: int
    """Answered in full: status 200, not aborted."""
    input_tokens: int
    output_tokens: int
    """Of the complete ones."""
    attempts: int


def read_books(store: Path) -> Booked:
    """The totals of a store that nobody writes any more."""
    query = """
        SELECT count(*), coalesce(sum(whole), 0), coalesce(sum(whole * input_tokens), 0),
               coalesce(sum(whole * output_tokens), 0), (SELECT count(*) FROM attempts)
        FROM (SELECT *, status = 200 AND NOT aborted AS whole FROM ledger)
    """
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        return Booked(*connection.execute(query).fetchone())


def faults(calls: Calls, booked: Booked) -> list[str]:
    """What is wrong with the books, in words; empty when they are right.

    Calls that ended well must be booked once each, with the engine's own token counts. How a call ended that the client
    lost is not known, so each may make a row and each may be a complete one.
    """
    found = []
    if not calls.good <= booked.complete <= calls.good + calls.lost:
        found.append(f"{booked.complete} complete answers are booked, the client got {calls.good}")
    if booked.rows > calls.issued:
        found.append(f"{booked.rows} rows for {calls.issued} calls")
    if calls.lost == 0:
        if booked.rows + calls.refused < calls.issued:
            found.append(f"{booked.rows} rows for {calls.issued} calls, of which {calls.refused} were refused")
        if booked.output_tokens != calls.output_tokens:
            found.append(f"{booked.output_tokens} output tokens are booked, the client got {calls.output_tokens}")
        if booked.input_tokens != PROMPT_TOKENS * booked.complete:
            found.append(f"{booked.input_tokens} input tokens are booked for {booked.complete} answers")
        if calls.refused == 0 and booked.attempts != calls.answered:
            found.append(f"{booked.attempts} attempts are booked, the engine answered {calls.answered}")
    return found
