"""A ledger whose limits live elsewhere: each call is taken from the limits first, then opened in the books."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal

from llmrouter.errors import StoreUnavailable
from llmrouter.protocols import Ledger, LimitStore
from llmrouter.types import Admission, LedgerEntry, Limit, Reservation, Spent

__all__ = ["SharedLimits", "WhenDown"]

_log = logging.getLogger(__name__)

WhenDown = Literal["closed", "open"]
"""While the limits cannot be reached: refuse calls that have limits, or serve them unlimited."""


class SharedLimits:
    """`Ledger` over books that take no limits themselves and a `LimitStore` that several gateways share.

    Nothing leaks: whatever fails or is cancelled after the limits were taken gives them back. A call is settled before
    its entry is written, so that at the death of this process the limits know what every booked call has spent; a call
    that dies in between is in the books as open, and the store counts it once.

    Args:
        ledger: books that do not take limits.
        limits: closed together with the ledger.
        when_down: what becomes of calls while the limits cannot be reached.
        on_unlimited: told of each call that is served unlimited, for metrics.
    """

    def __init__(
        self,
        ledger: Ledger,
        limits: LimitStore,
        *,
        when_down: WhenDown = "closed",
        on_unlimited: Callable[[Reservation], None] = lambda _: None,
    ) -> None:
        self._ledger = ledger
        self._limits = limits
        self._when_down = when_down
        self._on_unlimited = on_unlimited
        self._open: dict[str, Reservation] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unlimited = False

    async def open(self, reservation: Reservation) -> Admission:
        """Admit a call; see `Ledger.open`. Its limits are taken and it is in the books, or neither.

        Raises:
            StoreUnavailable: the books cannot be written; or the limits cannot be reached and that is not allowed.
        """
        admission = await self._reserve(reservation)
        if admission is not None and admission.exceeded is not None:
            return admission
        try:
            booked = await self._ledger.open(reservation)
        except BaseException:
            self._give_back(reservation)
            raise
        if booked.exceeded is not None:
            self._give_back(reservation)
            return booked
        self._open[reservation.request_id] = reservation
        return booked if admission is None else admission

    async def record(self, entry: LedgerEntry) -> None:
        """Settle a call's limits and append its entry; see `Ledger.record`.

        It is on its way with the first step of this coroutine: cancelling it afterwards loses nothing.

        Raises:
            StoreUnavailable: the entry is not in the books. The limits are settled all the same.
        """
        await asyncio.shield(self._spawn(self._settle_and_record(entry)))

    def bury(self, owner: str, unsettled: Sequence[tuple[Reservation, Spent]]) -> None:
        """Have the limits that an owner held taken back, in the background; see `LimitStore.bury`.

        For `on_recovered` of the books, through `call_soon_threadsafe` of this loop.
        """
        self._spawn(self._limits.bury(owner, unsettled))

    def warm(self, limits: Sequence[Limit]) -> None:
        """Have the store know these limits before the first call asks for them, in the background.

        A store that is new, or has lost its data, asks every gateway what it holds before it gives anything away.
        """
        self._spawn(self._look(limits))

    async def aclose(self) -> None:
        """Settle and write what is on its way, then close the limits and the books."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._limits.aclose()
        await self._ledger.aclose()

    async def _reserve(self, reservation: Reservation) -> Admission | None:
        """None for a call that is served unlimited."""
        try:
            admission = await self._limits.reserve(reservation)
        except StoreUnavailable:
            if self._when_down == "closed":
                raise
            if not self._unlimited:
                self._unlimited = True
                _log.warning('the limits cannot be reached: calls are served unlimited (limits.on_store_down = "open")')
            self._on_unlimited(reservation)
            return None
        if self._unlimited and reservation.limits:
            self._unlimited = False
            _log.warning("the limits are back: calls are limited again")
        return admission

    async def _settle_and_record(self, entry: LedgerEntry) -> None:
        reservation = self._open.pop(entry.request_id, None)
        if reservation is not None:
            await self._settle(reservation, entry.spent())
        await self._ledger.record(entry)

    async def _look(self, limits: Sequence[Limit]) -> None:
        await self._limits.standing(limits)

    def _give_back(self, reservation: Reservation) -> None:
        # Not awaited: the caller may have been cancelled.
        self._spawn(self._settle(reservation, Spent(requests=0)))

    async def _settle(self, reservation: Reservation, spent: Spent) -> None:
        try:
            await self._limits.settle(reservation, spent)
        except StoreUnavailable as error:
            # A store that cannot be told now frees the reservation when it expires.
            _log.warning("the limits of %s are not settled: %s", reservation.request_id, error.message)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for it is told; nobody waits for the rest
