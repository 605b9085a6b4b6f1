"""Label sets made up in place, for tests of what is done with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from llmrouter.offline.labels import LabelSet, RoleLabels
from llmrouter.routing.ask import Ask

__all__ = ["labels_of"]


def labels_of(
    quality: Mapping[str, Sequence[float]],
    *,
    asks: Sequence[str] | None = None,
    sources: Sequence[str] | None = None,
    models: Mapping[str, Mapping[str, str]] | None = None,
) -> LabelSet:
    """One row an entry of each role's scores, with ids `q0`, `q1`, …"""
    n = len(next(iter(quality.values())))
    names = tuple(sources or ["made"] * n)
    return LabelSet(
        ids=tuple(f"q{row}" for row in range(n)),
        sources=names,
        groups=tuple(f"g{row}" for row in range(n)),
        splits=(None,) * n,
        asks=tuple(Ask(text) for text in asks or [f"question {row}" for row in range(n)]),
        inclusion=np.ones(n),
        roles={
            role: RoleLabels(np.array(scores, dtype=float), (None,) * n, np.full(n, np.nan), np.full(n, np.nan))
            for role, scores in quality.items()
        },
        models=models or {name: {role: f"{role}-model" for role in quality} for name in set(names)},
    )
