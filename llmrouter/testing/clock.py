"""A clock that only a test turns."""

from __future__ import annotations

__all__ = ["HandClock"]


class HandClock:
    """Stands still until `advance`; give it wherever code takes a `clock: Callable[[], float]`."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def __call__(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move forward; a monotonic clock cannot go back, so a negative step is refused."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back by {-seconds} s")
        self._now_s += seconds
