"""One worker process: an `Assembly` behind a socket that it inherits, told what to do by its supervisor.

The supervisor writes one JSON object a line to standard input: first the boot message, later `reload`. Its end (also
its death) ends standard input, which makes the worker drain and leave. The worker answers on standard output with
`ready`, `reloaded` or `refused`; logs go to standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import uvloop

from llmrouter.config import Config, anchor_paths, parse
from llmrouter.errors import RouterError
from llmrouter.gateway.app import AdminContext, build_admin_app
from llmrouter.gateway.build import Assembly
from llmrouter.gateway.listen import server
from llmrouter.gateway.logs import set_up_logs
from llmrouter.gateway.slots import MetricSlots

__all__ = ["Boot", "main"]

_log = logging.getLogger("llmrouter.worker")
_PUBLISH_S = 1.0


@dataclasses.dataclass(frozen=True)
class Boot:
    """What a worker must know to start."""

    slot: int
    listen_fd: int
    config_path: str
    config_text: str
    version: int
    runner_urls: dict[str, list[str]]
    serve_admin: bool
    """Admin routes and /metrics are on the data port."""
    metrics_dir: str

    def config(self) -> Config:
        return parse_at(self.config_text, self.config_path)


def parse_at(text: str, path: str) -> Config:
    """Check configuration text as if it were read from a path."""
    return anchor_paths(parse(text, source=path), Path(path).resolve().parent)


class Worker:
    """Serves until told to drain."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        config = boot.config()
        set_up_logs(config.log)
        urls = {pool_id: tuple(urls) for pool_id, urls in boot.runner_urls.items()}
        self._assembly = Assembly(config, version=boot.version, runner_urls=urls)
        self._slots = MetricSlots(Path(boot.metrics_dir), boot.slot, self._assembly.metrics)
        admin = build_admin_app(self._admin_context()) if boot.serve_admin else None
        self._gateway = self._assembly.gateway(admin)
        self._server = server(self._gateway, drain_s=config.server.drain_s)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._drain)
        # The terminal sends its interrupt to the whole group; the supervisor decides what it means.
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        await self._assembly.start()
        orders = asyncio.create_task(self._take_orders(), name="orders")
        publishing = asyncio.create_task(self._publish(), name="publish metrics")
        # What start-up made lives as long as the process, and a request leaves nearly no cycles: collect seldom.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        say({"op": "ready", "slot": self._boot.slot, "pid": os.getpid()})
        listener = socket.socket(fileno=self._boot.listen_fd)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await self._server.serve(sockets=[listener])
        finally:
            orders.cancel()
            publishing.cancel()
            await self._gateway.idle(1.0)
            await self._assembly.aclose()
            self._slots.publish(self._gauges())
            say({"op": "drained", "slot": self._boot.slot})

    def _drain(self) -> None:
        self._gateway.draining = True
        # A reload may have changed the grace time since this server was made.
        self._server.config.timeout_graceful_shutdown = max(int(self._assembly.state.config.server.drain_s), 1)
        self._server.should_exit = True

    async def _take_orders(self) -> None:
        """Follow the supervisor's messages; the end of them is the end of the supervisor."""
        reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            message = json.loads(line)
            if message["op"] == "reload":
                say(await self._reload(message))
        _log.warning("the supervisor is gone; draining")
        self._drain()

    async def _reload(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            config = parse_at(message["config_text"], self._boot.config_path)
            # A store that is locked must not hold up the requests under way.
            prepared = await asyncio.to_thread(self._assembly.prepare, config)
            self._assembly.reload(config, message["version"], prepared)
        except RouterError as error:
            return {"op": "refused", "slot": self._boot.slot, "version": message["version"], "message": error.message}
        return {"op": "reloaded", "slot": self._boot.slot, "version": message["version"]}

    async def _publish(self) -> None:
        while True:
            await asyncio.sleep(_PUBLISH_S)
            self._slots.publish(self._gauges())

    def _gauges(self) -> dict[str, Any]:
        return self._assembly.gauges(self._gateway.active)

    def _admin_context(self) -> AdminContext:
        assembly = self._assembly
        return AdminContext(
            config=lambda: assembly.state.config,
            version=lambda: assembly.state.version,
            authenticate=assembly.authenticate,
            path=assembly.path,
            store=assembly.store,
            pepper=assembly.pepper,
            metrics=lambda: self._slots.render(self._gauges()),
            config_path=Path(self._boot.config_path),
            reload=lambda: os.kill(os.getppid(), signal.SIGHUP),
        )


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run one worker; the boot message is the first line of standard input."""
    boot = Boot(**json.loads(sys.stdin.readline()))
    try:
        worker = Worker(boot)
    except RouterError as error:
        say({"op": "failed", "slot": boot.slot, "message": error.message})
        return error.exit_code
    uvloop.run(worker.run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
