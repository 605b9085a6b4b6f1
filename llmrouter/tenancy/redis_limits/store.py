"""The limits of several gateways in one Redis or Valkey, with leases in each process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson

from llmrouter.buckets import Bucket, amount_of, exceeded, longest, standing, take, to_nano, unused_of, window_start
from llmrouter.errors import StoreUnavailable
from llmrouter.redis import Link, Script
from llmrouter.tenancy.redis_limits.exchange import (
    Answer,
    Exchange,
    Item,
    Verdict,
    Wish,
    counter_key,
    owner_keys,
)
from llmrouter.tenancy.redis_limits.lease import Lease
from llmrouter.types import Admission, Limit, LimitKind, Reservation, Spent, Standing, value

__all__ = ["RedisLimits", "SpentSoFar"]

_log = logging.getLogger(__name__)

SpentSoFar = Callable[[Limit, int], Awaitable[int]]
"""What the books say that a dollar limit's scope has spent in the window that begins at a Unix time in milliseconds.

In nano-dollars. Only calls that have ended count: those under way are known to the store as held.
"""

_PACKAGE = "llmrouter.tenancy.redis_limits"
_BEAT_S = 0.5
_SHORTEST_PERIOD_S = 0.05
_MOST_LIMITS = 500
_MOST_ROUNDS = 20
_MOST_BURIALS = 1000
_REMEMBERED = 4096


@value
class _Taken:
    """What an open call took of one limit."""

    limit: Limit
    amount: int
    window: int | None


@value
class _Call:
    """An open call."""

    reservation: Reservation
    taken_ms: int
    taken: Sequence[_Taken]


class RedisLimits:
    """`LimitStore` that several gateways share; for one event loop.

    *Never over.* All that a process may still use is debited in Redis before: a lease is held, and what is held and
    what was used together stay within the limit, in one atomic step of a Lua script. Reservations that come while a
    step is under way go into the next one together, so there is never more than one round trip at a time.

    *Stranded capacity.* Others cannot use what a process holds for later. Of each limit that is at most a chunk: the
    rate of `lease_s` and a sixteenth of the burst; a hundredth of a dollar limit and as much as its open calls may cost
    (or eight requests); a 64th of the slots; nothing where a chunk is less than one request needs. It is given back
    when no call has used the lease for a period (`lease_s`), and when three quarters of the limit are taken, from where
    on every request asks. What calls have given back counts for others within a period.

    *Death.* What a process holds is kept under its `owner` name. `bury` gives it back at once. If nobody does, slots
    come back when its last call has expired; held dollars then count as used until their window ends. Leases on rates
    count as used and drain.

    *A store that is away* makes `reserve` raise at once where the lease does not cover it; it is tried again every
    `pause_s`. What calls used meanwhile is kept, one sum for each limit, and reported when it is back. A store that has
    lost its data is told anew what every process holds, for which it waits `grace_s`, and what the books say was spent.
    The store must not evict keys (`maxmemory-policy noeviction`).

    Args:
        url: `redis://…`, `rediss://…` or `unix://…`.
        owner: the name of this process; no other ever has the same.
        spent_so_far: what new dollar counters begin with.
        lease_s: the size of leases on rates, and how often what was used is reported; 0 takes no leases.
        clock_ms: Unix milliseconds for tests, which then rule in place of the server's clock.
        beat_s: how often a process that holds something looks whether the store has lost it.

    Raises:
        UsageError: the driver is not installed.
        ConfigError: the address is not one of a server.
    """

    def __init__(
        self,
        url: str,
        owner: str,
        spent_so_far: SpentSoFar,
        *,
        lease_s: float = 0.1,
        timeout_s: float = 0.5,
        pause_s: float = 1.0,
        grace_s: float = 2.0,
        beat_s: float = _BEAT_S,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        self.owner = owner
        self.local = 0
        """Reservations that the lease covered."""
        self.asked = 0
        """Reservations that had to ask the store."""
        self.exchanges = 0
        """Round trips of this process."""
        self._spent_so_far = spent_so_far
        self._lease_ms = round(lease_s * 1000)
        self._period_s = max(lease_s, _SHORTEST_PERIOD_S)
        self._grace_ms = round(grace_s * 1000)
        self._beat_s = beat_s
        self._clock_ms = clock_ms
        self._link = Link(url, "the limits", timeout_s=timeout_s, pause_s=pause_s)
        self._exchange_script, self._bury_script = (Script(_PACKAGE, name) for name in ("exchange.lua", "bury.lua"))
        self._session, self._numbers = secrets.token_hex(4), itertools.count(1)
        self._server_ahead_ms = 0
        self._epoch: int | None = None

        self._leases: dict[tuple[str, LimitKind], Lease] = {}
        self._open: dict[str, _Call] = {}
        self._ended: deque[str] = deque(maxlen=_REMEMBERED)
        self._ended_ids: set[str] = set()
        self._asking: dict[str, Wish] = {}

        self._wishes: list[Wish] = []
        self._acks: list[asyncio.Future[None]] = []
        self._settled: list[str] = []
        self._burials: deque[tuple[str, bytes]] = deque()
        self._urgent: dict[int, Lease] = {}
        """Leases that the next exchange must report."""
        self._dirty: dict[int, Lease] = {}
        """Leases to report within a period."""
        self._unanswered: Exchange | None = None
        self._seeding: dict[tuple[str, LimitKind, int], asyncio.Task[int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

        self._wake = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._closed = False
        self._next_report = 0.0
        self._next_expiry = 0.0

    # The protocol.

    async def reserve(self, reservation: Reservation) -> Admission:
        """Take a reservation from all of its limits, or nothing; see `LimitStore.reserve`.

        Cancelling it takes nothing, or gives back what was taken.
        """
        if not reservation.limits:
            return Admission()
        request_id = reservation.request_id
        if request_id in self._open or request_id in self._ended_ids:
            return Admission(standings=self._standings(reservation.limits))
        asking = self._asking.get(request_id)
        if asking is not None:
            return await self._answer_of(asking)
        items = self._items(reservation)
        if self._take(reservation, items):
            self.local += 1
            return Admission(standings=self._standings(reservation.limits))
        self.asked += 1
        return await self._ask(Wish(reservation, items, asyncio.get_running_loop().create_future()))

    async def settle(self, reservation: Reservation, spent: Spent) -> None:
        """End a reservation; see `LimitStore.settle`.

        Where it counts dollars, Redis knows what was spent when this returns, so that the death of this process loses
        nothing; or Redis is away, and is told when it is back. One that is not open here changes nothing. Cancelling
        it afterwards loses nothing.
        """
        call = self._open.pop(reservation.request_id, None)
        if call is None:
            return
        self._remember(reservation.request_id)
        if self._end(call, spent) and not self._link.pause_left_s and not self._closed:
            self._settled.append(reservation.request_id)
            await self._told()

    async def bury(self, owner: str, unsettled: Sequence[tuple[Reservation, Spent]]) -> None:
        """Take back what an owner held; see `LimitStore.bury`.

        Calls of an owner that lives, this process, are just settled. While Redis is away, it is kept for later.
        """
        if owner == self.owner:
            for reservation, spent in unsettled:
                await self.settle(reservation, spent)
            return
        if len(self._burials) >= _MOST_BURIALS:
            dropped, _ = self._burials.popleft()
            _log.warning("what %s held of limits comes back only when it expires: too many have died", dropped)
        self._burials.append((owner, _will(owner, unsettled, self._clock_ms)))
        await self._told()

    async def standing(self, limits: Sequence[Limit]) -> tuple[Standing, ...]:
        """How limits stand now; see `LimitStore.standing`."""
        if not limits:
            return ()
        items = {limit: Item(self._known(limit), 0) for limit in limits}
        await self._ask(Wish(None, list(items.values()), asyncio.get_running_loop().create_future()))
        now_ms = self._server_now()
        return tuple([standing(limit, items[limit].lease.seen, now_ms) for limit in limits])

    async def aclose(self) -> None:
        """Report what was used, give back what is held for later, disconnect; harmless when repeated.

        Calls that are still open stay taken until they are buried or expire.
        """
        if not self._closed:
            self._closed = True
            self._fail(StoreUnavailable("the limits are closed"))
            self._wake.set()
            if self._worker is not None:
                await asyncio.wait([self._worker])
            for task in (*self._seeding.values(), *self._tasks):
                task.cancel()
            await asyncio.gather(*self._seeding.values(), *self._tasks, return_exceptions=True)
            await self._link.aclose()

    async def expire(self) -> None:
        """End calls whose time is over, as if all was used that was set aside; done by itself with every beat."""
        now_ms = self._unix_now()
        for call in list(self._open.values()):
            if _unix_ms(call.reservation) < now_ms:
                spent = Spent(call.reservation.tokens, call.reservation.cost_usd)
                self._open.pop(call.reservation.request_id)
                self._remember(call.reservation.request_id)
                self._end(call, spent)

    # What happens here, without Redis.

    def _items(self, reservation: Reservation) -> list[Item]:
        items = []
        for limit in reservation.limits:
            lease = self._known(limit)
            items.append(Item(lease, amount_of(limit, reservation) * lease.scale))
        return items

    def _known(self, limit: Limit) -> Lease:
        """What is held of a limit; an empty lease that nobody keeps where that is nothing."""
        return self._leases.get((limit.scope, limit.kind)) or Lease(limit)

    def _lease(self, limit: Limit) -> Lease:
        """What is held of a limit, to be changed; it goes when it is reported and empty."""
        key = limit.scope, limit.kind
        lease = self._leases.get(key)
        if lease is None:
            lease = self._leases[key] = Lease(limit)
        elif lease.limit is not limit:
            lease.limit = limit
        return lease

    def _take(self, reservation: Reservation, items: Sequence[Item]) -> bool:
        """Serve a reservation from what is held here, if that covers it."""
        now_ms, server_ms = self._now(), self._server_now()
        for item in items:
            if not item.lease.covers(item.amount, now_ms, server_ms):
                return False
        for item in items:
            item.lease.take(item.amount, now_ms, server_ms)
        self._admit(reservation, items)
        self._later(item.lease for item in items)
        return True

    def _admit(self, reservation: Reservation, items: Sequence[Item]) -> None:
        """Note a call whose amounts the leases count as used."""
        expires_ms = _unix_ms(reservation)
        for item in items:
            item.lease.touched = True
            item.lease.last_amount = item.amount
            item.lease.expires_ms = max(item.lease.expires_ms, expires_ms)
        taken = [_Taken(item.lease.limit, item.amount, item.lease.window) for item in items]
        self._open[reservation.request_id] = _Call(reservation, self._now(), taken)

    def _end(self, call: _Call, spent: Spent) -> bool:
        """Settle a call with the leases; whether Redis should know before anybody else."""
        now_ms, server_ms = self._now(), self._server_now()
        dollars = False
        for taken in call.taken:
            unused = unused_of(taken.limit, call.reservation, spent)
            lease = self._lease(taken.limit)
            if lease.rate:
                lease.refund(unused * lease.scale, call.taken_ms, now_ms, server_ms)
            elif taken.limit.kind == "concurrent_requests":
                lease.end(taken.amount, 0)
                # Others may wait for it; where there is plenty, the next report is soon enough.
                if lease.tight or lease.free > 2 * lease.chunk(self._lease_ms):
                    self._soon(lease)
            else:
                if lease.window is None and taken.window is not None:
                    lease.enter(taken.window)
                if taken.window == lease.window:
                    dollars = True
                    lease.end(taken.amount, to_nano(spent.cost_usd))
                    self._soon(lease)
            self._later([lease])
        return dollars

    def _remember(self, request_id: str) -> None:
        if len(self._ended) == _REMEMBERED:
            self._ended_ids.discard(self._ended[0])
        self._ended.append(request_id)
        self._ended_ids.add(request_id)

    def _standings(self, limits: Sequence[Limit]) -> tuple[Standing, ...]:
        """Of the rates among limits, as far as this process knows."""
        now_ms = self._server_now()
        leases = [self._leases.get((limit.scope, limit.kind)) for limit in limits]
        return tuple(
            [standing(lease.limit, lease.seen, now_ms) for lease in leases if lease is not None and lease.rate]
        )

    def _now(self) -> int:
        """Local milliseconds that only ever grow; or the test's clock."""
        return time.monotonic_ns() // 1_000_000 if self._clock_ms is None else self._clock_ms()

    def _unix_now(self) -> int:
        return time.time_ns() // 1_000_000 if self._clock_ms is None else self._clock_ms()

    def _server_now(self) -> int:
        """The time of the counters, as far as this process knows."""
        return self._now() + self._server_ahead_ms

    # What goes to Redis.

    async def _ask(self, wish: Wish) -> Admission:
        """Put a wish into the next exchange and wait for what comes of it.

        Raises:
            StoreUnavailable: nothing was taken.
        """
        if self._closed:
            raise StoreUnavailable("the limits are closed")
        if self._link.pause_left_s:
            raise self._link.unavailable()
        self._wishes.append(wish)
        if wish.reservation is not None:
            self._asking[wish.reservation.request_id] = wish
        self._start()
        return await self._answer_of(wish)

    async def _answer_of(self, wish: Wish) -> Admission:
        """Wait for what comes of a wish. When the last who waits is cancelled, it is taken back."""
        wish.waiting += 1
        try:
            admission = await asyncio.shield(wish.done)
        except asyncio.CancelledError:
            wish.waiting -= 1
            if not wish.waiting and not wish.served:
                self._abandon(wish)
            raise
        wish.served = True
        return admission

    def _abandon(self, wish: Wish) -> None:
        if not wish.done.done():
            wish.done.cancel()
            self._forget(wish)
        elif wish.reservation is not None and not wish.done.cancelled() and wish.done.exception() is None:
            self._spawn(self.settle(wish.reservation, Spent(requests=0)))

    def _forget(self, wish: Wish) -> None:
        if wish.reservation is not None and self._asking.get(wish.reservation.request_id) is wish:
            del self._asking[wish.reservation.request_id]

    async def _told(self) -> None:
        """Wait until the store knows all that was said before this, or cannot be told now."""
        if self._closed or self._link.pause_left_s:
            return
        ack: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._acks.append(ack)
        self._start()
        await ack

    def _soon(self, lease: Lease) -> None:
        self._urgent[id(lease)] = lease
        self._start()

    def _later(self, leases: Any) -> None:
        for lease in leases:
            self._dirty[id(lease)] = lease
        if self._worker is None:
            self._start()

    def _start(self) -> None:
        if self._worker is None and not self._closed:
            self._worker = asyncio.create_task(self._work(), name="limits")
        self._wake.set()

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        """One exchange after the other, each with all that has gathered, until `aclose`."""
        while not self._closed:
            await self._wait()
            if time.monotonic() >= self._next_expiry:
                self._next_expiry = time.monotonic() + self._beat_s
                await self.expire()
            if not self._link.pause_left_s:
                await self._step()
        # The last words: what is open stays held, nothing else does.
        for lease in self._leases.values():
            lease.touched = False
        self._dirty = {id(lease): lease for lease in self._leases.values() if lease.dirty}
        while (self._unanswered or self._dirty or self._urgent or self._burials) and not self._link.pause_left_s:
            self._next_report = 0.0
            await self._step()

    async def _step(self) -> None:
        try:
            await self._bury_next()
            exchange = self._unanswered or self._gather()
            if exchange is not None:
                await self._carry_out(exchange)
        except StoreUnavailable as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - the task's outer edge: it must outlive whatever fails
            _log.exception("an exchange with the limits failed")
            self._fail(StoreUnavailable(f"the limits gave an answer that is none ({type(error).__name__})"))
            self._unanswered = None
            for lease in self._leases.values():
                lease.pending = 0

    async def _wait(self) -> None:
        """Until there is something to say: at once, within a period, or with the next beat."""
        pause_s = self._link.pause_left_s
        if not pause_s and (self._wishes or self._acks or self._urgent or self._burials or self._unanswered):
            return
        self._wake.clear()
        if pause_s:
            timeout_s: float | None = pause_s
        elif self._dirty:
            timeout_s = max(self._next_report - time.monotonic(), 0.0)
        else:
            timeout_s = self._beat_s if self._leases else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()

    def _gather(self) -> Exchange | None:
        """The next exchange; None where there is nothing to say."""
        now_ms, server_ms = self._now(), self._server_now()
        waiting = [wish for wish in self._wishes if not wish.done.done()]
        wishes, self._wishes = waiting[:_MOST_LIMITS], waiting[_MOST_LIMITS:]
        wanted: dict[int, Lease] = {}
        for wish in wishes:
            for item in wish.items:
                lease = item.lease = self._lease(item.lease.limit)
                wanted[id(lease)] = lease
                if wish.reservation is None:
                    continue
                lease.touched = True
                lease.last_amount = item.amount
                lease.expires_ms = max(lease.expires_ms, _unix_ms(wish.reservation))
                if not lease.covers(0, now_ms, server_ms):
                    lease.free = 0
                item.aside, item.window = lease.set_aside(item.amount), lease.window
        reported = wanted | self._urgent
        self._urgent = {}
        if time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + self._period_s
            for number in list(self._dirty)[:_MOST_LIMITS]:
                reported[number] = self._dirty.pop(number)
        settled, self._settled = self._settled, []
        acks, self._acks = self._acks, []
        # A mere question how limits stand need not be known again, and leaves no trace of who asked.
        silent = not settled and all(wish.reservation is None for wish in wishes)
        silent = silent and all(lease.idle for lease in reported.values())
        seq = None if silent else f"{self._session}:{next(self._numbers)}"
        exchange = Exchange(seq, wishes, settled, acks)
        for number, lease in reported.items():
            self._dirty.pop(number, None)
            exchange.add(lease, now_ms, self._lease_ms, wanted=number in wanted)
        return exchange

    async def _carry_out(self, exchange: Exchange) -> None:
        self._unanswered = exchange
        sent_ms = self._now()
        exchange.sent_ms = exchange.sent_ms or sent_ms
        given_ms = None if self._clock_ms is None else self._clock_ms()
        text = exchange.text(
            self.owner,
            sent_ms,
            self._unix_now(),
            given_ms=given_ms,
            lease_ms=self._lease_ms,
            grace_ms=self._grace_ms,
        )
        self.exchanges += 1
        reply = await self._link.run(self._exchange_script, exchange.keys(self.owner), text)
        now_ms = self._now()
        answer = exchange.read(reply, now_ms, self._lease_ms)
        self._unanswered = None
        # The latest that the server's clock may say, so that nothing is used beyond its time there.
        self._server_ahead_ms = answer.now_ms - exchange.sent_ms if self._clock_ms is None else 0
        self._tell(exchange, answer)
        self._tidy(exchange)
        self._compare_epoch(answer)

    def _tell(self, exchange: Exchange, answer: Answer) -> None:
        for ack in exchange.acks:
            if not ack.done():
                ack.set_result(None)
        claimed: dict[int, Bucket] = {}
        for wish, verdict in zip(exchange.wishes, answer.verdicts, strict=True):
            if wish.reservation is None:
                self._answer_question(wish, answer)
            elif verdict == Verdict.ADMITTED:
                self._admitted(wish, wish.reservation)
            elif wish.done.done():
                self._forget(wish)
            elif verdict == Verdict.REFUSED:
                self._refused(wish, wish.reservation, claimed)
            elif verdict == Verdict.COLD:
                self._spawn(self._seed(wish, answer.cold))
            else:
                self._spawn(self._ask_again(wish, answer.grace_ms / 1000))

    def _admitted(self, wish: Wish, reservation: Reservation) -> None:
        self._forget(wish)
        self._admit(reservation, wish.items)
        if wish.done.done():
            # Nobody waits any more, who was cancelled or told that the store is away.
            call = self._open.pop(reservation.request_id)
            self._end(call, Spent(requests=0))
            return
        wish.done.set_result(Admission(standings=self._standings(reservation.limits)))

    def _set_aside(self, limit: Limit) -> int:
        """What this process's own calls under way hold of a dollar limit; those of others are not known here."""
        if not limit.kind.startswith("usd"):
            return 0
        return sum(each.amount for call in self._open.values() for each in call.taken if each.limit == limit)

    def _refused(self, wish: Wish, reservation: Reservation, claimed: dict[int, Bucket]) -> None:
        """Say why; or serve it, or ask again, where it fits by now with what came back meanwhile.

        `claimed` are the counters as those before this one leave them, so that only as many ask again as may fit.
        """
        if self._take(reservation, wish.items):
            self._forget(wish)
            wish.done.set_result(Admission(standings=self._standings(reservation.limits)))
            return
        now_ms = self._server_now()
        reasons, after = [], {}
        for item in wish.items:
            limit = item.lease.limit
            seen = claimed.get(id(item.lease), item.lease.seen)
            amount = item.amount // item.lease.scale
            taken = take(limit, seen, amount, now_ms)
            if taken is None:
                refusal = exceeded(limit, seen, amount, now_ms)
                reasons.append(dataclasses.replace(refusal, reserved=min(self._set_aside(limit), refusal.current)))
            else:
                after[id(item.lease)] = taken
        wish.rounds += 1
        if reasons:
            self._forget(wish)
            wish.done.set_result(Admission(exceeded=longest(reasons)))
        elif wish.rounds > _MOST_ROUNDS:
            self._give_up(wish, StoreUnavailable("the limits change too fast to be taken; try again"))
        else:
            claimed.update(after)
            self._queue(wish)

    def _answer_question(self, wish: Wish, answer: Answer) -> None:
        cold = [(lease, window) for lease, window in answer.cold if any(lease is item.lease for item in wish.items)]
        if wish.done.done():
            return
        if cold:
            self._spawn(self._seed(wish, cold))
        else:
            wish.done.set_result(Admission())

    async def _seed(self, wish: Wish, cold: Sequence[tuple[Lease, int]]) -> None:
        """Ask the books for what cold counters of a wish begin with, then ask the store again."""
        mine = [(lease, window) for lease, window in cold if any(lease is item.lease for item in wish.items)]
        try:
            for lease, window in mine:
                spent = await asyncio.shield(self._spent(lease.limit, window))
                current = self._lease(lease.limit)
                current.seed = window, spent
                self._soon(current)
        except StoreUnavailable as error:
            self._give_up(wish, error)
        except asyncio.CancelledError:
            self._give_up(wish, StoreUnavailable("the limits are closed"))
            raise
        except Exception as error:  # noqa: BLE001 - another part's failure; who waits is told
            _log.exception("the books cannot say what was spent")
            self._give_up(wish, StoreUnavailable(f"the books cannot say what was spent ({type(error).__name__})"))
        else:
            self._queue(wish)

    def _spent(self, limit: Limit, window: int) -> asyncio.Task[int]:
        """What the books say; asked once for all who wait."""
        key = limit.scope, limit.kind, window
        task = self._seeding.get(key)
        if task is None:
            task = self._seeding[key] = asyncio.ensure_future(self._spent_so_far(limit, window))
            task.add_done_callback(lambda _: self._seeding.pop(key, None))
        return task

    async def _ask_again(self, wish: Wish, after_s: float) -> None:
        try:
            await asyncio.sleep(after_s)
        except asyncio.CancelledError:
            self._give_up(wish, StoreUnavailable("the limits are closed"))
            raise
        self._queue(wish)

    def _queue(self, wish: Wish) -> None:
        if self._closed or self._link.pause_left_s:
            self._give_up(wish, self._link.unavailable())
        else:
            self._wishes.append(wish)
            self._start()

    def _give_up(self, wish: Wish, error: StoreUnavailable) -> None:
        self._forget(wish)
        if not wish.done.done():
            wish.done.set_exception(error)
            wish.done.exception()  # nobody may look any more

    def _tidy(self, exchange: Exchange) -> None:
        for entry in exchange.entries:
            lease = entry.lease
            key = lease.limit.scope, lease.limit.kind
            if lease.dirty:
                self._dirty[id(lease)] = lease
            elif lease.idle and self._leases.get(key) is lease:
                del self._leases[key]
                self._dirty.pop(id(lease), None)
                self._urgent.pop(id(lease), None)

    def _compare_epoch(self, answer: Answer) -> None:
        """Say anew what is held where the store has lost it."""
        if self._epoch is not None and answer.epoch != self._epoch:
            _log.warning("the limits in %s have lost their data; they are filled anew", self._link.name)
            self._urgent |= {id(lease): lease for lease in self._leases.values() if lease.hold}
        self._epoch = answer.epoch

    def _fail(self, error: StoreUnavailable) -> None:
        """Tell all who wait that the store is away; what they would have taken is given back when it answers."""
        flying = self._unanswered
        for wish in (*self._wishes, *(flying.wishes if flying is not None else ())):
            self._give_up(wish, error)
        self._wishes = []
        for ack in (*self._acks, *(flying.acks if flying is not None else ())):
            if not ack.done():
                ack.set_result(None)
        self._acks = []

    async def _bury_next(self) -> None:
        while self._burials:
            owner, will = self._burials[0]
            await self._link.run(self._bury_script, owner_keys(owner), will)
            self._burials.popleft()


def _will(owner: str, unsettled: Sequence[tuple[Reservation, Spent]], clock_ms: Callable[[], int] | None) -> bytes:
    """What the script has to know of a dead owner's open calls."""
    billed: dict[str, list[tuple[str, int, int]]] = {}
    for reservation, spent in unsettled:
        for limit in reservation.limits:
            if limit.kind.startswith("usd"):
                window = window_start(limit.kind, int(reservation.ts.timestamp() * 1000))
                bill = reservation.request_id, to_nano(spent.cost_usd), window
                billed.setdefault(counter_key(limit), []).append(bill)
    given: dict[str, Any] = {"owner": owner, "billed": billed}
    if clock_ms is not None:
        given["now"] = clock_ms()
    return orjson.dumps(given)


def _unix_ms(reservation: Reservation) -> int:
    """When a call has ended, whatever happened."""
    return int(reservation.expires_at.timestamp() * 1000)
