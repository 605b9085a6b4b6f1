"""Contradictions and oddities of limits, groups, latency classes and budgets, for `config_checks`."""

from __future__ import annotations

from collections.abc import Iterator

from llmrouter.config import LIMIT_KINDS, LimitSet

__all__ = ["limits_above"]


def limits_above(name: str, inner: LimitSet, outer_name: str, outer: LimitSet) -> Iterator[str]:
    """One line for each limit of an inner scope that its outer scope's lower one makes unreachable."""
    for kind in LIMIT_KINDS:
        most, bound = getattr(inner, kind), getattr(outer, kind)
        if most is not None and bound is not None and most > bound:
            yield f"{name}: {kind} = {most} is never reached, because {outer_name} has {bound}"
