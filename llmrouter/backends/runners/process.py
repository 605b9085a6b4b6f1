"""One engine as a child process: start, wait until it answers, start again when it ends by itself, stop.

The engine runs below `guard.py`, which ties its life to the gateway's and bounds its log. Time, chance, the start of
the process and the question whether it answers come in as arguments.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from llmrouter.backends.runners.events import EventKind, OnEvent, RunnerEvent
from llmrouter.backends.runners.ports import http_status, port_is_free
from llmrouter.errors import RouterError

__all__ = ["ChildProcess", "ChildSpec", "ChildState", "Restarts", "Running", "spawn_guarded"]

_PROBE_INTERVAL_S = 0.1
_MAX_LOG_BYTES = 8 * 1024 * 1024
_SHOWN_LOG_LINES = 12


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run and how to tell that it is ready."""

    pool_id: str
    replica: str
    command: tuple[str, ...]
    port: int
    log: Path
    ready_timeout_s: float
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the gateway's own environment."""
    grace_s: float = 10.0
    """How long the engine may take to end after SIGTERM before its whole group is killed."""

    @property
    def health_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/health"


@dataclass(frozen=True, slots=True)
class Restarts:
    """The pause before each new start: doubling, spread by chance so that replicas do not start in step."""

    first_s: float = 1.0
    max_s: float = 60.0
    stable_s: float = 60.0
    """After a run of this length the next failure counts as the first."""

    def pause_s(self, failures: int, uniform: Callable[[float, float], float]) -> float:
        """The pause after so many failures in a row, between half and all of the doubled time."""
        whole = min(self.max_s, self.first_s * 2.0 ** min(failures - 1, 30))
        return whole * uniform(0.5, 1.0)


class ChildState(StrEnum):
    """Where a child is in its life."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"
    """It ended by itself and starts again after a pause."""


class Running(Protocol):
    """A started process."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None:
        """None while it runs."""

    async def wait(self) -> int:
        """Wait for its end; any number of callers may."""

    def terminate(self) -> None:
        """Ask it to end; harmless when it has ended."""

    def kill_group(self) -> None:
        """Kill it and all that it started; harmless when they have ended."""


class ChildProcess:
    """Keeps one engine running on one port."""

    def __init__(
        self,
        spec: ChildSpec,
        *,
        on_event: OnEvent,
        restarts: Restarts = Restarts(),
        spawn: Callable[[ChildSpec], Awaitable[Running]] | None = None,
        probe: Callable[[str], Awaitable[int | None]] = http_status,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.spec = spec
        self.state = ChildState.STOPPED
        self.restart_count = 0
        self.start_s: float | None = None
        """How long the last start took until the engine answered."""
        self._on_event = on_event
        self._restarts = restarts
        self._spawn = spawn or spawn_guarded
        self._probe = probe
        self._now = now
        self._sleep = sleep
        self._uniform = uniform
        self._process: Running | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Leader of the engine's process group while there is one."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the engine and wait until it answers; from then on it is started again whenever it ends.

        A cancelled or failed start leaves nothing running.

        Raises:
            RouterError: it ended or did not answer in time; the message holds the last lines of its log.
        """
        process = await self._launch()
        self._keeper = asyncio.create_task(self._keep(process), name=f"runner {self.spec.replica}")

    async def stop(self) -> None:
        """End the engine: SIGTERM, then SIGKILL to its group when the grace has passed. Repeatable."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        if self._process is not None:
            await self._end(self._process)
        if self.state is not ChildState.STOPPED:
            self.state = ChildState.STOPPED
            self._tell("stopped", "stopped")
        if keeper is not None and not keeper.cancelled():
            keeper.result()

    async def _launch(self) -> Running:
        began = self._now()
        self.state = ChildState.STARTING
        self._tell("starting", f"starting on port {self.spec.port}")
        try:
            if not port_is_free(self.spec.port):
                raise self._failed(f"port {self.spec.port} is in use by another program")
            self._process = await self._spawn(self.spec)
            await self._until_ready(self._process, began)
        except BaseException:
            self.state = ChildState.STOPPED
            if self._process is not None:
                await self._end(self._process)
            raise
        self.start_s = self._now() - began
        self.state = ChildState.READY
        self._tell("ready", f"ready after {self.start_s:.1f} s", seconds=self.start_s)
        return self._process

    async def _until_ready(self, process: Running, began: float) -> None:
        while True:
            status = await self._probe(self.spec.health_url)
            if process.returncode is not None:
                raise self._failed(f"ended with {_exit_words(process.returncode)} before it was ready", log=True)
            if status == 200:
                return
            if self._now() - began >= self.spec.ready_timeout_s:
                raise self._failed(f"not ready within {self.spec.ready_timeout_s:g} s", log=True)
            await self._sleep(_PROBE_INTERVAL_S)

    async def _keep(self, process: Running) -> None:
        failures = 0
        while True:
            ready_at = self._now()
            status = await process.wait()
            process.kill_group()
            self._process = None
            self._tell("exited", f"ended with {_exit_words(status)}; log: {self.spec.log}")
            if self._now() - ready_at >= self._restarts.stable_s:
                failures = 0
            process, failures = await self._launch_again(failures)

    async def _launch_again(self, failures: int) -> tuple[Running, int]:
        while True:
            failures += 1
            pause_s = self._restarts.pause_s(failures, self._uniform)
            self.state = ChildState.WAITING
            self.restart_count += 1
            self._tell("restarting", f"starting again in {pause_s:.1f} s", seconds=pause_s)
            await self._sleep(pause_s)
            try:
                return await self._launch(), failures
            except RouterError as error:
                self._tell("exited", error.message)

    async def _end(self, process: Running) -> None:
        try:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                # The guard kills the group itself after the grace; the extra second lets it report the end.
                await asyncio.wait_for(process.wait(), self.spec.grace_s + 1.0)
        finally:
            process.kill_group()
            await process.wait()
            self._process = None

    def _failed(self, what: str, *, log: bool = False) -> RouterError:
        lines = _last_lines(self.spec.log) if log else ""
        shown = f"\nlast lines of {self.spec.log}:\n{lines}" if lines else ""
        return RouterError(f"runner {self.spec.replica}: {what}{shown}", code="runner_failed")

    def _tell(self, kind: EventKind, message: str, seconds: float | None = None) -> None:
        self._on_event(RunnerEvent(kind, self.spec.pool_id, self.spec.replica, message, seconds))


async def spawn_guarded(spec: ChildSpec) -> Running:
    """Start a command below the guard, as the leader of a new process group.

    The write end of its standard input stays open in this process, so its end is this process's end. Call it in a
    thread that lives as long as the gateway: Linux takes the end of the starting thread for the parent's death.
    """
    spec.log.parent.mkdir(parents=True, exist_ok=True)
    guard = Path(__file__).with_name("guard.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-S", str(guard), str(spec.log), str(_MAX_LOG_BYTES), str(spec.grace_s)),
        *spec.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, **spec.env},
    )
    return _Guarded(process)


class _Guarded:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill_group(self) -> None:
        # macOS answers EPERM for a group of which only zombies are left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _exit_words(status: int) -> str:
    number = -status if status < 0 else status - 128
    try:
        return f"signal {signal.Signals(number).name}"
    except ValueError:
        return f"exit code {status}"


def _last_lines(path: Path) -> str:
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - 8192))
            text = log.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(f"  {line[:300]}" for line in text.splitlines()[-_SHOWN_LOG_LINES:])
