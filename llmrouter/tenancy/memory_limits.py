"""Limits in the memory of one process: for simulation, and the model that tests hold other stores against."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from llmrouter.buckets import Bucket, put_back, standing, take_all, unused_of
from llmrouter.types import Admission, Exceeded, Limit, LimitKind, Reservation, Spent, Standing, value

__all__ = ["MemoryLimits"]


@value
class _Held:
    reservation: Reservation
    taken_ms: int


class MemoryLimits:
    """`LimitStore` for one event loop. Nothing survives the process.

    Memory is bounded by what is under way: a reservation that nobody settles ends at `expires_at` as if all of it had
    been used, and a `request_id` is known until then.
    """

    def __init__(self, now_ms: Callable[[], int], *, owner_name: str = "memory") -> None:
        self._now_ms = now_ms
        self._owner_name = owner_name
        self._buckets: dict[tuple[str, LimitKind], Bucket] = {}
        self._held: dict[str, _Held] = {}
        self._known: set[str] = set()
        self._expiries: list[tuple[int, str]] = []

    async def reserve(self, reservation: Reservation) -> Admission:
        """Take a reservation from all of its limits, or nothing; see `LimitStore.reserve`."""
        now_ms = self._now_ms()
        self._expire(now_ms)
        if reservation.request_id not in self._known:
            taken = take_all(reservation, self._bucket, now_ms)
            if isinstance(taken, Exceeded):
                return Admission(exceeded=taken)
            self._buckets.update(taken)
            self._held[reservation.request_id] = _Held(reservation, now_ms)
            self._known.add(reservation.request_id)
            expires_ms = int(reservation.expires_at.timestamp() * 1000)
            heapq.heappush(self._expiries, (expires_ms, reservation.request_id))
        rates = [limit for limit in reservation.limits if limit.kind in ("requests_per_minute", "tokens_per_minute")]
        return Admission(standings=await self.standing(rates))

    async def settle(self, reservation: Reservation, spent: Spent) -> None:
        """End a reservation; see `LimitStore.settle`. One that is not held changes nothing."""
        self._end(reservation.request_id, spent, self._now_ms())

    async def bury(self, owner: str, unsettled: Sequence[tuple[Reservation, Spent]]) -> None:
        """Take back what an owner held; see `LimitStore.bury`. Only this store's own name holds anything here."""
        for reservation, spent in unsettled:
            await self.settle(reservation, spent)
        if owner == self._owner_name:
            for request_id in list(self._held):
                self._end(request_id, Spent(requests=0), self._now_ms())

    async def standing(self, limits: Sequence[Limit]) -> tuple[Standing, ...]:
        """How limits stand now; see `LimitStore.standing`."""
        now_ms = self._now_ms()
        return tuple([standing(limit, self._bucket(limit), now_ms) for limit in limits])

    async def aclose(self) -> None:
        """Nothing is held elsewhere."""

    def _bucket(self, limit: Limit) -> Bucket:
        return self._buckets.get((limit.scope, limit.kind), Bucket())

    def _end(self, request_id: str, spent: Spent, now_ms: int) -> None:
        held = self._held.pop(request_id, None)
        if held is None:
            return
        for limit in held.reservation.limits:
            unused = unused_of(limit, held.reservation, spent)
            self._buckets[limit.scope, limit.kind] = put_back(limit, self._bucket(limit), unused, held.taken_ms, now_ms)

    def _expire(self, now_ms: int) -> None:
        while self._expiries and self._expiries[0][0] < now_ms:
            _, request_id = heapq.heappop(self._expiries)
            self._known.discard(request_id)
            if held := self._held.get(request_id):
                self._end(request_id, Spent(held.reservation.tokens, held.reservation.cost_usd), now_ms)
