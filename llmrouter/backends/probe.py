"""Asks each replica of a pool whether it is well and how busy it is, outside any request.

    vllm, llama_cpp   GET /health at the server's root, then /metrics for the engine's own queue
    openai            GET /v1/models, only while the replica's breaker is not closed: a hosted API is not called for
                      nothing, and one that answers well needs no probe
    echo              nothing to ask

Every finding expires after a few intervals, so whatever happens to the prober, old news is unknown and never a latch.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from enum import Enum

import httpx
import orjson

from llmrouter.backends.breaker import BreakerState
from llmrouter.backends.engine_metrics import parse_metrics
from llmrouter.backends.pool import Health, Pool, Replica

__all__ = ["Prober"]

_TIMEOUT_S = 3.0
_MAX_PAGE_BYTES = 8 * 1024 * 1024
_log = logging.getLogger(__name__)


class _Finding(Enum):
    READY = "ready"
    NOT_READY = "not ready"
    MISSED = "missed"
    UNCLEAR = "unclear"


class Prober:
    """Keeps health and load of one pool's replicas fresh, also across reconfigurations of the pool.

    Probes ignore proxy settings of the environment: they must take the way that calls take.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        rng: random.Random,
        client: httpx.AsyncClient | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._pool = pool
        self._rng = rng
        self._client = client
        self._owns_client = client is None
        self._sleep = sleep
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Probe now and then every `probe_interval_s`, until `aclose`. A repeat does nothing."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"probe {self._pool.pool_id}")

    async def aclose(self) -> None:
        """Stop probing; returns when no probe is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if self._owns_client and self._client is not None:
            await self._client.aclose()
            self._client = None

    async def probe_all(self) -> None:
        """Probe all replicas at once, then let the pool act on what was found."""
        async with asyncio.TaskGroup() as group:
            for replica in self._pool.replicas:
                group.create_task(self.probe_once(replica))
        self._pool.wake()

    async def probe_once(self, replica: Replica) -> None:
        """Probe one replica and note what was found on it; raises nothing for a replica that does not answer."""
        engine = self._pool.config.engine
        base_url = replica.base_url
        if base_url is None:
            return
        if engine in ("vllm", "llama_cpp"):
            root = _server_root(base_url)
            if await self._check_health(replica, f"{root}/health"):
                await self._read_load(replica, f"{root}/metrics")
        elif replica.breaker.state(self._pool.now()) is not BreakerState.CLOSED:
            await self._check_health(replica, f"{base_url.rstrip('/')}/models")

    async def _run(self) -> None:
        while True:
            try:
                await self.probe_all()
            except Exception:  # noqa: BLE001 - a bug in one round must not end all probing
                _log.exception("probing pool %s failed", self._pool.pool_id)
            await self._sleep(self._pool.config.probe_interval_s * (0.8 + 0.4 * self._rng.random()))

    async def _check_health(self, replica: Replica, url: str) -> bool:
        """Whether the server answered and is ready."""
        before = replica.health(self._pool.now())
        finding = _judge(await self._get(url))
        now = self._pool.now()
        until = now + self._keep_s()
        if finding is _Finding.READY:
            replica.probe_passed(until)
        elif finding is _Finding.UNCLEAR:
            replica.probe_unclear()
        else:
            replica.probe_missed(until, said_so=finding is _Finding.NOT_READY)
        after = replica.health(now)
        if after is not before and Health.DOWN in (before, after):
            _log.warning("replica %s of pool %s is %s", replica.name, self._pool.pool_id, after)
        return finding in (_Finding.READY, _Finding.UNCLEAR)

    async def _read_load(self, replica: Replica, url: str) -> None:
        """Note the engine's figures; without a page the last ones stay until they expire."""
        answer = await self._get(url)
        if answer is not None and answer[0] == 200:
            load = parse_metrics(answer[1].decode("utf-8", errors="replace"))
            replica.note_load(load, self._pool.now() + self._keep_s())

    async def _get(self, url: str) -> tuple[int, bytes] | None:
        """Status and body, or None where no whole answer came in time."""
        body = bytearray()
        try:
            async with asyncio.timeout(_TIMEOUT_S), self._http().stream("GET", url, headers=self._headers()) as answer:
                async for block in answer.aiter_bytes():
                    body += block
                    if len(body) > _MAX_PAGE_BYTES:
                        return None
                return answer.status_code, bytes(body)
        except (httpx.HTTPError, TimeoutError):
            return None

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False, follow_redirects=False)
        return self._client

    def _headers(self) -> dict[str, str]:
        config = self._pool.config
        headers = {name: value.get_secret_value() for name, value in config.headers.items()}
        if config.api_key is not None:
            headers["authorization"] = f"Bearer {config.api_key.get_secret_value()}"
        return headers

    def _keep_s(self) -> float:
        """How long a finding is news: three rounds, the slow ones included."""
        return 3 * max(self._pool.config.probe_interval_s, _TIMEOUT_S)


def _server_root(base_url: str) -> str:
    return base_url.rstrip("/").removesuffix("/v1")


def _judge(answer: tuple[int, bytes] | None) -> _Finding:
    """What an answer says of health.

    503 or a `loading` status is the server's own word that it is not ready. Another 5xx, or none, is a miss. A 4xx
    shows that something lives there which knows no such page or not our key: no verdict.
    """
    if answer is None:
        return _Finding.MISSED
    status, body = answer
    if status == 503 or _is_loading(body):
        return _Finding.NOT_READY
    if 200 <= status < 300:
        return _Finding.READY
    return _Finding.MISSED if status >= 500 else _Finding.UNCLEAR


def _is_loading(body: bytes) -> bool:
    try:
        page = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    status = page.get("status") if isinstance(page, dict) else None
    return isinstance(status, str) and status.startswith("loading")
