"""The questions of `llmrouter.ledger.queries`, asked of a spool and its server together.

Amounts are added as integers, so the answer over both places is as exact as over one.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from llmrouter.database import SharedConnection, to_instant
from llmrouter.errors import UsageError
from llmrouter.ledger.entries import Row, entry_of
from llmrouter.ledger.postgres.both import Both, both
from llmrouter.ledger.queries import Grouping, ModelUsage, Totals
from llmrouter.postgres import Neutral, Postgres
from llmrouter.pricing.money import exact_sum, from_halves
from llmrouter.types import LedgerEntry, value

if TYPE_CHECKING:
    import psycopg

__all__ = ["shared_entries", "shared_model_usage", "shared_totals"]


def shared_totals(
    path: Path,
    database: Postgres,
    since: datetime | None = None,
    until: datetime | None = None,
    by: Grouping = "all",
) -> list[Totals]:
    """Totals over all gateways; see `queries.totals`. What other gateways have not shipped yet is missing."""
    if by not in get_args(Grouping):
        raise UsageError(f"cannot group by {by!r}; known: {', '.join(get_args(Grouping))}")
    with both(path, database) as books:
        rows = [row for part in _parts(books) for row in part.ask(_TOTALS, since, until, group=part.groups[by])]
    found = [_totals(key, sums) for key, sums in _added(rows).items()]
    return sorted(found, key=lambda group: (-group.cost_usd, group.key or ""))


def shared_model_usage(
    path: Path, database: Postgres, since: datetime | None = None, until: datetime | None = None
) -> list[ModelUsage]:
    """What each model did over all gateways; see `queries.model_usage`."""
    with both(path, database) as books:
        rows = [row for part in _parts(books) for row in part.ask(_MODEL_USAGE, since, until, joined=part.joined)]
    found = [_model_usage(str(model_id), sums) for model_id, sums in _added(rows).items()]
    return sorted(found, key=lambda usage: (-usage.cost_usd, usage.model_id))


def shared_entries(path: Path, database: Postgres, limit: int, request_id: str | None = None) -> list[LedgerEntry]:
    """The newest entries with their attempts, newest first; with a `request_id` only that one."""
    with both(path, database) as books:
        found = _entries_here(books, limit, request_id) + _entries_there(books.server, limit, request_id)
    return sorted(found, key=lambda entry: entry.ts, reverse=True)[:limit]


_TOTALS = f"""
    SELECT {{group}} AS grouped, count(*), sum(CASE WHEN model_id IS NULL THEN 1 ELSE 0 END), sum(input_tokens),
        sum(cached_tokens), sum(output_tokens), sum(reasoning_tokens),
        {exact_sum("cost_picousd")}, {exact_sum("reference_cost_picousd")},
        {exact_sum("CASE WHEN model_id IS NOT NULL AND reference_cost_picousd IS NULL THEN cost_picousd ELSE 0 END")}
    FROM ledger WHERE {{condition}} GROUP BY 1
"""  # noqa: S608 - own text, values are bound

_MODEL_USAGE = f"""
    SELECT attempts.model_id, count(*), sum(CASE WHEN outcome <> 'ok' THEN 1 ELSE 0 END), sum(committed),
        sum(attempts.input_tokens), sum(attempts.cached_tokens), sum(attempts.output_tokens),
        sum(attempts.reasoning_tokens), {exact_sum("attempts.cost_picousd")}
    FROM ledger JOIN attempts ON {{joined}} WHERE {{condition}} GROUP BY attempts.model_id
