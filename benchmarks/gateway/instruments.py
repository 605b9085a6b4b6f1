"""The two compiled instruments: the engine behind every target and the client in front of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gateway.cases import TOKENS, Case, Pace

__all__ = ["Engine", "Instruments", "ask", "build", "client_arguments"]

_SOURCES = Path(__file__).resolve().parent.parent / "instruments"


@dataclass(frozen=True, slots=True)
class Instruments:
    engine: Path
    client: Path


def build(folder: Path) -> Instruments:
    """Compile both into a folder.

    Raises:
        RuntimeError: there is no C compiler, or it refuses.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("no C compiler: install gcc (Debian: apt install gcc libc6-dev)")
    for name in ("engine", "client"):
        command = [compiler, "-O2", "-o", str(folder / name), str(_SOURCES / f"{name}.c"), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{name}.c does not compile:\n{done.stderr[-2000:]}")
    return Instruments(folder / "engine", folder / "client")


class Engine:
    """The running engine."""

    def __init__(self, binary: Path) -> None:
        self._process = subprocess.Popen([binary, "--tokens", str(TOKENS)], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        if len(words) != 2:
            raise RuntimeError("the engine did not start")
        self.root = f"http://127.0.0.1:{int(words[1])}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def pace(self, pace: Pace) -> None:
        """For the streams that begin from now on."""
        self._get(f"/pace?tokens={pace.tokens}&ttft_ms={pace.ttft_ms:g}&itl_ms={pace.itl_ms:g}")

    def counts(self) -> dict[str, int]:
        """What it has done since it started; `open` streams are under way."""
        return self._get("/counts")

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _get(self, path: str) -> dict[str, int]:
        with urllib.request.urlopen(f"{self.root}{path}", timeout=5) as answer:
            found: dict[str, int] = json.load(answer)
        return found


def client_arguments(case: Case, url: str, bearer: str | None, body: Path, seed: int) -> list[str]:
    """The command line of the client for a case."""
    load = ["--connections", str(case.connections)] if case.connections else ["--rate", f"{case.rate:g}"]
    arguments = ["--url", url, "--body", str(body), *load, "--seconds", f"{case.seconds:g}", "--seed", str(seed)]
    arguments += ["--drain", f"{case.drain_s:g}", "--timeout", f"{case.drain_s + 10:g}"]
    if case.stream:
        arguments += ["--stream", "--tokens", str(case.pace.tokens)]
    if case.requests is not None:
        arguments += ["--requests", str(case.requests)]
    return arguments if bearer is None else [*arguments, "--bearer", bearer]


def ask(
    client: Path, arguments: list[str], *, meanwhile: Callable[[], None] = lambda: None, every_s: float = 60.0
) -> dict[str, Any]:
    """Run the client to its end and return its report; calls `meanwhile` now and then.

    Raises:
        RuntimeError: it ended with an error.
    """
    with subprocess.Popen([client, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while True:
            try:
                out, err = process.communicate(timeout=every_s)
                break
            except subprocess.TimeoutExpired:
                meanwhile()
    if process.returncode:
        raise RuntimeError(f"the client failed: {err.strip()}")
    found: dict[str, Any] = json.loads(out)
    return found
