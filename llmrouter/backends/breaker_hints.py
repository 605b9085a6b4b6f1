"""Breakers of several workers and gateways warn each other: a replica that one has seen fail is left alone by all.

A breaker belongs to one worker, which has to see `failures` calls fail by itself. With hints, the pause that one worker
begins holds for all others within half a second. Afterwards each makes its own trial. Hints only ever add a pause with
an end; when their store is away, each breaker is on its own again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from urllib.parse import urlsplit

import orjson

from llmrouter.backends.pool import Pool
from llmrouter.backends.replica import Replica
from llmrouter.errors import StoreUnavailable
from llmrouter.hosts import is_loopback
from llmrouter.redis import Link, Script
from llmrouter.types import value

__all__ = ["BreakerHints", "Hint", "HintStore", "RedisHints"]

_log = logging.getLogger(__name__)

_KEY = "llmrouter:{hints}:breakers"


@value
class Hint:
    """A replica that failed, and for how long it is left alone from now on."""

    pool_id: str
    replica: str
    """Its address; one that only its own machine can reach has that machine's name added."""
    left_s: float


class HintStore(Protocol):
    """Where hints are exchanged."""

    async def exchange(self, opened: Sequence[Hint]) -> Sequence[Hint]:
        """Note what has just opened here, and return all hints that still hold, our own among them.

        Of two about one replica the longer holds.

        Raises:
            StoreUnavailable: nothing may have been noted or read.
        """

    async def aclose(self) -> None: ...


class BreakerHints:
    """Exchanges hints for the pools of one worker, `every_s`.

    Args:
        pools: the pools in force when it is asked.
        machine: the name of this one; None asks it.
        closes: `store`, with `aclose`.
    """

    def __init__(
        self,
        store: HintStore,
        pools: Callable[[], Mapping[str, Pool]],
        *,
        every_s: float = 0.5,
        machine: str | None = None,
    ) -> None:
        self._store = store
        self._machine = machine or socket.gethostname()
        self._pools = pools
        self._every_s = every_s
        self._opens: dict[tuple[str, str], int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Exchange now and then every `every_s`, until `aclose`. A repeat does nothing."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="breaker hints")

    async def aclose(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        await self._store.aclose()

    async def exchange(self) -> None:
        """Tell what has opened since the last time, and hold what others have told.

        Raises:
            StoreUnavailable: what has opened is told the next time.
        """
        seen, opened = self._opened()
        hints = await self._store.exchange(opened)
        self._opens = seen
        pools = self._pools()
        for hint in hints:
            pool = pools.get(hint.pool_id)
            for replica in pool.replicas if pool is not None else ():
                if pool is not None and _address(replica, self._machine) == hint.replica:
                    now = pool.now()
                    replica.breaker.hold(now, now + hint.left_s)

    def _opened(self) -> tuple[dict[tuple[str, str], int], list[Hint]]:
        """How often each breaker has opened by itself, and those that have since the last time and are open.

        A pause that a hint began is not told again, or two workers would keep each other's breakers open.
        """
        seen: dict[tuple[str, str], int] = {}
        opened = []
        for pool_id, pool in self._pools().items():
            now = pool.now()
            for replica in pool.replicas:
                key = pool_id, _address(replica, self._machine)
                seen[key] = replica.breaker.opens
                until = replica.breaker.retry_at(now)
                if until is not None and until > now and seen[key] > self._opens.get(key, 0):
                    opened.append(Hint(*key, until - now))
        return seen, opened

    async def _run(self) -> None:
        while True:
            try:
                await self.exchange()
            except StoreUnavailable as error:
                _log.debug("no breaker hints: %s", error.message)
            except Exception:  # noqa: BLE001 - the task's outer edge: breakers work without hints
                _log.exception("breaker hints failed")
            await asyncio.sleep(self._every_s)


def _address(replica: Replica, machine: str) -> str:
    """What a replica is called at every gateway: names count positions in a list, which may differ."""
    host = urlsplit(replica.base_url or "").hostname
    if host is not None and not is_loopback(host):
        return replica.base_url or ""
    return f"{replica.base_url or replica.name} on {machine}"


class RedisHints:
    """`HintStore` in Redis or Valkey: one script call an exchange, times by the server's clock.

    Raises:
        UsageError: the driver is not installed.
        ConfigError: the address is not one of a server.
    """

    def __init__(self, url: str, *, timeout_s: float = 0.5, pause_s: float = 1.0) -> None:
        self._link = Link(url, "breaker hints", timeout_s=timeout_s, pause_s=pause_s)
        self._script = Script("llmrouter.backends", "breaker_hints.lua")

    async def exchange(self, opened: Sequence[Hint]) -> Sequence[Hint]:
        """Note and read hints; see `HintStore.exchange`."""
        told: list[bytes | int] = []
        for hint in opened:
            told += orjson.dumps((hint.pool_id, hint.replica)), max(round(hint.left_s * 1000), 1)
        reply = await self._link.run(self._script, [_KEY], *told)
        hints = []
        for name, left_ms in zip(reply[::2], reply[1::2], strict=True):
            pool_id, replica = orjson.loads(name)
            hints.append(Hint(pool_id, replica, left_ms / 1000))
        return hints

    async def aclose(self) -> None:
        await self._link.aclose()
