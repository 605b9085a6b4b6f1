"""Dollars as exact decimals in Python and as whole pico-dollars (1e-12 USD) in SQL.

A 64-bit integer holds 9,223,372 dollars in pico-dollars: that is the most one stored amount can be, and a plain
`SUM(cost_picousd)` of SQLite stops with "integer overflow" above it. Queries therefore add the two halves of
`exact_sum` and put them together with `from_halves`: exact up to 9.2e12 dollars and 9.2e12 rows.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal

__all__ = ["EXACT", "MAX_STORED_USD", "exact_sum", "from_halves", "from_pico", "quantise", "to_pico"]

EXACT = Context(prec=60, rounding=ROUND_HALF_EVEN)
"""Wide enough that products and sums of tokens and rates are not rounded."""

MAX_STORED_USD = Decimal(2**63 - 1).scaleb(-12)

_QUANTUM = Decimal(1).scaleb(-12)
_HALF = 1_000_000


def quantise(amount_usd: Decimal) -> Decimal:
    """The nearest whole pico-dollar, ties to even."""
    return amount_usd.quantize(_QUANTUM, context=EXACT)


def to_pico(amount_usd: Decimal) -> int:
    """Dollars as stored; an amount that is finer than a pico-dollar is rounded as `quantise` does.

    Raises:
        OverflowError: the amount is above `MAX_STORED_USD`.
    """
    pico = int(amount_usd.scaleb(12, context=EXACT).to_integral_value(ROUND_HALF_EVEN))
    if pico >= 2**63:
        raise OverflowError(f"{amount_usd} dollars are more than one entry can hold")
    return pico


def from_pico(pico: int) -> Decimal:
    """The dollars that `to_pico` stored."""
    return Decimal(pico).scaleb(-12, context=EXACT)


def exact_sum(column: str) -> str:
    """Two SQL expressions that add up a pico-dollar column without overflow; NULL counts as nothing."""
    return f"coalesce(sum({column} / {_HALF}), 0), coalesce(sum({column} % {_HALF}), 0)"


def from_halves(upper: int, lower: int) -> Decimal:
    """The dollars of a row's two `exact_sum` columns."""
    return from_pico(upper * _HALF + lower)
