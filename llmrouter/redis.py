"""The Redis or Valkey that several gateways share: asked in bounded time, and left alone a while where it fails."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from llmrouter.errors import ConfigError, StoreUnavailable, UsageError

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ["Link", "Script", "server_name"]

_log = logging.getLogger(__name__)


class Script:
    """A Lua script that lies beside the code of a package."""

    def __init__(self, package: str, name: str) -> None:
        self.text = (files(package) / name).read_text(encoding="utf-8")
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class Link:
    """One connection, made at first use and again after a failure.

    Args:
        what: what is kept there, in the words of messages.
        timeout_s: bounds connecting, and each answer.
        pause_s: how long calls fail at once after one has failed, so that a dead server costs no time-out a request.

    Raises:
        UsageError: the driver is not installed.
        ConfigError: the address is not one of a server.
    """

    def __init__(self, url: str, what: str, *, timeout_s: float, pause_s: float) -> None:
        self.name = server_name(url)
        """The server without user or password."""
        self._what = what
        self._timeout_s = timeout_s
        self._pause_s = pause_s
        self._away_until = 0.0
        self._down = False
        self._client = _client(url, timeout_s)

    @property
    def pause_left_s(self) -> float:
        """Seconds until the server is tried again; 0 where it may be asked now."""
        return max(self._away_until - time.monotonic(), 0.0)

    def unavailable(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._what} in {self.name} cannot be reached", retry_after_s=max(self._pause_s, 0.001)
        )

    async def run(self, script: Script, keys: Sequence[str], *arguments: bytes | int) -> Any:
        """Run a script in one atomic step.

        Raises:
            StoreUnavailable: no answer came, so the script may have run or not; or the server refused to run it.
        """
        from redis.exceptions import NoScriptError, RedisError

        if self.pause_left_s:
            raise self.unavailable()
        try:
            async with asyncio.timeout(2 * self._timeout_s):
                try:
                    answer = await self._client.evalsha(script.digest, len(keys), *keys, *arguments)
                except NoScriptError:
                    answer = await self._client.eval(script.text, len(keys), *keys, *arguments)
        except (RedisError, OSError, TimeoutError) as error:
            await self._fail(error)
            raise self.unavailable() from error
        if self._down:
            self._down = False
            _log.warning("%s in %s can be reached again", self._what, self.name)
        return answer

    async def aclose(self) -> None:
        with contextlib.suppress(Exception):
            await self._client.aclose()

    async def _fail(self, error: Exception) -> None:
        self._away_until = time.monotonic() + self._pause_s
        if not self._down:
            self._down = True
            reason = str(error) or type(error).__name__
            _log.warning("%s in %s cannot be reached: %s; trying again", self._what, self.name, reason)
        # An answer that comes late must not be taken for that of the next question.
        with contextlib.suppress(Exception):
            await self._client.connection_pool.disconnect()


def _client(url: str, timeout_s: float) -> Redis:
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        raise UsageError("Redis needs the extra `redis`: pip install '.[redis]'") from error
    try:
        return Redis.from_url(
            url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
        )
    except ValueError as error:
        raise ConfigError(f"store.limits_url: {error}") from error


def server_name(url: str) -> str:
    """A server's address as it may be shown: without user and password."""
    parts = urlsplit(url)
    return parts.path if parts.scheme == "unix" else f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
