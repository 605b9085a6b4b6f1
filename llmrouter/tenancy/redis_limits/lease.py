"""What one process holds of one shared limit, and the arithmetic of using it; pure, with the clock passed in.

Amounts are in the counter's unit: 1/60,000 of a request or token for rates, nano-dollars, slots. Two kinds of limits
are kept differently, because a rate drains and the others do not:

* *Rates*: the shared debt counts what was used; the process holds `free`, which does not drain while it is held. What
  it uses of that is reported (`used`) and joins the debt then, later than it was used, so the debt is never too low.
  A refund (`back`) is worth less with every millisecond, as the debt it is taken from drains meanwhile.
* *Dollars and slots*: the process holds `free` and `busy`, the worst case of its open calls. The shared counter counts
  what ended calls cost (`settled`). A refund is free again at once: both parts are held.
"""

from __future__ import annotations

from llmrouter.buckets import RATE_UNITS, Bucket, put_back, window_start
from llmrouter.types import Limit

__all__ = ["SLOTS_MS", "Lease", "scale_of"]

SLOTS_MS = 1000
"""How long dollars and slots may be used without a word from the shared store."""

_ROOMY = 0.75
_SHARE_OF_RATE = 16
_SHARE_OF_DOLLARS = 100
_SHARE_OF_SLOTS = 64
_REQUESTS_AHEAD = 8


def scale_of(limit: Limit) -> int:
    """Units of the counter for one unit of the limit."""
    return RATE_UNITS if limit.kind in ("requests_per_minute", "tokens_per_minute") else 1


