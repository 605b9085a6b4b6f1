"""Which latency classes may fill how many of a pool's slots."""

from __future__ import annotations

from llmrouter.tenancy_sections import CLASSES, ClassesConfig

__all__ = ["Shares"]


class Shares:
    """Slots in use by class, and the bounds on them.

    A class may start a call while the slots of it and all less urgent classes together stay below its own bound, and
    below the bounds of all more urgent ones. So the classes that may start now are always the most urgent few.
    """

    __slots__ = ("_bounds", "_used")

    def __init__(self, slots: int | None, classes: ClassesConfig) -> None:
        self._used = [0] * len(CLASSES)
        """By class: slots of it and of less urgent ones."""
        self.configure(slots, classes)

    def configure(self, slots: int | None, classes: ClassesConfig) -> None:
        """Take other bounds; None means no bound at all. Calls under way keep their slots.

        A share is rounded to the nearest whole slot, a half upwards, and is one slot at least: a pool of four keeps one
        slot free of batch work at the default 0.7, and a pool of one serves every class.
        """
        self._bounds = (
            None if slots is None else tuple(max(int(classes.of(name).max_share * slots + 0.5), 1) for name in CLASSES)
        )

    @property
    def in_use(self) -> int:
        return self._used[0]

    def used_by(self, rank: int) -> int:
        """Slots of one class alone."""
        used = [*self._used, 0]
        return used[rank] - used[rank + 1]

    def bound(self, rank: int) -> int | None:
        """Most slots that one class can ever hold."""
        return None if self._bounds is None else min(self._bounds[: rank + 1])

    def open_classes(self) -> int:
        """How many classes, from the most urgent on, may start a call now."""
        used = self._used
        if self._bounds is not None:
            for rank, bound in enumerate(self._bounds):
                if used[rank] >= bound:
                    return rank
        return len(used)

    def start(self, rank: int) -> None:
        used = self._used
        while rank >= 0:
            used[rank] += 1
            rank -= 1

    def end(self, rank: int) -> None:
        used = self._used
        while rank >= 0:
            used[rank] -= 1
            rank -= 1
