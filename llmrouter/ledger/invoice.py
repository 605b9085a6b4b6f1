"""What a tenant owes for a month: a line for each day, tier, model and price, from every attempt of its calls.

Each attempt is in exactly one line, and dollars are added as whole pico-dollars, so the lines add up to the rows
exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

from llmrouter.errors import UsageError
from llmrouter.ledger.usage import NUMBERS, Question, Report, UsageSource, ask, parse_day
from llmrouter.ledger.usage_formats import dollars, named_numbers, records
from llmrouter.types import value

__all__ = ["LINE_KEYS", "Invoice", "invoice", "invoice_as_json", "parse_month"]

LINE_KEYS = ("day", "tier", "model", "price")
_MOST_LINES = 1_000_000


@value
class Invoice:
    """A month of one tenant."""

    tenant_id: str
    month: date
    """Its first day."""
    lines: Report
    calls: Report
    """The same month counted by calls, as one group."""

    @property
    def cost_pico(self) -> int:
        """The sum of all lines."""
        return self._cost(self.lines)

    @property
    def calls_cost_pico(self) -> int:
        """What the calls say they cost; the same, unless somebody has changed the books by hand."""
        return self._cost(self.calls)

    @property
    def adds_up(self) -> bool:
        return self.cost_pico == self.calls_cost_pico

    @staticmethod
    def _cost(report: Report) -> int:
        return report.total()[NUMBERS[report.question.measure].index("cost_usd")]


def parse_month(text: str, what: str) -> date:
    """The first day of a month such as `2026-11`; raises `UsageError`."""
    if len(text) != 7:
        raise UsageError(f"{what} {text!r} is not a month such as 2026-11")
    return parse_day(text, what)


def invoice(sources: Sequence[UsageSource], tenant_id: str, month: date) -> Invoice:
    """The invoice of the month that begins with `month`, in UTC; raises as `ask`."""
    period = {"since": month, "until": _next(month), "tenants": (tenant_id,)}
    lines = ask(sources, Question(measure="attempts", by=LINE_KEYS, most=_MOST_LINES, **period))  # type: ignore[arg-type]
    calls = ask(sources, Question(measure="calls", **period))  # type: ignore[arg-type]
    return Invoice(tenant_id, month, lines, calls)


def _next(month: date) -> date | None:
    """The first day of the next month; None after the last that there is."""
    return None if (month.year, month.month) == (date.max.year, 12) else (month + timedelta(days=31)).replace(day=1)


def invoice_as_json(made: Invoice) -> dict[str, Any]:
    """The invoice as the API and `--json` show it."""
    return {
        "tenant": made.tenant_id,
        "month": f"{made.month:%Y-%m}",
        "requests": made.calls.total()[NUMBERS["calls"].index("requests")],
        "total": named_numbers(NUMBERS["attempts"], made.lines.total()),
        "calls_cost_usd": dollars(made.calls_cost_pico),
        "adds_up": made.adds_up,
        "lines": records(made.lines),
    }
