"""The seams of llmrouter: each a small protocol with one shape, so that a plugin has one thing to write.

`CacheStore` and `Scorer` join here with the stages that use them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import datetime
from typing import Protocol

from llmrouter.types import (
    Accepted,
    Admission,
    Bound,
    ChatRequest,
    Decision,
    Failure,
    LedgerEntry,
    Limit,
    Outcome,
    Principal,
    Reservation,
    Spent,
    Standing,
    Target,
    value,
)

__all__ = [
    "Backend",
    "BackendFault",
    "Candidate",
    "Ledger",
    "LimitStore",
    "Plan",
    "PlanInput",
    "Reply",
    "Strategy",
    "Timeouts",
]


@value
class Candidate:
    """A model that can honour the whole request, with what the plan needs to know of it."""

    model_id: str
    role: str
    """`small`, `large`, `frontier`, or `peer1`, `peer2`, … for those that only help to check."""
    replicas: int
    input_tokens: int
    """Conservative bound of this request's prompt for this model."""
    output_tokens: int
    """The most tokens it may write for all choices together."""
    context_window: int | None = None

    @property
    def is_peer(self) -> bool:
        return self.role.startswith("peer")


@value
class PlanInput:
    """All that a strategy may look at; it does no I/O and reads no clock of its own."""

    request: ChatRequest
    principal: Principal
    candidates: Sequence[Candidate]
    """In the tier's fallback order, after the capability filter; never empty."""
    now: datetime
    deadline_s: float
    """Seconds left for the whole request."""


Steps = Generator[Target, Outcome, Accepted | None]


class Plan(Protocol):
    """What to try for one request, and in which order."""

    @property
    def decision(self) -> Decision:
        """Why the plan starts where it does; known before the first step."""

    def steps(self) -> Steps:
        """Yield the next target and be sent its outcome.

        Returning None after an outcome that is `ok` accepts that answer; after a failure it gives up with it. Returning
        an `Accepted` takes that answer, whatever came later. A streamed answer lives only until the plan goes on.
        Called once. The driver closes the generator in `finally`. Raises nothing: failures come in as values.
        """

    def bound(self) -> Bound:
        """The worst case over all paths of `steps`."""


class Strategy(Protocol):
    """A way to choose models. The live gateway and the offline simulator drive the same object."""

    def plan(self, given: PlanInput) -> Plan:
        """Decide without I/O; must not mutate its argument nor block.

        Raises:
            RequestError: no candidate may take the request under this strategy's rules.
        """


@value
class Timeouts:
    """Seconds for each phase of a call; `total_s` bounds them together."""

    connect_s: float
    first_byte_s: float
    between_chunks_s: float
    total_s: float


class BackendFault(Exception):
    """A call that gave no usable HTTP answer; the pipeline turns it into an `Outcome` at once."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message


class Reply(Protocol):
    """An upstream answer whose status and headers have arrived."""

    @property
    def status(self) -> int: ...

    def header(self, name: str) -> str | None:
        """A response header by its lower-case name."""

    async def next_block(self) -> bytes:
        """All body bytes that have arrived since the last call, waiting for some; `b""` at a clean end.

        Raises:
            BackendFault: the connection broke, or a time-out passed.
        """

    async def read(self) -> bytes:
        """The rest of the body. Raises as `next_block` does, also when it grows past the client's size limit."""

    def close(self, *, abort: bool = True) -> None:
        """Release the connection. Never blocks; repeatable.

        Before the clean end this aborts the call upstream; `abort=False` says that all that matters has been read, so
        an end that is still on its way may arrive and the connection be used again.
        """


class Backend(Protocol):
    """One replica that speaks the OpenAI wire format, or is made to."""

    @property
    def name(self) -> str:
        """How logs and the ledger name this replica; holds no secret."""

    async def open(
        self,
        request: ChatRequest,
        *,
        request_id: str,
        timeouts: Timeouts,
        cache_salt: str | None,
        priority: int | None = None,
    ) -> Reply:
        """Send the request for this replica's model and wait for status and headers.

        `priority` is the engine's own scheduling priority, lower first, where the pool sends one.

        `request.max_output_tokens` is the effective output cap and may be lower than the one in `request.fields`.
        Renames parameters to what the engine accepts and always asks a stream for its usage. Cancelling the call
        closes the connection, which engines take as an abort.

        Raises:
            BackendFault: nothing usable came back (connection, time-out, not HTTP).
        """

    async def aclose(self) -> None:
        """Close idle connections; calls in flight go on."""


class LimitStore(Protocol):
    """Counters of what is used and set aside, shared by all who serve. What each kind means: `llmrouter.buckets`."""

    async def reserve(self, reservation: Reservation) -> Admission:
        """Take the whole reservation from every limit it names, or nothing from any; one atomic step.

        A counter that does not exist yet is made in the same step. A repeat with the same `request_id` takes nothing
        more and is admitted.

        Raises:
            StoreUnavailable: nothing was taken.
        """

    async def settle(self, reservation: Reservation, spent: Spent) -> None:
        """End a reservation: give back what was not used, take what was used beyond it. A repeat changes nothing.

        Raises:
            StoreUnavailable: not settled yet; it is harmless to ask again, and nothing leaks for good if nobody does.
        """

    async def bury(self, owner: str, unsettled: Sequence[tuple[Reservation, Spent]]) -> None:
        """A process has died: take back all that it held, except what its open calls are billed at.

        `owner` is the name under which the process made its reservations. A repeat changes nothing.
        """

    async def standing(self, limits: Sequence[Limit]) -> tuple[Standing, ...]:
        """How limits stand now, in the order given; changes nothing."""

    async def aclose(self) -> None:
        """Give back what this process holds for later, and disconnect."""


class Ledger(Protocol):
    """The append-only books."""

    async def open(self, reservation: Reservation) -> Admission:
        """Admit a call: its reservation is in the books when this returns, and survives the death of the process.

        Where the limits live in the same store, they are taken in the same transaction: both or neither. A repeat with
        the same `request_id` changes nothing.

        Raises:
            StoreUnavailable: nothing was taken or written.
        """

    async def record(self, entry: LedgerEntry) -> None:
        """Append one entry with its attempts; returns when it survives the death of the process.

        The reservation of that `request_id` ends, and its limits are settled with what the entry used, in the same
        transaction where they live in the same store. A repeat is harmless and changes nothing.

        Raises:
            StoreUnavailable: the entry is not in the books; the reservation still is.
        """

    async def aclose(self) -> None:
        """Flush and close; entries whose `record` has been called are written first."""
