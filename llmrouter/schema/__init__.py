"""The numbered migrations of the SQLite file; a released one is never edited, a change is a further one at the end.

Each is a module with the statements that make its change (`UP`) and those that undo it (`DOWN`).

Money is INTEGER pico-dollars (1e-12 USD), so that SQL adds it without rounding; `llmrouter.pricing.money` states the
bounds. Instants are TEXT: UTC, ISO-8601, six decimals and a `Z`, so that they sort and compare as they read. Triggers
hold what the text of a table promises (what cannot change, what is counted), whoever writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from llmrouter.schema import artefacts, keys_rules_books, reservations_limits, route_score_checks, samples_labels

if TYPE_CHECKING:
    from sqlite_utils import Database, Migrations

__all__ = ["SET", "migration_names", "migrations", "statements_down"]

SET = "llmrouter"
"""The name under which the file records what has run."""

_NUMBERED = (
    ("0001_keys_rules_books", keys_rules_books.UP, keys_rules_books.DOWN),
    ("0002_reservations_limits", reservations_limits.UP, reservations_limits.DOWN),
    ("0003_samples_labels", samples_labels.UP, samples_labels.DOWN),
    ("0004_artefacts", artefacts.UP, artefacts.DOWN),
    ("0005_route_score_checks", route_score_checks.UP, route_score_checks.DOWN),
)


def migrations() -> Migrations:
    """All migrations, oldest first; each is one transaction together with the record that it ran."""
    from sqlite_utils import Migrations  # 0.1 s of import that only start-up pays

    numbered = Migrations(SET)
    for name, up, _ in _NUMBERED:
        numbered(name=name)(_running(up))
    return numbered


def migration_names() -> list[str]:
    """The names of all migrations, oldest first."""
    return [name for name, _, _ in _NUMBERED]


def statements_down(name: str) -> Sequence[str]:
    """What undoes a migration; data that only the newer schema can hold is lost."""
    return next(down for each, _, down in _NUMBERED if each == name)


def _running(statements: Sequence[str]) -> Callable[[Database], None]:
    def change(db: Database) -> None:
        for statement in statements:
            db.execute(statement)

    return change
