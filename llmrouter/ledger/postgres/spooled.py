"""The books of a gateway whose ledger is in PostgreSQL: booked here, shipped there."""

from __future__ import annotations

from llmrouter.errors import StoreUnavailable
from llmrouter.ledger.postgres.ship import Shipper
from llmrouter.protocols import Ledger
from llmrouter.types import Admission, LedgerEntry, Reservation

__all__ = ["SpooledLedger"]

_RETRY_S = 5.0


class SpooledLedger:
    """`Ledger` over the ledger of the file and the shipper that empties it; starts the shipper.

    Calls wait for the file alone. When the server has been away for so long that the spool is full, new calls are
    refused; those under way are still booked.

    Raises:
        StoreUnavailable: the file cannot be read.
    """

    def __init__(self, ledger: Ledger, shipper: Shipper) -> None:
        self._ledger = ledger
        self._shipper = shipper
        shipper.start()

    @property
    def shipper(self) -> Shipper:
        """For metrics."""
        return self._shipper

    async def open(self, reservation: Reservation) -> Admission:
        """Admit a call; see `Ledger.open`."""
        if self._shipper.full:
            status = self._shipper.status
            raise StoreUnavailable(
                f"{status.backlog} ledger entries wait for the ledger database, as many as ledger.spool_entries allows;"
                " new calls are refused until it takes them",
                retry_after_s=_RETRY_S,
            )
        return await self._ledger.open(reservation)

    async def record(self, entry: LedgerEntry) -> None:
        """Append one entry; see `Ledger.record`."""
        await self._ledger.record(entry)

    async def aclose(self) -> None:
        """Write what is queued, then ship what the server takes; the rest is shipped after the next start."""
        await self._ledger.aclose()
        await self._shipper.aclose()
