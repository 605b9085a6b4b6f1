"""Redis and PostgreSQL of the benchmark's own, in its temporary folder and on free loopback ports."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["NotInstalled", "postgres", "redis"]

_START_S = 20.0
_STOP_S = 10.0


class NotInstalled(Exception):
    """A server, or the driver for it, is missing; the message says how to get it."""


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Redis without persistence; its address.

    Raises:
        NotInstalled: there is no server or no driver.
        RuntimeError: it did not start.
    """
    _need_driver("redis")
    binary = _found("redis-server")
    port = _free_port()
    folder.mkdir()
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder))
    with _running([binary, *options], folder, port):
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """PostgreSQL as its packages configure it, so that a commit survives a power cut; the address of a database.

    Raises:
        NotInstalled: there is no server or no driver.
        RuntimeError: it did not start.
    """
    _need_driver("psycopg")
    binary = _found("postgres", *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True))
    as_user = _not_root(folder)
    data, port = folder / "data", _free_port()
    made = [str(Path(binary).with_name("initdb")), "--pgdata", str(data), "--username=postgres", "--auth=trust"]
    _do([*as_user, *made, "--encoding=UTF8", "--locale=C.UTF-8", "--no-instructions"], folder)
    settings = ("-c", f"port={port}", "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
    with _running([*as_user, binary, "-D", str(data), *settings], folder, port):
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"


@contextmanager
def _running(command: Sequence[str], folder: Path, port: int) -> Iterator[None]:
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    try:
        give_up = time.monotonic() + _START_S
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"{command[-1]} did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)
        yield
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _do(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr[-2000:]}")


def _not_root(folder: Path) -> list[str]:
    """PostgreSQL refuses to run as root; its package made a user for it."""
    folder.mkdir()
    if os.geteuid() != 0:
        return []
    try:
        shutil.chown(folder, "postgres")
    except LookupError as error:
        raise NotInstalled("PostgreSQL does not run as root, and there is no user `postgres`") from error
    return [_found("setpriv"), "--reuid=postgres", "--regid=postgres", "--clear-groups"]


def _found(name: str, *folders: Path) -> str:
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)])
    binary = shutil.which(name, path=path)
    if binary is None:
        raise NotInstalled(f"{name} is not installed (Debian: apt-get install redis-server postgresql)")
    return binary


def _need_driver(name: str) -> None:
    try:
        __import__(name)
    except ImportError as error:
        raise NotInstalled(f"the driver {name} is not installed (pip install '.[redis,postgres]')") from error


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
