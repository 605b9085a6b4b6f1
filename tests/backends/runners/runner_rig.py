"""What the tests of runners share: a tiny model, an event list, a hand-turned clock, waiting without fixed times."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from llmrouter.backends.runners.catalogue import HubFile, ModelFile, PackagePart
from llmrouter.backends.runners.events import EventKind, RunnerEvent

STAND_IN = Path(__file__).with_name("stand_in.py")

MODEL_BYTES = b"GGUF" + bytes(range(256)) * 20

TINY = ModelFile(
    name="tiny",
    title="Tiny Q4",
    file_name="tiny.gguf",
    size_bytes=len(MODEL_BYTES),
    sha256=hashlib.sha256(MODEL_BYTES).hexdigest(),
    licence="Apache-2.0",
    hub=HubFile("org/tiny-GGUF", "0123abcd", "tiny.gguf"),
    parts=(
        PackagePart("tiny-part1", "0.1.0", "tiny_part1/data/part01.bin"),
        PackagePart("tiny-part2", "0.1.0", "tiny_part2/data/part02.bin"),
    ),
)
"""A catalogue entry for a file of a few kilobytes in two packages."""


class Events(list[RunnerEvent]):
    """Collects events; is itself the callback."""

    def __call__(self, event: RunnerEvent) -> None:
        self.append(event)

    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self]

    async def wait(self, kind: EventKind, count: int = 1) -> None:
        """Wait until so many of a kind have come."""
        await until(lambda: self.kinds().count(kind) >= count)


class Clock:
    """A clock that only sleeping turns."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait for something that another process does; fails when it takes too long."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def gone(pid: int) -> None:
    """Wait until a process is gone; fails when it still lives after ten seconds."""
    await until(lambda: not lives(pid), 10.0)


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie that its new parent has not reaped yet does not."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")
    except (ProcessLookupError, FileNotFoundError):
        return False
