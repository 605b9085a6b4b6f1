"""The gateway under demonstration: `llmrouter serve` as a process, with a key and a look at its gauges."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

__all__ = ["SLOTS", "Gateway", "serving", "slots_in"]

SLOTS = 16
"""`max_concurrency` in gateway.toml."""

_READY_S = 30.0
_STOP_S = 10.0
_GAUGE = re.compile(r"^llmrouter_pool_in_flight\{(?P<labels>[^}]*)\} (?P<value>\S+)$", re.MULTILINE)
_CLASS = re.compile(r'class="(\w+)"')


@dataclass(frozen=True, slots=True)
class Gateway:
    root: str
    key: str
    """Of an administrator, because it reads /metrics too."""


@contextlib.contextmanager
def serving(engine_url: str, folder: Path) -> Iterator[Gateway]:
    """Start it in a folder of its own and stop it at the end.

    Raises:
        RuntimeError: it did not start; the message has the last it said.
    """
    config = folder / "llmrouter.toml"
    shutil.copyfile(Path(__file__).with_name("gateway.toml"), config)
    listen = _free_address()
    environ = {**os.environ, "BENCH_LISTEN": listen, "BENCH_ENGINE": engine_url}
    base = [sys.executable, "-m", "llmrouter"]
    create = [*base, "keys", "create", "--tenant", "bench", "--admin", "--config", str(config), "--json"]
    made = subprocess.run(create, env=environ, capture_output=True, check=False)
    if made.returncode:
        raise RuntimeError(f"no key: {made.stderr.decode()}")
    log = folder / "output.log"
    with log.open("wb") as output:
        serve = [*base, "serve", "--config", str(config), "--workers", "1"]
        process = subprocess.Popen(serve, env=environ, stdout=output, stderr=output)
    try:
        root = f"http://{listen}"
        _wait_until_ready(root, process, log)
        yield Gateway(root, json.loads(made.stdout)["key"])
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def slots_in(metrics: str) -> dict[str, float]:
    """Slots in use by class, from the text of /metrics."""
    found: dict[str, float] = {}
    for gauge in _GAUGE.finditer(metrics):
        name = _CLASS.search(gauge["labels"])
        if name is not None:
            found[name[1]] = found.get(name[1], 0.0) + float(gauge["value"])
    return found


def _wait_until_ready(root: str, process: subprocess.Popen[bytes], log: Path) -> None:
    began = time.perf_counter()
    while True:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{root}/ready", trust_env=False).status_code == 200:
                return
        if process.poll() is not None or time.perf_counter() - began > _READY_S:
            raise RuntimeError(f"the gateway did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.02)


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
