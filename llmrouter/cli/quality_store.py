"""The store as `labels` and `samples` open it, and the times that they are given."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from llmrouter.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from llmrouter.config import Config

__all__ = ["filled_store", "parse_since"]

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def filled_store(config: Config) -> Path:
    """The file with samples and labels.

    Raises:
        UsageError: there is none yet, or an older llmrouter made it.
    """
    from llmrouter.database import database_path, reading

    path = database_path(config.store.url)
    if not path.exists():
        raise UsageError(f"there is no store at {path} yet; `llmrouter serve` or `llmrouter labels import` makes one")
    with reading(path) as connection:
        found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'quality_labels'").fetchone()
    if found is None:
        raise UsageError(f"{path} was made by an older llmrouter; `llmrouter serve` brings it up to date")
    return path


def parse_since(text: str, now: datetime) -> datetime:
    """A time such as `7d` before now, or an ISO date, which is UTC unless it says otherwise."""
    number, unit = text[:-1], text[-1:]
    try:
        if unit in _UNITS and number.isascii() and number.isdigit():
            return now - timedelta(**{_UNITS[unit]: int(number)})
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(f"--since {text!r} is neither a time such as 7d or 12h nor an ISO date") from None
