"""Real stores for tests: a Redis and a PostgreSQL server from Debian's packages, on free loopback ports.

They start in a temporary folder and end with the test run, even if that is killed. What a test leaves in them is gone
for the next one. A test may stop, freeze or kill them; the next one that asks finds them running.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

__all__ = ["PostgresServer", "RedisServer", "Server", "free_port", "fresh_database"]

_START_S = 20.0
_STOP_S = 10.0
_BINARIES = ("/usr/lib/postgresql/*/bin", "/usr/local/bin", "/opt/homebrew/bin")


class Server(ABC):
    """A server process with a folder and a port of its own, which stay the same however often it is restarted.

    Args:
        user: whom to run as when this process is root; None stays root.
    """

    def __init__(self, name: str, *, user: str | None = None) -> None:
        self.port = free_port()
        self._name = name
        self._user = user if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path(tempfile.mkdtemp(prefix=f"llmrouter-{name}-"))
        if self._user is not None:
            shutil.chown(self._folder, self._user)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start, or go on after `freeze`; returns when clients can connect. Harmless when it runs."""
        if self.running:
            self.thaw()
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as_user(), *self._command()], stdout=log, stderr=log, cwd=self._folder
            )
        give_up = time.monotonic() + _START_S
        while not self._answers():
            if not self.running or time.monotonic() > give_up:
                raise RuntimeError(f"{self._name} did not start:\n{self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.01)

    def stop(self) -> None:
        """End it as an operator does; clients are cut off."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Let it hold its connections and answer nothing, until `thaw`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def remove(self) -> None:
        """End it and delete its folder."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self._folder / "server.log"

    @abstractmethod
    def _command(self) -> Sequence[str]: ...

    @abstractmethod
    def _answers(self) -> bool: ...

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _as_user(self) -> list[str]:
        """What runs a command as the server's user and ends it when this process dies, however that happens."""
        setpriv = shutil.which("setpriv")
        if setpriv is None:  # not Linux
            return []
        prefix = [setpriv, "--pdeathsig=INT"]
        if self._user is not None:
            prefix += [f"--reuid={self._user}", f"--regid={self._user}", "--clear-groups"]
        return prefix


class RedisServer(Server):
    """Redis without persistence: a restart has lost everything, unless `keep` is set.

    Args:
        keep: write every change to disk, so that a restart finds it again.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self._binary = _binary("redis-server")
        self._keep = keep
        super().__init__("redis")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def clear(self) -> None:
        """Forget all data and scripts."""
        with contextlib.closing(socket.create_connection(("127.0.0.1", self.port), timeout=5)) as client:
            client.sendall(b"FLUSHALL\r\nSCRIPT FLUSH\r\n")
            answered = b""
            while answered.count(b"+OK\r\n") < 2:
                answered += client.recv(100)

    def _command(self) -> Sequence[str]:
        durable = "yes" if self._keep else "no"
        options = {"port": str(self.port), "bind": "127.0.0.1", "save": "", "dir": str(self._folder)}
        options |= {"appendonly": durable, "appendfsync": "always"}
        return [self._binary, *itertools.chain.from_iterable((f"--{name}", text) for name, text in options.items())]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as client:
                client.sendall(b"PING\r\n")
                return client.recv(100).startswith(b"+PONG")
        except OSError:
            return False


class PostgresServer(Server):
    """PostgreSQL with a superuser `postgres`. It survives `kill`, but its commits would not survive a power cut."""

    def __init__(self) -> None:
        self._postgres = _binary("postgres")
        super().__init__("postgresql", user="postgres")
        made = subprocess.run(
            [
                *self._as_user(),
                *(_binary("initdb"), "--pgdata", str(self._data), "--username=postgres", "--auth=trust"),
                *("--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed:\n{made.stderr}")

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _command(self) -> Sequence[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "shared_buffers": "32MB",
            "autovacuum": "off",
        }
        return [self._postgres, "-D", str(self._data), *(f"--{name}={text}" for name, text in settings.items())]

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


_numbers = itertools.count(1)


@contextlib.contextmanager
def fresh_database(server: PostgresServer) -> Iterator[str]:
    """The address of an empty database, which is dropped in the end."""
    import psycopg

    server.start()
    name = f"test_{next(_numbers)}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    try:
        yield server.url(name)
    finally:
        server.start()
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def _binary(name: str) -> str:
    """Where a program is. A machine without it skips the test, but CI fails, or it would pass untested."""
    found = shutil.which(name)
    if found is None:
        places = (place for pattern in _BINARIES for place in sorted(Path("/").glob(pattern[1:]), reverse=True))
        found = next((str(place / name) for place in places if (place / name).exists()), None)
    if found is not None:
        return found
    reason = f"{name} is not installed (Debian: apt-get install redis-server postgresql)"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    """A port of loopback where nobody listens just now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
