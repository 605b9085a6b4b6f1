"""What a process says to the shared counters in one step, and what it makes of the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import orjson

from llmrouter.buckets import window_start
from llmrouter.tenancy.redis_limits.lease import SLOTS_MS, Lease
from llmrouter.types import Admission, Limit, Reservation

__all__ = ["PREFIX", "Answer", "Exchange", "Item", "Verdict", "Wish", "counter_key", "owner_keys"]

PREFIX = "llmrouter:{limits}:"
"""All keys have one hash tag, so that a cluster keeps them on one node."""

_HOLD_MS = 2000
"""How much longer than it may be used a lease is kept for a process that says nothing."""
_DOLLARS_MS = 60_000
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


class Verdict(IntEnum):
    """How a reservation fared in the store."""

    REFUSED = 0
    ADMITTED = 1
    COLD = 2
    """A dollar counter has to be told first what the books say."""
    EARLY = 3
    """The store has lost its data, and owners still have to say what they hold."""


@dataclass(slots=True)
class Item:
    """One limit of a wish."""

    lease: Lease
    amount: int
    """In the counter's units."""
    aside: int = 0
    """What of it this process holds already."""
    window: int | None = None
    """The window that `aside` belongs to."""


@dataclass(slots=True, eq=False)
class Wish:
    """A reservation that has to ask; `reservation` is None for a question how limits stand."""

    reservation: Reservation | None
    items: Sequence[Item]
    done: asyncio.Future[Admission]
    rounds: int = 0
    waiting: int = 0
    """How many wait for it and were not cancelled."""
    served: bool = False
    """Somebody has got the answer."""


@dataclass(slots=True)
class _Entry:
    """One limit in an exchange, with what it reports as of when the exchange was made."""

    lease: Lease
    window: int | None
    hold: int
    add: int
    add_at: int
    back: int
    back_at: int
    chunk: int
    seed: tuple[int, int] | None


@dataclass(slots=True)
class Answer:
    """What the store said."""

    now_ms: int
    epoch: int
    grace_ms: int
    """How long the store still waits for owners to say what they hold."""
    verdicts: Sequence[int]
    cold: Sequence[tuple[Lease, int]]
    """The dollar counters that have to be told what was spent, and in which window."""


@dataclass(slots=True)
class Exchange:
    """One step. It may be sent again when no answer came: the store knows it by its number."""

    seq: str | None
    wishes: Sequence[Wish]
    settled: Sequence[str]
    acks: Sequence[asyncio.Future[None]]
    entries: list[_Entry] = field(default_factory=list)
    sent_ms: int = 0
    """When it was sent the first time, in local time; 0 before."""

    def add(self, lease: Lease, now_ms: int, lease_ms: int, *, wanted: bool) -> None:
        """Report a lease, and ask for a chunk where a wish needs some; what wishes use was set aside before."""
        lease.give_up_surplus(lease_ms)
        chunk = max(lease.chunk(lease_ms) - lease.free, 0) if wanted else 0
        self.entries.append(
            _Entry(
                lease=lease,
                window=lease.window,
                hold=lease.hold,
                add=lease.used if lease.rate else lease.settled,
                add_at=lease.used_at,
                back=lease.back(now_ms),
                back_at=now_ms,
                chunk=chunk,
                seed=lease.seed,
            )
        )
        lease.clear_reports()

    def keys(self, owner: str) -> list[str]:
        return [f"{PREFIX}epoch", *owner_keys(owner), *(counter_key(entry.lease.limit) for entry in self.entries)]

    def text(
        self, owner: str, now_ms: int, unix_ms: int, *, given_ms: int | None, lease_ms: int, grace_ms: int
    ) -> bytes:
        """The script's argument, as of now: what is reported ages while it waits to be sent."""
        numbers = {id(entry.lease): number for number, entry in enumerate(self.entries, 1)}
        given: dict[str, Any] = {
            "owner": owner,
            "grace_ms": grace_ms,
            "settled": list(self.settled),
            "limits": [_limit(entry, now_ms, unix_ms, lease_ms) for entry in self.entries],
            "wishes": [
                [(numbers[id(item.lease)], item.amount - item.aside, item.aside) for item in wish.items]
                for wish in self.wishes
            ],
        }
        if self.seq is not None:
            given["seq"] = self.seq
        if given_ms is not None:
            given["now"] = given_ms
        return orjson.dumps(given)

    def read(self, reply: Sequence[int], now_ms: int, lease_ms: int) -> Answer:
        """Bring the leases up to date, and tell how each wish fared."""
        count = len(self.wishes)
        rows = [reply[at : at + 4] for at in range(3 + count, len(reply), 4)]
        cold = [(entry.lease, row[1]) for entry, row in zip(self.entries, rows, strict=True) if row[3]]
        answer = Answer(reply[0], reply[1], reply[2], reply[3 : 3 + count], cold)
        for entry, (_, mark, granted, _) in zip(self.entries, rows, strict=True):
            if entry.lease.limit.kind.startswith("usd"):
                entry.lease.enter(mark)
                entry.lease.seed = None
            entry.lease.free += granted
            entry.lease.valid_until = self.sent_ms + (lease_ms if entry.lease.rate else SLOTS_MS)
        for wish, verdict in zip(self.wishes, answer.verdicts, strict=True):
            for item in wish.items:
                _apply(item, now_ms, admitted=verdict == Verdict.ADMITTED)
        for entry, (others, mark, _, _) in zip(self.entries, rows, strict=True):
            entry.lease.refresh(others, mark, now_ms)
        return answer


