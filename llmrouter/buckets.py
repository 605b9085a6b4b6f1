"""What each kind of limit means: pure arithmetic on two integers, `value` and `mark`, that any store can keep.

*Rates* (`requests_per_minute`, `tokens_per_minute`) are token buckets in the form of the generic cell rate algorithm
(ITU-T I.371, annex A): the debt drains at the limit's rate, and a reservation is admitted while debt and wish together
stay within the burst. `value` is the debt, in units of 1/60,000 so that a millisecond drains exactly `most` of them;
`mark` is the Unix time in milliseconds of that debt. In any t seconds at most `burst + most · t / 60` are admitted.
What is given back counts only as far as it has not drained meanwhile: had it not been taken, the bucket would have been
full and the same draining lost. So the bound also holds for what calls really used. A clock that runs back a little
drains nothing until it has caught up; one that was set back counts from its new time.

*Concurrency*: `value` is the number of reservations that have not ended; `mark` is 0.

*Dollars*: `value` is what is used and set aside in the calendar window (UTC) that begins at `mark`, in nano-dollars; a
reservation is admitted while that and its own worst case stay within the limit. It stays in the window it was made in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from typing import get_args

from llmrouter.types import Exceeded, Limit, LimitKind, Reservation, Spent, Standing, value

__all__ = [
    "RATE_UNITS",
    "Bucket",
    "amount_of",
    "exceeded",
    "longest",
    "put_back",
    "standing",
    "take",
    "take_all",
    "to_nano",
    "unused_of",
    "window_start",
]

RATE_UNITS = 60_000
"""Units of debt for one request or token."""

_SCALES: dict[LimitKind, int] = dict.fromkeys(get_args(LimitKind), 1) | {
    "requests_per_minute": RATE_UNITS,
    "tokens_per_minute": RATE_UNITS,
}
_SHORTEST_MS: dict[LimitKind, int] = {
    "usd_per_hour": 3_600_000,
    "usd_per_day": 86_400_000,
    "usd_per_month": 28 * 86_400_000,
}
"""No window of that kind is shorter."""

_SET_BACK_MS = 60_000
"""A clock this far behind a bucket's mark was set back; readings of one clock by several processes differ by less."""

_SLOT_RETRY_S = 1.0
"""Retry hint for a concurrency limit: nobody knows when a call ends."""


@value
class Bucket:
    """What a store keeps for one limit; the default is that of a limit nobody has used yet."""

    value: int = 0
    mark: int = 0


def to_nano(amount_usd: Decimal) -> int:
    """Whole nano-dollars (1e-9 USD), rounded up so that no counter is ever below the truth."""
    return int(amount_usd.scaleb(9).to_integral_value(ROUND_CEILING))


def amount_of(limit: Limit, reservation: Reservation) -> int:
    """What a reservation needs of a limit, in the limit's unit."""
    if limit.kind == "tokens_per_minute":
        return reservation.tokens
    return to_nano(reservation.cost_usd) if limit.kind.startswith("usd") else 1


def unused_of(limit: Limit, reservation: Reservation, spent: Spent) -> int:
    """What of a reservation was not used; negative when the call used more than was set aside."""
    if limit.kind == "tokens_per_minute":
        return reservation.tokens - spent.tokens
    if limit.kind == "requests_per_minute":
        return 1 - spent.requests
    return to_nano(reservation.cost_usd) - to_nano(spent.cost_usd) if limit.kind.startswith("usd") else 1


