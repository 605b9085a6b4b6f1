"""Labels as arrays: one row a prompt, one column a role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from llmrouter.routing.ask import Ask
from llmrouter.types import TokenSignals

__all__ = ["Floats", "LabelSet", "RoleLabels"]

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RoleLabels:
    """What the models of one role did, row by row."""

    quality: Floats
    """Shape (n,): score from 0 to 1; NaN where there is no label."""
    answers: tuple[str | None, ...]
    """The short answer it came to, where that is known."""
    out_chars: Floats
    """Shape (n,): characters of the whole answer; NaN where not known."""
    cost_usd: Floats
    """Shape (n,): NaN where not known."""
    signals: tuple[TokenSignals | None, ...] = ()
    """What log-probabilities say of the whole answer, and"""
    prefix_signals: tuple[TokenSignals | None, ...] = ()
    """of its beginning, as much as is held back of a stream. These and the following are empty where no row has any."""
    p_true: Floats = field(default_factory=lambda: np.empty(0))
    """Shape (n,): how likely the model was to say that its answer is right; NaN where it was not asked."""
    self_check_share: Floats = field(default_factory=lambda: np.empty(0))
    """Shape (n,): what asking it took, as a share of what the answer took; NaN where not known."""

    def take(self, rows: NDArray[np.intp]) -> RoleLabels:
        """The rows at these positions, in that order."""
        positions = rows.tolist()
        return RoleLabels(
            quality=self.quality[rows],
            answers=tuple(self.answers[i] for i in positions),
            out_chars=self.out_chars[rows],
            cost_usd=self.cost_usd[rows],
            signals=tuple(self.signals[i] for i in positions) if self.signals else (),
            prefix_signals=tuple(self.prefix_signals[i] for i in positions) if self.prefix_signals else (),
            p_true=self.p_true[rows] if len(self.p_true) else self.p_true,
            self_check_share=self.self_check_share[rows] if len(self.self_check_share) else self.self_check_share,
        )


@dataclass(frozen=True, slots=True)
class LabelSet:
    """Rows in the order of the files; every tuple and array has one entry a row."""

    ids: tuple[str, ...]
    sources: tuple[str, ...]
    groups: tuple[str, ...]
    """Rows that must never be split between training and testing: the same or nearly the same question."""
    splits: tuple[str | None, ...]
    """`train`, `dev`, `eval`, … as the file says; None where it says nothing."""
    asks: tuple[Ask, ...]
    inclusion: Floats
    """Probability with which each row was chosen to be labelled; 1 where not said."""
    roles: Mapping[str, RoleLabels]
    """`small`, `large`, `frontier`, and `peer1`, `peer2`, …; only roles that some row has."""
    models: Mapping[str, Mapping[str, str]]
    """Source → role → model id."""

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: NDArray[np.intp]) -> LabelSet:
        """The rows at these positions, in that order."""
        positions = rows.tolist()
        return LabelSet(
            ids=tuple(self.ids[i] for i in positions),
            sources=tuple(self.sources[i] for i in positions),
            groups=tuple(self.groups[i] for i in positions),
            splits=tuple(self.splits[i] for i in positions),
            asks=tuple(self.asks[i] for i in positions),
            inclusion=self.inclusion[rows],
            roles={role: column.take(rows) for role, column in self.roles.items()},
            models=self.models,
        )
