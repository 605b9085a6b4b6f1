"""What has been done of a run that makes labels: a line a call, beside the file that the run will write.

A run that ends early, for whatever reason, leaves its journal; the next run of the same output reads it and goes on. A
last line that was cut off is dropped.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import orjson

from llmrouter.errors import UsageError

__all__ = ["Journal"]

_LINES_AT_ONCE = 20
_SECONDS_AT_ONCE = 2.0


class Journal:
    """Lines that survive the death of the process at once, and that of the machine within seconds."""

    def __init__(self, path: Path, file: IO[bytes], lines: list[dict[str, Any]], now: Callable[[], float]) -> None:
        self._path = path
        self._file = file
        self._now = now
        self._unsynced = 0
        self._synced_at = now()
        self.lines = lines
        """What earlier runs wrote."""

    @classmethod
    @contextmanager
    def beside(cls, out: Path, *, now: Callable[[], float]) -> Iterator[Journal]:
        """The journal of an output, made or gone on with; one run at a time has it.

        Args:
            now: a monotonic clock in seconds.

        Raises:
            UsageError: another run has it, or it cannot be written.
        """
        path = out.with_name(f".{out.name}.building")
        try:
            # Prompts' answers are in it: readable by their owner only.
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(f"{out}: another run is making it; wait for its end") from None
            lines, length = _read(file)
            file.truncate(length)
            file.seek(length)
            journal = cls(path, file, lines, now)
            try:
                yield journal
            finally:
                journal.sync()

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a line; blocks for some milliseconds now and then.

        Raises:
            UsageError: it cannot be written.
        """
        try:
            self._file.write(orjson.dumps(dict(line), option=orjson.OPT_APPEND_NEWLINE))
        except OSError as error:
            raise UsageError(f"{self._path}: cannot be written: {error.strerror or error}") from error
        self._unsynced += 1
        if self._unsynced >= _LINES_AT_ONCE or self._now() - self._synced_at >= _SECONDS_AT_ONCE:
            self.sync()

    def sync(self) -> None:
        """Make what was added survive the death of the machine."""
        if self._unsynced:
            os.fsync(self._file.fileno())
            self._unsynced = 0
        self._synced_at = self._now()

    def remove(self) -> None:
        """All of it is in the output now."""
        self._path.unlink(missing_ok=True)


def _read(file: IO[bytes]) -> tuple[list[dict[str, Any]], int]:
    """The whole lines, and the length that they have together."""
    lines: list[dict[str, Any]] = []
    length = 0
    for line in file.read().splitlines(keepends=True):
        try:
            parsed = orjson.loads(line)
        except orjson.JSONDecodeError:
            break
        if not line.endswith(b"\n") or not isinstance(parsed, dict):
            break
        lines.append(parsed)
        length += len(line)
    return lines, length
