"""The process that `llmrouter serve` is: it owns sockets, runners, workers and the admin port, and answers signals.

SIGHUP reloads the configuration, SIGTERM and SIGINT drain: workers stop accepting, finish their streams within
`server.drain_s`, flush the books and leave; then the runners are stopped. A worker that dies is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn

from llmrouter import config as configuration
from llmrouter.backends.runners.manager import RunnerManager
from llmrouter.config import Config
from llmrouter.config_checks import refuse_contradictions
from llmrouter.database import database_path
from llmrouter.errors import ConfigError, RouterError
from llmrouter.gateway.app import AdminContext, build_admin_app
from llmrouter.gateway.build import check_reload, prepare_store, rules_drift
from llmrouter.gateway.housekeeping import keep_house
from llmrouter.gateway.learned_standing import learned_standing
from llmrouter.gateway.listen import bind, server, split_address
from llmrouter.gateway.slots import clear_slots, render_slots
from llmrouter.gateway.worker import Boot
from llmrouter.hosts import is_loopback
from llmrouter.ledger.postgres.room import check_room, connections_of
from llmrouter.postgres import Postgres
from llmrouter.routing.artefact_store import ArtefactRefused
from llmrouter.shared_store import SharedStore, shared_store
from llmrouter.tenancy.keys import KeyRing, load_keys
from llmrouter.tenancy.pepper import load_pepper
from llmrouter.types import Principal

__all__ = ["Event", "Supervisor", "check_exposure"]

_log = logging.getLogger("llmrouter.supervisor")
_BOOT_S = 60.0
_LONGEST_BACKOFF_S = 30.0
_STABLE_S = 30.0

Event = Callable[[str, dict[str, Any]], None]
"""Told what happens: `runner` (with the runner's event), `listening`, `reloaded`, `draining`, …"""


class Supervisor:
    """Starts everything, keeps it running, stops it.

    Args:
        path: the configuration file.
        config: what it holds, already checked, without the flags.
        flags: `listen` and `workers` where the command line gave them; they win over the file, also on reloads.
        on_event: told of progress; called on the event loop, must not block.
    """

    def __init__(self, path: Path, config: Config, *, flags: Mapping[str, Any], on_event: Event) -> None:
        self._path = path
        self._flags = dict(flags)
        self._config = _with_flags(config, self._flags)
        self._text = path.read_text(encoding="utf-8")
        self._on_event = on_event
        self._version = 1
        self._workers: dict[int, _WorkerProcess] = {}
        self._stopping = asyncio.Event()
        self._reloads: asyncio.Queue[None] = asyncio.Queue()
        self._runner_urls: dict[str, tuple[str, ...]] = {}

    async def run(self, *, ready: Callable[[str], None] | None = None) -> int:
        """Serve until a signal; returns the exit code.

        Args:
            ready: called once with the base URL when the data port answers.

        Raises:
            RouterError: it could not start; everything that had been started is stopped.
        """
        check_exposure(self._config)
        path = prepare_store(self._config)
        store = shared_store(self._config.store)
        self._check_room(store)
        run_dir = path.with_name(f"{path.name}.run")
        run_dir.mkdir(exist_ok=True)
        clear_slots(run_dir / "metrics")
        check_keys(self._config, store)
        self._tell_of_drift(self._config, store)
        self._tell_of_learning(self._config)
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._reloads.put_nowait, None)
        async with contextlib.AsyncExitStack() as stack:
            listener = stack.enter_context(contextlib.closing(bind(self._config.server.listen)))
            runners = RunnerManager(self._config, run_dir)
            stack.push_async_callback(runners.stop)
            starting = asyncio.ensure_future(runners.start(lambda event: self._on_event("runner", {"event": event})))
            if not await self._unless_stopped(starting):
                return 0
            self._runner_urls = starting.result()
            admin = await self._start_admin(stack, run_dir)
            stack.push_async_callback(self._stop_workers)
            await self._start_workers(listener, run_dir)
            reloading = asyncio.create_task(self._follow_reloads(), name="reloads")
            stack.callback(reloading.cancel)
            tidying = asyncio.create_task(keep_house(lambda: self._config), name="housekeeping")
            stack.callback(tidying.cancel)
            address = f"http://{_shown(listener)}/v1"
            self._on_event("listening", {"base_url": address, "admin": admin})
            if ready is not None:
                ready(address)
            await self._stopping.wait()
            # The workers close theirs when they drain; with this one open the kernel would go on taking connections
            # that nobody answers, instead of refusing them so that clients go elsewhere.
            listener.close()
            self._on_event("draining", {"drain_s": self._config.server.drain_s})
        self._on_event("stopped", {})
        return 0

    def stop(self) -> None:
        """Drain and leave, as SIGTERM makes it do. Repeatable."""
        self._stopping.set()

    async def _unless_stopped(self, work: asyncio.Future[Any]) -> bool:
        """Wait for work or for a signal; False, with the work cancelled, when the signal came first."""
        stop = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if work.done():
            work.result()
            return True
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError, RouterError):
            await work
        return False

    async def _start_workers(self, listener: socket.socket, run_dir: Path) -> None:
        for slot in range(self._config.server.workers):
            self._workers[slot] = _WorkerProcess(slot, lambda slot=slot: self._boot(slot, listener, run_dir))  # type: ignore[misc]
        started = [asyncio.ensure_future(worker.start()) for worker in self._workers.values()]
        for start in asyncio.as_completed(started):
            await start
        for worker in self._workers.values():
            worker.keep_running()

    def _boot(self, slot: int, listener: socket.socket, run_dir: Path) -> Boot:
        return Boot(
            slot=slot,
            listen_fd=listener.fileno(),
            config_path=str(self._path),
            config_text=self._text,
            version=self._version,
            runner_urls={pool_id: list(urls) for pool_id, urls in self._runner_urls.items()},
            serve_admin=self._config.admin.listen is None,
            metrics_dir=str(run_dir / "metrics"),
        )

    async def _stop_workers(self) -> None:
        grace = self._config.server.drain_s + 5.0
        await asyncio.gather(*(worker.stop(grace) for worker in self._workers.values()))

    async def _start_admin(self, stack: contextlib.AsyncExitStack, run_dir: Path) -> str | None:
        """Serve admin routes and /metrics on their own port, if there is one."""
        if self._config.admin.listen is None:
            return None
        listener = stack.enter_context(contextlib.closing(bind(self._config.admin.listen)))
        path = database_path(self._config.store.url)
        store = shared_store(self._config.store)
        pepper = load_pepper(self._config.store, path)
        context = AdminContext(
            config=lambda: self._config,
            version=lambda: self._version,
            authenticate=lambda authorization: _authenticate(store, pepper, authorization),
            path=path,
            store=store,
            pepper=pepper,
            metrics=lambda: render_slots(run_dir / "metrics"),
            config_path=self._path,
            reload=lambda: self._reloads.put_nowait(None),
        )
        admin = server(build_admin_app(context), drain_s=1.0)
        task = asyncio.create_task(admin.serve(sockets=[listener]), name="admin port")
        stack.push_async_callback(_stop_server, admin, task)
        return f"http://{_shown(listener)}"

    async def _tell_workers(self) -> list[dict[str, Any]]:
        """Hand the configuration in force to every worker; their answers."""
        return await asyncio.gather(*(w.reload(self._text, self._version) for w in self._workers.values()))

    def _check_room(self, store: SharedStore) -> None:
        """Raises `ConfigError` when a server could never serve all workers; warns when it cannot just now."""
        if isinstance(store, Postgres):
            warning = check_room(store, connections_of(self._config.server.workers))
            if warning is not None:
                _log.warning("%s", warning)

    @staticmethod
    def _tell_of_drift(config: Config, store: SharedStore) -> None:
        drift = rules_drift(config, store)
        if drift is not None:
            _log.warning("%s", drift)

    @staticmethod
    def _tell_of_learning(config: Config) -> None:
        """Say what learned tiers go by; raises `RouterError` when they could not."""
        try:
            found = learned_standing(config)
        except ArtefactRefused as error:
            # The workers serve with the last version that is what it was.
            _log.error("%s", error.message)
            return
        for line in found.notes:
            _log.info("%s", line)
        for line in found.doubts:
            _log.warning("%s", line)

    async def _follow_reloads(self) -> None:
        while True:
            await self._reloads.get()
            try:
                await self._reload()
            except RouterError as error:
                _log.error("the configuration was not reloaded, the old one stays in force: %s", error.message)
                self._on_event("reload_refused", {"message": error.message})
            except Exception:  # noqa: BLE001 - one reload that fails must not be the last one
                _log.exception("the reload failed")

    async def _reload(self) -> None:
        """Check the file, then hand the same text to every worker."""
        config = configuration.load(self._path)
        config = _with_flags(config, self._flags)
        refuse_contradictions(config, str(self._path))
        check_reload(self._config, config)
        text = self._path.read_text(encoding="utf-8")
        before = (self._config, self._text, self._version)
        # Set first: a worker that has just died is started again with these, and so needs no answer.
        self._config, self._text, self._version = config, text, self._version + 1
        answers = await self._tell_workers()
        refused = [answer["message"] for answer in answers if answer["op"] == "refused"]
        if refused:
            self._config, self._text, self._version = before
            await self._tell_workers()
            raise ConfigError(refused[0])
        _log.info("configuration version %d is in force", self._version)
        self._tell_of_drift(config, shared_store(config.store))
        await asyncio.to_thread(self._tell_of_learning, config)
        self._on_event("reloaded", {"version": self._version})


