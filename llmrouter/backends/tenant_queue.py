"""Those who wait in one latency class: tenants take turns by weight, each tenant's own requests in order of arrival.

The turns are start-time fair queueing (Goyal, Vin and Cheng, 1996). Every tenant has a tag, and the lowest is next. A
started call moves its tenant's tag on by the call's tokens over the tenant's weight. One who comes back from a pause
starts at the tag of the call that was started last: neither ahead of the others for the turns it left out, nor behind.
"""

from __future__ import annotations

import heapq
import itertools

from llmrouter.backends.waiting import Ticket, Waiter

__all__ = ["TenantQueue"]


class _Tenant:
    """One tenant that waits or has had a turn lately."""

    __slots__ = ("listed", "tag", "waiters", "weight")

    def __init__(self, tag: float) -> None:
        self.tag = tag
        self.weight = 0.0
        self.waiters: dict[Waiter, None] = {}
        """In order of arrival."""
        self.listed = False
        """Whether it has its one entry in the heap of turns; the entry's tag may be out of date, and then too low."""


class TenantQueue:
    """The waiters of one class. Adding, taking and removing cost O(log tenants), whatever the number of waiters.

    A tenant's memory is kept while anybody waits, so there are never more of them than tenants that ask.
    """

    __slots__ = ("_arrivals", "_now", "_tenants", "_turns", "_weight", "count")

    def __init__(self) -> None:
        self.count = 0
        """How many wait."""
        self._now = 0.0
        """Tag of the call that was started last."""
        self._tenants: dict[str, _Tenant] = {}
        self._turns: list[tuple[float, int, _Tenant]] = []
        self._arrivals = itertools.count()
        self._weight = 0.0
        """Of all tenants that wait."""

    def add(self, waiter: Waiter) -> None:
        ticket = waiter.ticket
        tenant = self._tenants.get(ticket.tenant_id)
        if tenant is None:
            tenant = self._tenants[ticket.tenant_id] = _Tenant(self._now)
        if tenant.waiters:
            self._weight -= tenant.weight
        else:
            tenant.tag = max(tenant.tag, self._now)
        tenant.weight = ticket.weight
        self._weight += ticket.weight
        if not tenant.listed:
            tenant.listed = True
            heapq.heappush(self._turns, (tenant.tag, next(self._arrivals), tenant))
        tenant.waiters[waiter] = None
        self.count += 1

    def first(self) -> Waiter:
        """Whose turn it is; somebody must be waiting."""
        while True:
            tag, _, tenant = self._turns[0]
            if not tenant.waiters:
                heapq.heappop(self._turns)
                tenant.listed = False
            elif tag < tenant.tag:
                heapq.heapreplace(self._turns, (tenant.tag, next(self._arrivals), tenant))
            else:
                return next(iter(tenant.waiters))

    def take(self, waiter: Waiter) -> None:
        """Its call starts: take it out and move its tenant's tag on. It must be `first()`."""
        tenant = self._tenants[waiter.ticket.tenant_id]
        self._now = tenant.tag
        tenant.tag += max(waiter.ticket.tokens, 1) / waiter.ticket.weight
        self.remove(waiter)

    def remove(self, waiter: Waiter) -> bool:
        """Take it out, wherever it stands, as if it had never come; False when it is out already."""
        tenant = self._tenants.get(waiter.ticket.tenant_id)
        if tenant is None or waiter not in tenant.waiters:
            return False
        del tenant.waiters[waiter]
        self.count -= 1
        if not tenant.waiters:
            self._weight -= tenant.weight
        if not self.count:
            self._forget()
        return True

    def ahead_of(self, ticket: Ticket) -> float:
        """About how many calls of this class start before a newcomer: its tenant's own, and what turns fall between
        those to others. Rather too few than too many."""
        own, weight, others = self._own(ticket)
        if not own:
            return 0.0
        return own + min(self.count - own, own * max(others, 0.0) / weight)

    def has_share_left(self, ticket: Ticket) -> bool:
        """Whether one more waiter leaves its tenant within its part, by weight, of the places that are taken now."""
        own, weight, others = self._own(ticket)
        return (own + 1) * (weight + others) <= self.count * weight

    def newest_of_largest(self) -> Waiter:
        """The last to come of the tenant that has the most waiting for its weight; somebody must be waiting."""
        largest = max(self._tenants.values(), key=lambda tenant: len(tenant.waiters) / tenant.weight)
        return next(reversed(largest.waiters))

    def _own(self, ticket: Ticket) -> tuple[int, float, float]:
        """How many of its tenant wait, its tenant's weight, and the weight of all others that wait."""
        tenant = self._tenants.get(ticket.tenant_id)
        if tenant is None or not tenant.waiters:
            return 0, ticket.weight, self._weight
        return len(tenant.waiters), tenant.weight, self._weight - tenant.weight

    def _forget(self) -> None:
        """Nobody is left to compare with. At most one call of each tenant goes unaccounted."""
        self._now = self._weight = 0.0
        self._tenants.clear()
        self._turns.clear()