def window_start(kind: LimitKind, now_ms: int) -> int:
    """When the calendar window of a dollar limit began, in milliseconds; 0 for other kinds."""
    if kind == "usd_per_hour":
        return now_ms - now_ms % 3_600_000
    if kind == "usd_per_day":
        return now_ms - now_ms % 86_400_000
    if kind == "usd_per_month":
        first = datetime.fromtimestamp(now_ms / 1000, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        return int(first.timestamp()) * 1000
    return 0


def take(limit: Limit, bucket: Bucket, amount: int, now_ms: int) -> Bucket | None:
    """The bucket after a reservation; None when it does not fit."""
    now = _drained(limit, bucket, now_ms)
    scale = _SCALES[limit.kind]
    taken = now.value + amount * scale
    return Bucket(taken, now.mark) if taken <= _room(limit) * scale else None


def take_all(
    reservation: Reservation, find: Callable[[Limit], Bucket], now_ms: int
) -> dict[tuple[str, LimitKind], Bucket] | Exceeded:
    """The buckets of a reservation's limits after it was taken from all of them, by scope and kind.

    Where it does not fit somewhere, the refusal that lasts longest, and nothing is taken. `find` reads a bucket.
    """
    taken: dict[tuple[str, LimitKind], Bucket] = {}
    refused: list[Exceeded] = []
    for limit in reservation.limits:
        key = limit.scope, limit.kind
        bucket = taken.get(key) or find(limit)
        amount = amount_of(limit, reservation)
        after = take(limit, bucket, amount, now_ms)
        if after is None:
            refused.append(exceeded(limit, bucket, amount, now_ms))
        else:
            taken[key] = after
    return longest(refused) or taken


def put_back(limit: Limit, bucket: Bucket, unused: int, taken_ms: int, now_ms: int) -> Bucket:
    """The bucket after a reservation of `taken_ms` was settled with `unused` of it left, or overdrawn if negative."""
    now = _drained(limit, bucket, now_ms)
    scale = _SCALES[limit.kind]
    given = unused * scale
    if limit.kind in _SHORTEST_MS:
        if not _in_window(limit.kind, now.mark, taken_ms):
            return now
    elif given > 0 and scale == RATE_UNITS:
        # By the bucket's own time, which may be ahead of ours. Behind `taken_ms` it was set back, and nobody knows what
        # has drained: nothing comes back then.
        passed_ms = now.mark - taken_ms
        given = max(given - limit.most * passed_ms, 0) if passed_ms >= 0 else 0
    return Bucket(max(now.value - given, 0), now.mark)


def exceeded(limit: Limit, bucket: Bucket, amount: int, now_ms: int) -> Exceeded:
    """Why a reservation did not fit."""
    now = _drained(limit, bucket, now_ms)
    scale = _SCALES[limit.kind]
    current = -(-now.value // scale)
    if amount > _room(limit):
        reset_s = None
    elif scale == RATE_UNITS:
        over = now.value + amount * scale - _room(limit) * scale
        reset_s = max(over / limit.most / 1000, 0.001)
    else:
        reset_s = _window_left_s(limit.kind, now_ms)
    return Exceeded(limit, current, amount, reset_s)


def longest(refusals: Iterable[Exceeded]) -> Exceeded | None:
    """The refusal that lasts longest; None for none."""
    return max(refusals, key=lambda each: float("inf") if each.reset_s is None else each.reset_s, default=None)


def standing(limit: Limit, bucket: Bucket, now_ms: int) -> Standing:
    """Where a limit stands."""
    now = _drained(limit, bucket, now_ms)
    remaining = max(_room(limit) - -(-now.value // _SCALES[limit.kind]), 0)
    rate = _SCALES[limit.kind] == RATE_UNITS
    return Standing(limit, remaining, now.value / limit.most / 1000 if rate else _window_left_s(limit.kind, now_ms))


def _drained(limit: Limit, bucket: Bucket, now_ms: int) -> Bucket:
    """The bucket as time has left it."""
    if limit.kind == "concurrent_requests" or bucket.mark == now_ms:
        return bucket
    if limit.kind in _SHORTEST_MS:
        if _in_window(limit.kind, bucket.mark, now_ms) or bucket.mark > now_ms:
            return bucket
        return Bucket(0, window_start(limit.kind, now_ms))
    passed_ms = max(now_ms - bucket.mark, 0)
    mark = now_ms if bucket.mark - now_ms > _SET_BACK_MS else max(now_ms, bucket.mark)
    return Bucket(max(bucket.value - limit.most * passed_ms, 0), mark)


def _in_window(kind: LimitKind, began_ms: int, moment_ms: int) -> bool:
    """Whether a moment is in the window that began then; the calendar is asked only where the answer is not plain."""
    passed_ms = moment_ms - began_ms
    return passed_ms >= 0 and (passed_ms < _SHORTEST_MS[kind] or window_start(kind, moment_ms) == began_ms)


def _room(limit: Limit) -> int:
    return limit.burst if _SCALES[limit.kind] == RATE_UNITS else limit.most


def _window_left_s(kind: LimitKind, now_ms: int) -> float:
    if not kind.startswith("usd"):
        return _SLOT_RETRY_S
    began = datetime.fromtimestamp(window_start(kind, now_ms) / 1000, UTC)
    if kind == "usd_per_month":
        end = (began + timedelta(days=32)).replace(day=1)
    else:
        end = began + (timedelta(hours=1) if kind == "usd_per_hour" else timedelta(days=1))
    return max(end.timestamp() - now_ms / 1000, 0.001)