class _WorkerProcess:
    """One worker slot: its process, its messages, its restarts."""

    def __init__(self, slot: int, boot: Callable[[], Boot]) -> None:
        self._slot = slot
        self._boot = boot
        self._process: asyncio.subprocess.Process | None = None
        self._answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._listening: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._stopping = False
        self._talking = asyncio.Lock()
        """Held while an answer is awaited, so that a reload cannot take the `ready` of a worker that is starting."""

    async def start(self) -> None:
        """Start the process and wait until it serves; raises `RouterError` when it cannot."""
        async with self._talking:
            await self._start()

    async def _start(self) -> None:
        boot = self._boot()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "llmrouter.gateway.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(boot.listen_fd,),
            limit=1024 * 1024,
            # A terminal's interrupt goes to the supervisor alone.
            start_new_session=True,
        )
        self._send(dataclasses.asdict(boot))
        self._answers = asyncio.Queue()
        self._listening = asyncio.create_task(self._listen(self._process), name=f"worker {self._slot} messages")
        try:
            answer = await asyncio.wait_for(self._answers.get(), _BOOT_S)
        except TimeoutError:
            self._process.kill()
            raise ConfigError(f"worker {self._slot} did not start within {_BOOT_S:g} s") from None
        if answer["op"] != "ready":
            raise ConfigError(
                answer.get("message", f"worker {self._slot} ended while starting; see its log lines above")
            )

    def keep_running(self) -> None:
        self._keeping = asyncio.create_task(self._keep(), name=f"worker {self._slot} restarts")

    async def reload(self, text: str, version: int) -> dict[str, Any]:
        """Hand over a configuration; `ended` from a worker that is not there, whose next boot will have it."""
        async with self._talking:
            if self._process is None or self._process.returncode is not None:
                return {"op": "ended"}
            self._send({"op": "reload", "config_text": text, "version": version})
            try:
                return await asyncio.wait_for(self._answers.get(), 15.0)
            except TimeoutError:
                return {"op": "refused", "message": f"worker {self._slot} did not answer"}

    async def stop(self, grace_s: float) -> None:
        self._stopping = True
        if self._keeping is not None:
            self._keeping.cancel()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), grace_s)
        except TimeoutError:
            _log.error("worker %d did not drain within %g s and is killed", self._slot, grace_s)
            process.kill()
            await process.wait()
        if self._listening is not None:
            await self._listening

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        # uvloop says RuntimeError of a pipe that is closed: the worker has died, and whoever waits for it is told so.
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self._answers.put_nowait(json.loads(line))
        await process.wait()
        self._answers.put_nowait({"op": "ended", "message": f"worker {self._slot} ended"})

    async def _keep(self) -> None:
        """Start the worker again whenever it dies, more slowly if it dies young."""
        backoff_s = 0.5
        while True:
            assert self._process is not None
            began = time.monotonic()
            code = await self._process.wait()
            if self._stopping:
                return
            backoff_s = 0.5 if time.monotonic() - began > _STABLE_S else min(backoff_s * 2, _LONGEST_BACKOFF_S)
            _log.error("worker %d ended with code %d; starting it again in %g s", self._slot, code, backoff_s)
            await asyncio.sleep(backoff_s)
            try:
                await self.start()
            except RouterError as error:
                _log.error("worker %d could not be started: %s", self._slot, error.message)


