"""The guard as a real process: what it promises when the command, the gateway or the disk misbehaves."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmrouter.backends.runners import guard
from llmrouter.backends.runners.guard import KEPT_LOGS, BoundedLog
from tests.backends.runners.runner_rig import gone, lives, until

PYTHON = (sys.executable, "-I", "-S", "-c")
SLEEPER = (*PYTHON, "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
STUBBORN = (*PYTHON, f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER[-1]}")

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


@pytest.fixture
def start(log: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def call(*command: str, grace_s: float = 10.0, stdin: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(log), "1000000", str(grace_s), *command],
            stdin=stdin,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield call
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


async def printed_pid(log: Path) -> int:
    await until(lambda: read(log).endswith("\n"))
    return int(read(log).split()[0])


def read(log: Path) -> str:
    return log.read_text() if log.exists() else ""


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "status"), [("import sys; sys.exit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_exit_status_is_the_commands(start: Start, script: str, status: int) -> None:
    assert start(*PYTHON, script).wait(20) == status


@pytest.mark.process
def test_output_and_errors_of_the_command_go_to_the_log(start: Start, log: Path) -> None:
    start(*PYTHON, "import sys; print('out'); sys.stdout.flush(); sys.exit('err')").wait(20)
    assert log.read_text() == "out\nerr\n"


@pytest.mark.process
def test_a_command_that_does_not_exist_is_told_in_the_log(start: Start, log: Path) -> None:
    assert start("/no/such/engine").wait(20) == 127
    assert log.read_text() == "cannot start '/no/such/engine': No such file or directory\n"


@pytest.mark.process
async def test_sigterm_is_passed_on(start: Start, log: Path) -> None:
    process = start(*SLEEPER)
    engine = await printed_pid(log)
    process.terminate()
    assert process.wait(20) == 128 + signal.SIGTERM
    await gone(engine)


@pytest.mark.process
async def test_a_command_that_ignores_sigterm_is_killed_after_the_grace(start: Start, log: Path) -> None:
    process = start(*STUBBORN, grace_s=0.2)
    engine = await printed_pid(log)
    process.terminate()
    assert process.wait(20) == -signal.SIGKILL
    await gone(engine)


@pytest.mark.process
@pytest.mark.parametrize("command", [SLEEPER, STUBBORN])
async def test_the_end_of_standard_input_ends_the_command(start: Start, log: Path, command: tuple[str, ...]) -> None:
    """This is what the death of the gateway looks like on every system."""
    process = start(*command, grace_s=0.2)
    engine = await printed_pid(log)
    assert process.stdin is not None
    process.stdin.close()
    await gone(engine)
    process.wait(20)


@pytest.mark.process
async def test_an_orphaned_group_leaves_no_helper_behind(start: Start, log: Path) -> None:
    """A helper that the command started dies too, although the command itself ended in order."""
    script = (
        "import subprocess, sys, time\n"
        "helper = subprocess.Popen([sys.executable, '-I', '-S', '-c', 'import time; time.sleep(600)'])\n"
        "print(helper.pid, flush=True)\n"
        "time.sleep(600)"
    )
    process = start(*PYTHON, script)
    helper = await printed_pid(log)
    assert process.stdin is not None
    process.stdin.close()
    await gone(helper)


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
async def test_a_killed_guard_takes_the_command_with_it(start: Start, log: Path) -> None:
    process = start(*SLEEPER)
    engine = await printed_pid(log)
    assert lives(engine)
    process.kill()
    await gone(engine)


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
async def test_a_killed_gateway_is_noticed_although_its_pipe_lives_on(log: Path) -> None:
    """A process that the gateway forked may hold the other end of the guard's standard input."""
    inherited, held = os.pipe()
    parent = (
        "import subprocess, sys, time\nsubprocess.Popen(sys.argv[1:], stdin=0, start_new_session=True)\ntime.sleep(600)"
    )
    command = [sys.executable, "-I", "-S", guard.__file__, str(log), "1000000", "0.2", *SLEEPER]
    gateway = await asyncio.create_subprocess_exec(*PYTHON, parent, *command, stdin=inherited)
    try:
        engine = await printed_pid(log)
        gateway.kill()
        await gone(engine)
    finally:
        await gateway.wait()
        os.close(held)
        os.close(inherited)


def sizes(log: Path) -> list[int]:
    return [path.stat().st_size for path in sorted(log.parent.glob(f"{log.name}*"))]


def test_a_log_never_grows_past_its_bound(log: Path) -> None:
    """Old parts go, the newest text stays; all parts together are bounded too."""
    kept = BoundedLog(log, 1000)
    for number in range(200):
        kept.write(f"{number:099}\n".encode())
    assert len(sizes(log)) == KEPT_LOGS + 1
    assert max(sizes(log)) <= 1000
    assert log.read_text().endswith("199\n")


def test_a_new_start_keeps_the_log_of_the_last_one(log: Path) -> None:
    BoundedLog(log, 1000).write(b"crashed\n")
    BoundedLog(log, 1000).write(b"again\n")
    assert log.read_text() == "again\n"
    assert Path(f"{log}.1").read_text() == "crashed\n"


def test_only_the_owner_reads_a_log(log: Path) -> None:
    BoundedLog(log, 1000)
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