class Lease:
    """What this process holds of one limit. Not thread-safe."""

    __slots__ = (
        "_back",
        "_back_at",
        "busy",
        "expires_ms",
        "free",
        "last_amount",
        "limit",
        "pending",
        "rate",
        "scale",
        "seed",
        "seen",
        "settled",
        "touched",
        "used",
        "used_at",
        "valid_until",
        "window",
        "window_ends",
    )

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.scale = scale_of(limit)
        self.rate = self.scale == RATE_UNITS
        self.free = 0
        """Held and unused."""
        self.busy = 0
        """Dollars and slots: of calls that are open."""
        self.pending = 0
        """Set aside for reservations that are on their way to the store."""
        self.settled = 0
        """Dollars: what ended calls cost, not reported yet."""
        self.used = 0
        """Rates: used and not reported yet, at `used_at` the last time."""
        self.used_at = 0
        self._back = 0
        self._back_at = 0
        self.window: int | None = None
        """Dollars: the window that all amounts belong to; None before the store has said."""
        self.window_ends = 0
        """In server time."""
        self.valid_until = 0
        """In local time: afterwards `free` may no longer be used without asking."""
        self.expires_ms = 0
        """When the last of the open calls expires, in Unix time."""
        self.seed: tuple[int, int] | None = None
        """Dollars: window and what the books say was spent in it, for a counter that does not exist yet."""
        self.seen = Bucket()
        """The counter as far as this process knows, without what it holds unused."""
        self.touched = False
        """Something was taken since the last report."""
        self.last_amount = 0

    @property
    def cap(self) -> int:
        """The most that the counter may say, in its units."""
        return (self.limit.burst if self.rate else self.limit.most) * self.scale

    @property
    def hold(self) -> int:
        """What the store must know as held by this process."""
        return self.free + self.pending + self.busy

    @property
    def tight(self) -> bool:
        """So much is taken that nobody should keep anything for later."""
        return self.seen.value > _ROOMY * self.cap

    def covers(self, amount: int, now_ms: int, server_ms: int) -> bool:
        """Whether a reservation can be served from here."""
        if amount > self.free:
            return False
        return now_ms < self.valid_until and (self.window is None or self.rate or server_ms < self.window_ends)

    def take(self, amount: int, now_ms: int, server_ms: int) -> None:
        """Use some of `free`, which covers it."""
        self.free -= amount
        self.count(amount, now_ms)
        if self.rate:
            self.seen = put_back(self.limit, self.seen, -amount // self.scale, server_ms, server_ms)
        else:
            self.seen = Bucket(self.seen.value + amount, self.seen.mark)

    def count(self, amount: int, now_ms: int) -> None:
        """Something that was held or set aside is used by a call now."""
        if self.rate:
            self.used += amount
            self.used_at = now_ms
        else:
            self.busy += amount

    def set_aside(self, amount: int) -> int:
        """Keep what there is of an amount for a reservation that has to ask; returns how much that is."""
        aside = min(self.free, amount)
        self.free -= aside
        self.pending += aside
        return aside

    def end(self, amount: int, spent: int) -> None:
        """Dollars and slots: a call that reserved an amount in this window has ended and cost so much."""
        self.busy -= amount
        self.settled += spent
        self.free = max(self.free + amount - spent, 0)
        if self.busy == 0:
            self.expires_ms = 0
        self.seen = Bucket(max(self.seen.value - amount + spent, 0), self.seen.mark)

    def refund(self, unused: int, taken_ms: int, now_ms: int, server_ms: int) -> None:
        """Rates: a call that was admitted at a moment used less than it reserved, or more if that is negative."""
        if unused < 0:
            self.used -= unused
            self.used_at = now_ms
        else:
            drained = self.limit.most * max(now_ms - taken_ms, 0)
            self._back = self.back(now_ms) + max(unused - drained, 0)
            self._back_at = now_ms
        age_ms = max(now_ms - taken_ms, 0)
        self.seen = put_back(self.limit, self.seen, unused // self.scale, server_ms - age_ms, server_ms)

    def back(self, now_ms: int) -> int:
        """Rates: what refunds are worth now."""
        return max(self._back - self.limit.most * (now_ms - self._back_at), 0)

    def clear_reports(self) -> None:
        """What was to be reported is on its way."""
        self.used = self.settled = self._back = 0
        self.touched = False

    def give_up_surplus(self, lease_ms: int) -> None:
        """Keep no more than a chunk, and nothing where no call came since the last report or the limit gets tight."""
        chunk = self.chunk(lease_ms) if self.touched else 0
        if self.tight:
            chunk = 0
        self.free = min(self.free, chunk)

    def chunk(self, lease_ms: int) -> int:
        """How much may be held beyond what is needed: worth some requests, and a small part of the whole limit."""
        if lease_ms <= 0:
            return 0
        if self.rate:
            most = min(self.limit.most * lease_ms, self.cap // _SHARE_OF_RATE)
        elif self.limit.kind == "concurrent_requests":
            most = self.cap // _SHARE_OF_SLOTS
        else:
            most = min(self.cap // _SHARE_OF_DOLLARS, max(_REQUESTS_AHEAD * self.last_amount, self.busy))
        return most if most >= self.last_amount else 0

    def enter(self, mark: int) -> None:
        """Dollars: the store says which window it is; what belongs to another is void."""
        if mark != self.window:
            self.free = self.busy = self.pending = self.settled = 0
            self.window = mark
            self.window_ends = _window_end(self.limit, mark)

    def refresh(self, others: int, mark: int, now_ms: int) -> None:
        """The store says what all others hold and what the past counts."""
        own = self.used - self.back(now_ms) if self.rate else self.busy + self.settled
        self.seen = Bucket(max(others + own, 0), mark)

    @property
    def idle(self) -> bool:
        """Nothing is held and nothing is left to say."""
        return not (self.hold or self.settled or self.used or self._back or self.seed)

    @property
    def dirty(self) -> bool:
        """Something is to be said before long: used, ended, or held without need."""
        return bool(self.free or self.settled or self.used or self._back)


def _window_end(limit: Limit, mark: int) -> int:
    days = {"usd_per_hour": 1 / 24, "usd_per_day": 1, "usd_per_month": 32}[limit.kind]
    return window_start(limit.kind, mark + int(days * 86_400_000))