def check_exposure(config: Config) -> None:
    """Raises `ConfigError` for listen addresses that are none."""
    for listen in (config.server.listen, config.admin.listen):
        if listen is not None:
            split_address(listen)


def check_keys(config: Config, store: SharedStore) -> None:
    """Nobody may listen off loopback without keys: every request would be refused, or worse.

    Raises:
        ConfigError: a listen address is reachable from elsewhere and the store holds no active key.
    """
    exposed = [
        listen
        for listen in (config.server.listen, config.admin.listen)
        if listen is not None and not is_loopback(split_address(listen)[0])
    ]
    now = datetime.now(UTC)
    usable = [key for key in load_keys(store) if key.info.expires_at is None or key.info.expires_at > now]
    if exposed and not usable:
        raise ConfigError(
            f"refusing to listen on {exposed[0]}, which other machines can reach, while no usable API key exists; "
            "create one with `llmrouter keys create`"
        )


def _with_flags(config: Config, flags: Mapping[str, Any]) -> Config:
    return config.model_copy(update={"server": config.server.model_copy(update=dict(flags))})


def _authenticate(store: SharedStore, pepper: bytes, authorization: bytes | None) -> Principal:
    """For the admin port, whose few requests may each look at the store."""
    ring = KeyRing(pepper)
    ring.replace(load_keys(store))
    return ring.authenticate(authorization, time.time())


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _stop_server(admin: uvicorn.Server, task: asyncio.Task[None]) -> None:
    admin.should_exit = True
    await task
