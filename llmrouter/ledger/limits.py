"""The counters of limits in the SQLite file; what their numbers mean is in `llmrouter.buckets`."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from llmrouter.buckets import Bucket, put_back, standing, take_all, unused_of, window_start
from llmrouter.database import reading
from llmrouter.types import Admission, Exceeded, Limit, LimitKind, Reservation, Spent, Standing

__all__ = ["Begin", "Counters", "drop_idle", "idle", "standings"]

_LARGEST = 2**63 - 1
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS

_Key = tuple[str, LimitKind]

Begin = Callable[[Limit, int, str | None], int]
"""What a dollar limit's scope has spent in the window that begins at a moment; with the end user of the call that
counts against it."""


class Counters:
    """Takes and gives back inside one write transaction; `flush` writes what has changed.

    Each counter is read once and written once, however many reservations of the batch count against it.
    """

    def __init__(self, connection: sqlite3.Connection, now_ms: int, begin: Begin, reserved: Begin) -> None:
        """`begin` says what a new dollar counter begins with, `reserved` what calls under way have set aside."""
        self._connection = connection
        self._now_ms = now_ms
        self._begin = begin
        self._reserved = reserved
        self._set_aside: dict[_Key, int] = {}
        self._buckets: dict[_Key, Bucket] = {}
        self._changed: set[_Key] = set()

    def take(self, reservation: Reservation) -> Admission:
        """Take a reservation from each of its limits, or nothing from any."""
        user_id = reservation.user_id
        taken = take_all(reservation, lambda limit: self._bucket(limit, user_id), self._now_ms)
        if isinstance(taken, Exceeded):
            return Admission(exceeded=self._explained(taken, user_id))
        self._buckets.update(taken)
        self._changed.update(taken)
        return Admission(standings=self.standings(reservation.limits)) if taken else Admission()

    def _explained(self, refused: Exceeded, user_id: str | None) -> Exceeded:
        """With what calls under way hold of a dollar limit, looked up once a batch: a refused crowd is large."""
        limit = refused.limit
        if not limit.kind.startswith("usd") or refused.reset_s is None:
            return refused
        key = limit.scope, limit.kind
        if key not in self._set_aside:
            self._set_aside[key] = self._reserved(limit, window_start(limit.kind, self._now_ms), user_id)
        return dataclasses.replace(refused, reserved=min(self._set_aside[key], refused.current))

    def settle(self, reservation: Reservation, spent: Spent, taken_ms: int) -> None:
        """Give back what a reservation did not use, or take what was used beyond it."""
        for limit in reservation.limits:
            key = limit.scope, limit.kind
            unused = unused_of(limit, reservation, spent)
            bucket = self._bucket(limit, reservation.user_id)
            self._buckets[key] = put_back(limit, bucket, unused, taken_ms, self._now_ms)
            self._changed.add(key)

    def standings(self, limits: Iterable[Limit]) -> tuple[Standing, ...]:
        """How the rate limits among these stand."""
        return tuple([standing(each, self._bucket(each), self._now_ms) for each in limits if each.kind in _RATES])

    def flush(self) -> None:
        """Write what has changed."""
        if not self._changed:
            return
        rows = []
        for scope, kind in self._changed:
            bucket = self._buckets[scope, kind]
            # A call that used more than any counter can hold must not keep its entry out of the books.
            rows.append((scope, kind, min(bucket.value, _LARGEST), bucket.mark))
        self._connection.executemany(_WRITE, rows)
        self._changed.clear()

    def _bucket(self, limit: Limit, user_id: str | None = None) -> Bucket:
        key = limit.scope, limit.kind
        bucket = self._buckets.get(key)
        if bucket is None:
            row = self._connection.execute(_READ, key).fetchone()
            bucket = Bucket() if row is None else Bucket(*row)
            if limit.kind.startswith("usd"):
                bucket = self._in_window(limit, bucket, user_id, known=row is not None)
            self._buckets[key] = bucket
        return bucket

    def _in_window(self, limit: Limit, bucket: Bucket, user_id: str | None, *, known: bool) -> Bucket:
        """The counter of the current window, which begins with what the scope has spent in it already.

        That is nothing where the limit held all the time; where it is new or was taken out for a while, the books know.
        It is written even if the reservation that asks is refused, so that the books are asked once.
        """
        since_ms = window_start(limit.kind, self._now_ms)
        if known and bucket.mark >= since_ms:
            return bucket
        self._changed.add((limit.scope, limit.kind))
        return Bucket(self._begin(limit, since_ms, user_id), since_ms)


_RATES = ("requests_per_minute", "tokens_per_minute")
_READ = "SELECT value, mark FROM limit_counters WHERE scope = ? AND kind = ?"
_WRITE = """
    INSERT INTO limit_counters VALUES (?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET value = excluded.value, mark = excluded.mark
"""


def standings(path: Path, limits: Sequence[Limit], now_ms: int) -> tuple[Standing, ...]:
    """How limits stand now, in the order given; changes nothing.

    Raises:
        StoreUnavailable: the database cannot be read.
    """
    with reading(path) as connection:
        rows = [connection.execute(_READ, (limit.scope, limit.kind)).fetchone() for limit in limits]
    return tuple(
        standing(limit, Bucket() if row is None else Bucket(*row), now_ms)
        for limit, row in zip(limits, rows, strict=True)
    )


def idle(connection: sqlite3.Connection, now_ms: int, most: int, after: _Key | None = None) -> list[_Key]:
    """Counters that say no more than a missing one, in the table's order from behind a key, at most so many.

    Those are rates that nobody used for a day and that have drained (at one a minute a millisecond drains one unit, and
    no limit is lower), dollar windows that are over, and slots that nobody holds. Takes no lock.
    """
    scope, kind = after or ("", "")
    given = {**_moments(now_ms), "scope": scope, "kind": kind, "most": most}
    return connection.execute(_FIND_IDLE, given).fetchall()


def drop_idle(connection: sqlite3.Connection, now_ms: int, keys: Iterable[_Key]) -> None:
    """Delete those of these counters that are `idle` still. The caller says BEGIN and COMMIT."""
    moments = _moments(now_ms)
    connection.executemany(_DROP_IDLE, [{**moments, "scope": scope, "kind": kind} for scope, kind in keys])


def _moments(now_ms: int) -> dict[str, int]:
    return {
        "now": now_ms,
        "hours": now_ms - 2 * _HOUR_MS,
        "day": now_ms - _DAY_MS,
        "days": now_ms - 2 * _DAY_MS,
        "months": now_ms - 40 * _DAY_MS,
    }


_IS_IDLE = """(
    kind IN ('requests_per_minute', 'tokens_per_minute') AND mark < :day AND value <= :now - mark
    OR kind = 'concurrent_requests' AND value = 0
    OR kind = 'usd_per_hour' AND mark < :hours
    OR kind = 'usd_per_day' AND mark < :days
    OR kind = 'usd_per_month' AND mark < :months
)"""
_FIND_IDLE = f"""
    SELECT scope, kind FROM limit_counters WHERE (scope, kind) > (:scope, :kind) AND {_IS_IDLE}
    ORDER BY scope, kind LIMIT :most
"""  # noqa: S608 - own text
_DROP_IDLE = f"DELETE FROM limit_counters WHERE scope = :scope AND kind = :kind AND {_IS_IDLE}"  # noqa: S608 - own text
