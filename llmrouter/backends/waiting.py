"""A request that waits for a slot of a pool."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from llmrouter.backends.replica import Lease
from llmrouter.errors import NoCapacity
from llmrouter.types import LatencyClass, value

__all__ = ["Ticket", "Waiter"]


@value
class Ticket:
    """Who asks for a slot, as far as the order of service goes."""

    latency_class: LatencyClass = "standard"
    tenant_id: str = ""
    weight: float = 1.0
    """The tenant's share against others of its class."""
    tokens: int = 0
    """How much work the call may be: prompt and answer at their bounds."""


class Waiter:
    """A request that waits for a slot, with what the pool must know to choose a replica for it.

    It is answered once, with a lease or with the error to raise. The error travels as a value, so a waiter that was
    cancelled at the same moment leaves no exception that nobody fetches.
    """

    __slots__ = ("_answer", "affinity", "deadline", "exclude", "since", "ticket")

    def __init__(
        self, ticket: Ticket, affinity: int | None, exclude: Collection[str], *, since: float, deadline: float
    ) -> None:
        self.ticket = ticket
        self.affinity = affinity
        self.exclude = exclude
        self.since = since
        self.deadline = deadline
        """The request's own, on the pool's clock."""
        self._answer: asyncio.Future[Lease | NoCapacity] = asyncio.get_running_loop().create_future()

    @property
    def settled(self) -> bool:
        """Answered already, or cancelled by its task."""
        return self._answer.done()

    def answer(self, answer: Lease | NoCapacity) -> None:
        if not self._answer.done():
            self._answer.set_result(answer)

    async def wait(self) -> Lease:
        """The lease, as soon as it is given. A cancelled wait loses no slot.

        Raises:
            NoCapacity: the pool gave up on this waiter.
        """
        try:
            answer = await self._answer
        except asyncio.CancelledError:
            self._give_back()
            raise
        if isinstance(answer, NoCapacity):
            raise answer
        return answer

    def _give_back(self) -> None:
        """A lease may have been granted between the cancellation and its arrival here."""
        if not self._answer.cancelled() and isinstance(granted := self._answer.result(), Lease):
            granted.release()
