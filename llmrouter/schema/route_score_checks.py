"""0005: what a learned policy chose for a call, what it expected, and what its checks said."""

from __future__ import annotations

__all__ = ["DOWN", "UP"]

UP = (
    "ALTER TABLE ledger ADD COLUMN route TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE ledger ADD COLUMN score REAL",
    "ALTER TABLE ledger ADD COLUMN checks TEXT NOT NULL DEFAULT ''",
)
DOWN = (
    "ALTER TABLE ledger DROP COLUMN checks",
    "ALTER TABLE ledger DROP COLUMN score",
    "ALTER TABLE ledger DROP COLUMN route",
)