def counter_key(limit: Limit) -> str:
    return f"{PREFIX}counter:{limit.kind}:{limit.scope}"


def owner_keys(owner: str) -> list[str]:
    return [f"{PREFIX}owner:{owner}", f"{PREFIX}holds:{owner}", f"{PREFIX}settled:{owner}"]


def _apply(item: Item, now_ms: int, *, admitted: bool) -> None:
    """What a verdict means for what was set aside; of a dollar window that is over, nothing is left."""
    lease = item.lease
    kept = item.aside if lease.rate or item.window == lease.window else 0
    lease.pending -= kept
    if not admitted:
        lease.free += kept
    elif lease.rate:
        if kept:
            lease.count(kept, now_ms)
    else:
        lease.busy += item.amount


def _limit(entry: _Entry, now_ms: int, unix_ms: int, lease_ms: int) -> dict[str, Any]:
    lease, limit = entry.lease, entry.lease.limit
    given: dict[str, Any] = {
        "most": limit.most,
        "cap": lease.cap,
        "hold": entry.hold,
        "add": entry.add,
        "chunk": entry.chunk,
    }
    if lease.rate:
        drained = limit.most * (now_ms - entry.back_at)
        return given | {
            "kind": "rate",
            "age": now_ms - entry.add_at if entry.add else 0,
            "back": max(entry.back - drained, 0),
            "keep_ms": lease_ms + _HOLD_MS,
            "ttl_ms": _HOUR_MS + 2 * 60_000 * limit.burst // limit.most,
        }
    open_ms = max(lease.expires_ms - unix_ms, 0)
    if limit.kind == "concurrent_requests":
        return given | {"kind": "slots", "keep_ms": max(open_ms, _HOLD_MS), "ttl_ms": _DAY_MS + open_ms}
    given |= {"kind": "usd", "keep_ms": open_ms + _DOLLARS_MS, "ttl_ms": 33 * _DAY_MS, **_window(limit, unix_ms)}
    if entry.window is not None:
        given["window"] = entry.window
    if entry.seed is not None:
        given["seed_window"], given["seed"] = entry.seed
    return given


def _window(limit: Limit, unix_ms: int) -> dict[str, Any]:
    """How the server finds the window by its own clock; months come as those around ours."""
    if limit.kind == "usd_per_month":
        this = window_start(limit.kind, unix_ms)
        starts = [window_start(limit.kind, moment) for moment in (this - 1, this, this + 32 * _DAY_MS)]
        return {"starts": starts}
    return {"window_ms": _HOUR_MS if limit.kind == "usd_per_hour" else _DAY_MS}
