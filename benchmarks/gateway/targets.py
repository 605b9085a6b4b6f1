"""What is measured: each target a running process tree with an address, all of them in front of the same engine."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gateway.processes import Cores, cpu_of, pinned

__all__ = ["Start", "Target", "direct", "find_nginx", "nginx_config", "start"]

_ROOT = Path(__file__).resolve().parents[2]
_READY_S = 30.0
_STOP_S = 40.0


@dataclass(frozen=True, slots=True)
class Start:
    """How long a target took from its command to its first good answer."""

    wall_s: float
    cpu_s: float


@dataclass(slots=True)
class Target:
    """One running target. `pid` is None for the engine itself, asked without anything between."""

    name: str
    root: str
    started: Start = Start(0.0, 0.0)
    bearer: str | None = None
    store: Path | None = None
    workers: int = 1
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    def stop(self) -> None:
        """End it as an operator would, and wait until everything has been written. Repeatable."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def direct(engine: str) -> Target:
    return Target("direct", engine)


def start(name: str, engine: str, folder: Path, cores: Cores) -> Target:
    """Start a target in a folder of its own and wait until it answers.

    Raises:
        RuntimeError: it did not; the message has the last it said.
    """
    folder.mkdir()
    folder.chmod(0o755)
    with pinned(cores.two_workers if name == "gateway-2" else cores.target):
        return _STARTERS[name](name, engine, folder)


def find_nginx() -> str | None:
    """Debian puts it where only root's PATH looks."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def nginx_config(listen: str, engine: str, folder: Path, user: str) -> str:
    """A plain proxy: keep-alive on both sides, nothing buffered, nothing logged."""
    return f"""\
{f"user {user};" if user == "root" else ""}
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_body_buffer_size 64k;
    keepalive_requests 10000000;
    upstream engine {{
        server {engine.removeprefix("http://")};
        keepalive 1024;
        keepalive_requests 10000000;
    }}
    server {{
        listen {listen} backlog=2048;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


def _start_nginx(name: str, engine: str, folder: Path) -> Target:
    program = find_nginx()
    if program is None:
        raise RuntimeError("nginx is not installed (Debian: apt install nginx-light)")
    listen = _free_address()
    config = folder / "nginx.conf"
    config.write_text(nginx_config(listen, engine, folder, getpass.getuser()))
    command = [program, "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log")]
    return _launch(Target(name, f"http://{listen}"), command, folder, "/health")


def _start_floor(name: str, engine: str, folder: Path) -> Target:
    listen = _free_address()
    command = [sys.executable, "-m", "benchmarks.gateway.floor", "--listen", listen, "--engine", engine]
    return _launch(Target(name, f"http://{listen}"), command, folder, "/health")


def _start_gateway(name: str, engine: str, folder: Path) -> Target:
    listen = _free_address()
    config = folder / "llmrouter.toml"
    parts = ["gateway.toml", *(["limits.toml"] if name == "gateway-limits" else [])]
    config.write_text("".join(Path(__file__).with_name(part).read_text() for part in parts))
    environ = {"BENCH_LISTEN": listen, "BENCH_ENGINE": engine}
    workers = 2 if name == "gateway-2" else 1
    base = [sys.executable, "-m", "llmrouter"]
    # A user counts only where the configuration limits users.
    made = subprocess.run(
        [*base, "keys", "create", "--tenant", "bench", "--user", "bob", "--config", str(config), "--json"],
        env={**os.environ, **environ},
        capture_output=True,
        check=False,
    )
    if made.returncode:
        raise RuntimeError(f"no key for {name}: {made.stderr.decode()}")
    target = Target(
        name,
        f"http://{listen}",
        bearer=json.loads(made.stdout)["key"],
        store=folder / "llmrouter.db",
        workers=workers,
    )
    command = [*base, "serve", "--config", str(config), "--workers", str(workers)]
    return _launch(target, command, folder, "/ready", environ)


_STARTERS: dict[str, Callable[[str, str, Path], Target]] = {
    "nginx": _start_nginx,
    "floor": _start_floor,
    "gateway": _start_gateway,
    "gateway-2": _start_gateway,
    "gateway-limits": _start_gateway,
}


def _launch(
    target: Target, command: list[str], folder: Path, ready_path: str, environ: dict[str, str] | None = None
) -> Target:
    log = folder / "output.log"
    began = time.perf_counter()
    with log.open("wb") as output:
        target.process = subprocess.Popen(
            command, cwd=_ROOT, env={**os.environ, **(environ or {})}, stdout=output, stderr=output
        )
    while not _answers(target.root + ready_path):
        if target.process.poll() is not None or time.perf_counter() - began > _READY_S:
            target.stop()
            raise RuntimeError(f"{target.name} did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.005)
    target.started = Start(time.perf_counter() - began, cpu_of(target.process.pid).total_s)
    return target


def _answers(url: str) -> bool:
    with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=2) as answer:
        return bool(answer.status == 200)
    return False


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
