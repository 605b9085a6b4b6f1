"""Relative costs of a call by role, as they are given on the command line."""

from __future__ import annotations

import math

from llmrouter.errors import UsageError
from llmrouter.offline.roles import MAIN_ROLES

__all__ = ["parse_costs"]

_LEAST, _MOST = 1e-6, 1e9
"""Beyond, sums of costs would lose the small ones."""


def parse_costs(text: str) -> dict[str, float]:
    """Read `small=1,large=10,frontier=100`; `peer1=1`, `peer2=1`… may be there, too.

    Raises:
        UsageError: naming the part that is no role and positive number, or a role that stands there twice.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        role, _, number = part.strip().partition("=")
        try:
            cost = float(number)
        except ValueError:
            cost = math.nan
        if not _is_role(role) or not _LEAST <= cost <= _MOST:
            raise UsageError(
                f"--costs: {part.strip()!r} is not ROLE=NUMBER with one of {', '.join(MAIN_ROLES)}, peer1, … "
                "and a number above 0 (at least 1e-6, at most 1e9)"
            )
        if role in found:
            raise UsageError(f"--costs names {role} twice")
        found[role] = cost
    return found


def _is_role(name: str) -> bool:
    return name in MAIN_ROLES or (name.startswith("peer") and name[4:].isdecimal() and name[4:5] != "0")
