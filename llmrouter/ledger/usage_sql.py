"""Usage asked in SQL, of SQLite, of PostgreSQL, and of the archive through DuckDB.

One text serves all; a dialect says what each does in its own way. Dollars are added in two halves (`exact_sum` of
`llmrouter.pricing.money` says why).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from llmrouter.ledger.usage import MONEY, NUMBERS, Group, Measure, Question
from llmrouter.types import value

__all__ = ["POSTGRES", "SQLITE", "Asked", "Dialect", "SqlSource"]

_HALF = 1_000_000


@value
class Dialect:
    """How one database says it; `{call}` and the like are filled in."""

    tables: dict[Measure, str]
    call: dict[Measure, str]
    """What a call's columns hang on in the question of a measure."""
    attempt: str
    month: str
    day: str
    hour: str
    tag: str
    """The text of the tag that a parameter names, NULL where there is none."""
    quotient: str
    """Division of whole numbers."""
    instant: str = "?"
    """A text such as `2026-12-01T00:00:00.000000Z` as an instant."""
    tag_parameter: Callable[[str], str] = str


SQLITE = Dialect(
    tables={"calls": "ledger", "attempts": "ledger JOIN attempts ON attempts.entry_id = ledger.id"},
    call={"calls": "ledger", "attempts": "ledger"},
    attempt="attempts",
    month="substr({call}.ts, 1, 7)",
    day="substr({call}.ts, 1, 10)",
    hour="substr({call}.ts, 1, 13) || ':00Z'",
    tag="(SELECT CAST(value AS TEXT) FROM json_each({call}.tags) WHERE key = ?)",
    quotient="/",
)

POSTGRES = Dialect(
    tables={
        "calls": "ledger",
        "attempts": "ledger JOIN attempts ON attempts.request_id = ledger.request_id AND attempts.ts = ledger.ts",
    },
    call={"calls": "ledger", "attempts": "ledger"},
    attempt="attempts",
    month="to_char({call}.ts, 'YYYY-MM')",
    day="to_char({call}.ts, 'YYYY-MM-DD')",
    hour="""to_char({call}.ts, 'YYYY-MM-DD"T"HH24":00Z"')""",
    tag="{call}.tags ->> ?::text",
    quotient="/",
)

_KEYS = {
    "tenant": "{call}.tenant_id",
    "key": "{call}.key_id",
    "user": "{call}.user_id",
    "tier": "{call}.tier",
    "model": "{row}.model_id",
    "class": "{call}.latency_class",
    "price": "{row}.price_id",
    "pool": "{row}.pool_id",
}


class _Answer(Protocol):
    def fetchall(self) -> list[Any]: ...


class Asked(Protocol):
    """A connection to any of them; `?` stands for a value."""

    def execute(self, sql: str, parameters: Sequence[Any], /) -> _Answer: ...


class SqlSource:
    """`UsageSource` over a connection whose transaction sees one moment.

    Args:
        condition: which rows of the ledger count.
    """

    def __init__(self, connection: Asked, dialect: Dialect, condition: str = "TRUE") -> None:
        self.connection = connection
        self._dialect = dialect
        self._condition = condition

    def ask(self, question: Question) -> list[Group]:
        query, given = self._query(question)
        keys = len(question.by)
        found = self.connection.execute(query, given).fetchall()
        return [Group(tuple(row[:keys]), _numbers(question.measure, row[keys:])) for row in found]

    def _query(self, question: Question) -> tuple[str, list[Any]]:
        said = self._dialect
        call = said.call[question.measure]
        row = call if question.measure == "calls" else said.attempt
        keys, given = self._keys(question.by, call, row)
        conditions = [f"({self._condition})"]
        for sign, day in ((">=", question.since), ("<", question.until)):
            if day is not None:
                conditions.append(f"{call}.ts {sign} {said.instant}")
                given.append(f"{day.isoformat()}T00:00:00.000000Z")
        if question.tenants:
            conditions.append(f"{call}.tenant_id IN ({', '.join('?' * len(question.tenants))})")
            given += question.tenants
        numbers = [_added(name, question.measure, row, said) for name in NUMBERS[question.measure]]
        grouping = f"GROUP BY {', '.join(str(at + 1) for at in range(len(keys)))}" if keys else "HAVING count(*) > 0"
        query = (
            f"SELECT {', '.join([*keys, *numbers])} FROM {said.tables[question.measure]} "  # noqa: S608 - own text, values are bound
            f"WHERE {' AND '.join(conditions)} {grouping} LIMIT {question.most + 1}"
        )
        return query, given

    def _keys(self, by: Sequence[str], call: str, row: str) -> tuple[list[str], list[str]]:
        said = self._dialect
        times = {"month": said.month, "day": said.day, "hour": said.hour, "tag": said.tag}
        kinds = [name.partition(":") for name in by]
        keys = [(_KEYS.get(kind) or times[kind]).format(call=call, row=row) for kind, _, _ in kinds]
        return keys, [said.tag_parameter(tag) for kind, _, tag in kinds if kind == "tag"]


_COUNTED: dict[tuple[Measure, str], str] = {
    ("calls", "requests"): "TRUE",
    ("calls", "failed"): "{row}.model_id IS NULL",
    ("calls", "degraded"): "{row}.degraded_to IS NOT NULL",
    ("calls", "unknown"): "{row}.error_code = 'unknown'",
    ("attempts", "attempts"): "TRUE",
    ("attempts", "failed"): "{row}.outcome <> 'ok'",
    ("attempts", "unknown"): "{row}.outcome = 'unknown'",
}


def _added(name: str, measure: Measure, row: str, said: Dialect) -> str:
    """The expression of a number, or the two of an amount."""
    if name in MONEY:
        column = f"{row}.{name.removesuffix('_usd')}_picousd"
        return f"coalesce(sum({column} {said.quotient} {_HALF}), 0), coalesce(sum({column} % {_HALF}), 0)"
    condition = _COUNTED.get((measure, name))
    if condition is None:
        return f"sum({row}.{name})"
    return f"sum(CASE WHEN {condition.format(row=row)} THEN 1 ELSE 0 END)"


def _numbers(measure: Measure, found: Sequence[Any]) -> tuple[int, ...]:
    rest = iter(found)
    return tuple(
        int(next(rest)) * _HALF + int(next(rest)) if name in MONEY else int(next(rest)) for name in NUMBERS[measure]
    )
