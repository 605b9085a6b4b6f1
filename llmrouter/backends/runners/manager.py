"""All runners of a configuration: their models, their ports, their processes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from llmrouter.backends.runners import models
from llmrouter.backends.runners.events import OnEvent, RunnerEvent
from llmrouter.backends.runners.llama_cpp import (
    check_window,
    llama_cpp_arguments,
    llama_cpp_environment,
    require_llama_cpp,
)
from llmrouter.backends.runners.ports import free_ports
from llmrouter.backends.runners.process import ChildProcess, ChildSpec, ChildState
from llmrouter.backends.runners.vllm import vllm_arguments, vllm_environment, with_program
from llmrouter.config import Config, LlamaCppRunner, PoolConfig, VllmRunner

__all__ = ["RunnerManager", "RunnerStatus"]

_REPORT_INTERVAL_S = 0.1

Runner = LlamaCppRunner | VllmRunner


class Obtain(Protocol):
    """The shape of `models.obtain` as it is used here."""

    def __call__(self, name_or_path: str, *, progress: models.Progress, cancel: threading.Event) -> Path: ...


@dataclass(frozen=True, slots=True)
class RunnerStatus:
    """One replica now."""

    pool_id: str
    replica: str
    url: str
    state: ChildState
    pid: int | None
    restarts: int
    start_s: float | None
    """How long the last start took."""
    log: Path


class RunnerManager:
    """Starts the pools that have a runner and keeps them running; owned by the gateway's supervisor.

    Logs lie in `state_dir/runners`. Each replica keeps its port over restarts, so its address never changes.
    """

    def __init__(
        self,
        config: Config,
        state_dir: Path,
        *,
        obtain: Obtain = models.obtain,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._pools = {pool_id: pool for pool_id, pool in config.pools.items() if pool.runner is not None}
        self._logs = state_dir / "runners"
        self._obtain = obtain
        self._now = now
        self._cancel = threading.Event()
        self._children: dict[str, list[ChildProcess]] = {}

    async def start(self, on_event: OnEvent) -> dict[str, tuple[str, ...]]:
        """Start all runners at the same time and wait until each answers; base addresses by pool id.

        A failed or cancelled start leaves nothing running and nothing downloading. Call it once.

        Raises:
            ConfigError: an engine is not installed, a model's name is unknown, or a window is too small.
            RouterError: a model cannot be had, or an engine did not become ready.
        """
        runners = {pool_id: self._checked(pool_id, pool) for pool_id, pool in self._pools.items()}
        try:
            async with asyncio.TaskGroup() as group:
                for pool_id, runner in runners.items():
                    group.create_task(self._start_pool(pool_id, runner, on_event))
        except BaseExceptionGroup as failures:
            await self.stop()
            raise _first(failures) from None
        except BaseException:
            await self.stop()
            raise
        return {pool_id: tuple(_url(child) for child in self._children[pool_id]) for pool_id in runners}

    async def stop(self) -> None:
        """End all engines and downloads. Repeatable."""
        self._cancel.set()
        await asyncio.gather(*(child.stop() for children in self._children.values() for child in children))

    def status(self) -> tuple[RunnerStatus, ...]:
        """All replicas that were started, by pool and number."""
        return tuple(
            RunnerStatus(
                pool_id=child.spec.pool_id,
                replica=child.spec.replica,
                url=_url(child),
                state=child.state,
                pid=child.pid,
                restarts=child.restart_count,
                start_s=child.start_s,
                log=child.spec.log,
            )
            for children in self._children.values()
            for child in children
        )

    def _checked(self, pool_id: str, pool: PoolConfig) -> Runner:
        """The runner, if it can work here; found out before anything is downloaded."""
        runner = pool.runner
        if isinstance(runner, VllmRunner):
            return with_program(runner, pool_id)
        assert runner is not None
        require_llama_cpp(pool_id)
        check_window(runner, pool_id, pool.model, self._config.models[pool.model].context_window)
        return runner

    async def _start_pool(self, pool_id: str, runner: Runner, on_event: OnEvent) -> None:
        pool = self._pools[pool_id]
        model_path = await self._model_path(pool_id, runner.model, on_event) if runner.kind == "llama_cpp" else None
        children = [
            ChildProcess(self._spec(pool_id, number, port, runner, pool, model_path), on_event=on_event)
            for number, port in enumerate(free_ports(runner.replicas))
        ]
        self._children[pool_id] = children
        async with asyncio.TaskGroup() as group:
            for child in children:
                group.create_task(child.start())

    def _spec(
        self, pool_id: str, number: int, port: int, runner: Runner, pool: PoolConfig, model_path: Path | None
    ) -> ChildSpec:
        model_id = pool.upstream_model or pool.model
        api_key = pool.api_key.get_secret_value() if pool.api_key is not None else None
        if isinstance(runner, VllmRunner):
            command = vllm_arguments(runner, model_id=model_id, port=port)
            env = vllm_environment(runner, api_key)
        else:
            assert model_path is not None
            command = llama_cpp_arguments(runner, model_path=model_path, model_id=model_id, port=port)
            env = llama_cpp_environment(api_key)
        return ChildSpec(
            pool_id=pool_id,
            replica=f"{pool_id}/{number}",
            command=tuple(command),
            port=port,
            log=self._logs / f"{quote(pool_id, safe='')}-{number}.log",
            ready_timeout_s=runner.ready_timeout_s,
            env=env,
        )

    async def _model_path(self, pool_id: str, model: str, on_event: OnEvent) -> Path:
        """Fetch in a thread; the thread's news arrive in the loop, at most ten a second."""
        loop = asyncio.get_running_loop()
        told_at = float("-inf")

        def progress(what: str, done_bytes: int, total_bytes: int) -> None:
            nonlocal told_at
            if self._now() - told_at >= _REPORT_INTERVAL_S or done_bytes == total_bytes:
                told_at = self._now()
                event = RunnerEvent("downloading", pool_id, pool_id, what, None, done_bytes, total_bytes)
                loop.call_soon_threadsafe(on_event, event)

        try:
            return await asyncio.to_thread(self._obtain, model, progress=progress, cancel=self._cancel)
        except asyncio.CancelledError:
            self._cancel.set()
            raise


def _url(child: ChildProcess) -> str:
    return f"http://127.0.0.1:{child.spec.port}/v1"


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that ended the start: the others are siblings that were cancelled for it."""
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