"""  # noqa: S608 - own text, values are bound

_GROUPS: dict[str, str] = {
    "all": "'all'",
    "tenant": "tenant_id",
    "key": "key_id",
    "tier": "tier",
    "model": "model_id",
    "strategy": "strategy",
    "rule": "rule_id",
    "intent": "intent",
    "routing_version": "routing_version",
}


@value
class _Part:
    """One of the two places, with what its dialect says in its own way."""

    connection: SharedConnection
    groups: dict[str, str]
    joined: str
    condition: str

    def ask(self, query: str, since: datetime | None, until: datetime | None, **parts: str) -> list[Any]:
        bounds = [("ledger.ts >= ?", since), ("ledger.ts < ?", until)]
        given = [(text, to_instant(moment)) for text, moment in bounds if moment is not None]
        condition = " AND ".join([f"({self.condition})", *(text for text, _ in given)])
        asked = query.format(condition=condition, **parts)
        return self.connection.execute(asked, tuple(text for _, text in given)).fetchall()


def _parts(books: Both) -> tuple[_Part, _Part]:
    here = _Part(books.spool, {**_GROUPS, "day": "substr(ts, 1, 10)"}, "entry_id = ledger.id", books.waiting)
    joined = "attempts.request_id = ledger.request_id AND attempts.ts = ledger.ts"
    there = _Part(Neutral(books.server), {**_GROUPS, "day": "to_char(ts, 'YYYY-MM-DD')"}, joined, "TRUE")
    return here, there


def _added(rows: Iterable[Sequence[Any]]) -> dict[str | None, list[int]]:
    """The sums of each group over both places; a place without any rows of a group has no row for it."""
    groups: dict[str | None, list[int]] = {}
    for row in rows:
        key = None if row[0] is None else str(row[0])
        sums = [int(number) for number in row[1:]]
        known = groups.get(key)
        groups[key] = sums if known is None else [a + b for a, b in zip(known, sums, strict=True)]
    return groups


def _totals(key: str | None, sums: Sequence[int]) -> Totals:
    requests, failed, input_tokens, cached, output_tokens, reasoning, *halves = sums
    cost, reference, incomparable = (from_halves(*halves[at : at + 2]) for at in (0, 2, 4))
    return Totals(key, requests, failed, input_tokens, cached, output_tokens, reasoning, cost, reference, incomparable)


def _model_usage(model_id: str, sums: Sequence[int]) -> ModelUsage:
    attempts, failed, committed, input_tokens, cached, output_tokens, reasoning, upper, lower = sums
    return ModelUsage(
        model_id,
        attempts,
        failed,
        committed,
        input_tokens,
        cached,
        output_tokens,
        reasoning,
        from_halves(upper, lower),
    )


def _entries_here(books: Both, limit: int, request_id: str | None) -> list[LedgerEntry]:
    condition, given = ("TRUE", ()) if request_id is None else ("request_id = ?", (request_id,))
    newest = f"SELECT * FROM ledger WHERE ({books.waiting}) AND {condition} ORDER BY ts DESC, id DESC LIMIT ?"  # noqa: S608 - own text
    with closing(books.spool.cursor()) as cursor:
        cursor.row_factory = sqlite3.Row
        rows = cursor.execute(newest, (*given, limit)).fetchall()
        wanted = "SELECT * FROM attempts WHERE entry_id = ? ORDER BY seq"
        return [entry_of(row, cursor.execute(wanted, (row["id"],)).fetchall()) for row in rows]


def _entries_there(server: psycopg.Connection[Any], limit: int, request_id: str | None) -> list[LedgerEntry]:
    from psycopg.rows import dict_row

    condition, given = ("TRUE", ()) if request_id is None else ("request_id = %s", (request_id,))
    newest = f"SELECT *, tags::text AS tags FROM ledger WHERE {condition} ORDER BY ts DESC, request_id LIMIT %s"  # noqa: S608 - own text
    wanted = "SELECT * FROM attempts WHERE request_id = ANY(%s) AND ts BETWEEN %s AND %s ORDER BY seq"
    with server.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(newest.encode(), (*given, limit)).fetchall()
        attempts: dict[str, list[Row]] = defaultdict(list)
        if rows:
            ids = [row["request_id"] for row in rows]
            for attempt in cursor.execute(wanted, (ids, rows[-1]["ts"], rows[0]["ts"])):
                attempts[attempt["request_id"]].append(attempt)
    return [entry_of({**row, "ts": to_instant(row["ts"])}, attempts[row["request_id"]]) for row in rows]
