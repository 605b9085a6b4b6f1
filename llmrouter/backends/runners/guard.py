"""Stands between the gateway and an engine so that neither outlives the other; a script of the standard library only.

    python -I -S guard.py LOG MAX_LOG_BYTES GRACE_S COMMAND [ARGUMENT ...]

The gateway starts it as the leader of a new process group. It starts the command in that group, writes what the command
prints to a log of bounded size, and passes SIGTERM on; when the grace has passed, it kills the whole group. The end of
its standard input tells it that the gateway is gone, whatever killed it, and counts as SIGTERM. On Linux the kernel is
asked for the same, for the case that another process inherited the gateway's end of that pipe, and kills the command
with the guard. The exit status is the command's; 128 + N when signal N ended it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

KEPT_LOGS = 3
_PR_SET_PDEATHSIG = 1
_PASSED_ON = {signal.SIGTERM, signal.SIGALRM}


class BoundedLog:
    """A file that starts anew, and keeps its last `KEPT_LOGS` forerunners, when opened and when it grows too large."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._size = 0
        self._fd = self._open()

    def write(self, chunk: bytes) -> None:
        """Append; a full disk loses the text rather than stopping the engine."""
        if self._size and self._size + len(chunk) > self._max_bytes:
            os.close(self._fd)
            self._fd = self._open()
        with contextlib.suppress(OSError):
            os.write(self._fd, chunk)
        self._size += len(chunk)

    def pump(self, source: int) -> None:
        """Copy all that arrives on a descriptor, as it arrives, until its end."""
        while chunk := os.read(source, 65536):
            self.write(chunk)

    def _open(self) -> int:
        for number in range(KEPT_LOGS, 0, -1):
            older = Path(f"{self._path}.{number - 1}") if number > 1 else self._path
            with contextlib.suppress(FileNotFoundError):
                older.replace(f"{self._path}.{number}")
        self._size = 0
        # Engines may print parts of prompts, so nobody else reads it.
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)


def ask_kernel_for(signal_number: int) -> None:
    """Let Linux send this process a signal when its parent dies; other systems have no such request."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number)


def main(argv: list[str]) -> int:
    """Run the command to its end."""
    log_path, max_log_bytes, grace_s, *command = argv
    log = BoundedLog(Path(log_path), int(max_log_bytes))
    ask_kernel_for(signal.SIGTERM)
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            # No thread runs yet, so the hook is safe.
            preexec_fn=lambda: ask_kernel_for(signal.SIGKILL),
        )
    except OSError as error:
        log.write(f"cannot start {command[0]!r}: {error.strerror}\n".encode())
        return 127
    return _watch(child, log, float(grace_s))


def _watch(child: subprocess.Popen[bytes], log: BoundedLog, grace_s: float) -> int:
    orphaned = threading.Event()

    def end_command(_number: int, _frame: FrameType | None) -> None:
        child.terminate()
        signal.setitimer(signal.ITIMER_REAL, grace_s)

    def end_group(_number: int, _frame: FrameType | None) -> None:
        os.killpg(0, signal.SIGKILL)

    def await_end_of_gateway() -> None:
        while os.read(0, 1024):
            pass
        orphaned.set()
        # Aimed at the main thread: only it runs handlers, and a signal to another one would not wake it.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    assert child.stdout is not None
    signal.signal(signal.SIGTERM, end_command)
    signal.signal(signal.SIGALRM, end_group)
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    pump = threading.Thread(target=log.pump, args=(child.stdout.fileno(),), daemon=True)
    pump.start()
    threading.Thread(target=await_end_of_gateway, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)

    status = child.wait()
    signal.setitimer(signal.ITIMER_REAL, 0)
    pump.join(timeout=0.5)
    if orphaned.is_set():
        # Nobody is left to sweep up what the command started.
        os.killpg(0, signal.SIGKILL)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
