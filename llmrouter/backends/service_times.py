"""How long calls of a pool take, learnt from those that ended."""

from __future__ import annotations

from llmrouter.tenancy_sections import CLASSES

__all__ = ["Mean", "ServiceTimes"]

_LEAST = 8
"""Values before a mean is told: nobody is sent away on the word of a few calls after a start."""
_SPAN = 32
"""About as many of the last values make up the mean."""


class Mean:
    """A plain mean at first, then one that forgets old values exponentially."""

    __slots__ = ("_count", "_mean")

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0

    def add(self, amount: float) -> None:
        if self._count < _SPAN:
            self._count += 1
        self._mean += (amount - self._mean) / self._count

    @property
    def known(self) -> float | None:
        """None until there are enough values to go by."""
        return self._mean if self._count >= _LEAST else None


class ServiceTimes:
    """Means over the calls of a pool, in seconds."""

    __slots__ = ("_first_output", "_hold", "_hold_of")

    def __init__(self) -> None:
        self._hold = Mean()
        self._hold_of = tuple(Mean() for _ in CLASSES)
        self._first_output = tuple(Mean() for _ in CLASSES)

    def note(self, rank: int, hold_s: float, first_output_s: float | None) -> None:
        """A call has given its slot back; `first_output_s` is None where no answer was streamed."""
        self._hold.add(hold_s)
        self._hold_of[rank].add(hold_s)
        if first_output_s is not None:
            self._first_output[rank].add(first_output_s)

    def hold_s(self, rank: int | None = None) -> float | None:
        """How long a call keeps its slot, of one class or of all as they came."""
        return (self._hold if rank is None else self._hold_of[rank]).known

    def first_output_s(self, rank: int) -> float | None:
        """From the slot to the first streamed output."""
        return self._first_output[rank].known
