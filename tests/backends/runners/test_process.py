"""The life of one child over a scripted process and a hand-turned clock."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.backends.runners.ports import free_ports
from llmrouter.backends.runners.process import ChildProcess, ChildSpec, ChildState, Restarts
from llmrouter.errors import RouterError
from tests.backends.runners.runner_rig import Clock, Events

HANGING = -1
ONCE_A_SECOND = Restarts()


class FakeProcess:
    """A process that ends when a test says so."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.terminated = 0
        self.killed = 0
        self._ended = asyncio.Event()

    def end(self, status: int) -> None:
        self.returncode = status
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        self.terminated += 1
        if self.returncode is None:
            self.end(-15)

    def kill_group(self) -> None:
        self.killed += 1


class Rig:
    """A child whose processes, answers and clock are scripted."""

    def __init__(self, tmp_path: Path, *answers: int | None, restarts: Restarts = ONCE_A_SECOND) -> None:
        self.clock = Clock()
        self.events = Events()
        self.processes: list[FakeProcess] = []
        self.fail_spawns = 0
        self.probing = asyncio.Event()
        self.answers: Iterator[int | None] = iter(answers)
        self.spec = ChildSpec(
            pool_id="small",
            replica="small/0",
            command=("engine",),
            port=free_ports(1)[0],
            log=tmp_path / "small-0.log",
            ready_timeout_s=30.0,
        )
        self.child = ChildProcess(
            self.spec,
            on_event=self.events,
            restarts=restarts,
            spawn=self.spawn,
            probe=self.probe,
            now=self.clock.now,
            sleep=self.clock.sleep,
            uniform=lambda _low, high: high,
        )

    async def spawn(self, spec: ChildSpec) -> FakeProcess:
        process = FakeProcess(100 + len(self.processes))
        self.processes.append(process)
        if self.fail_spawns:
            self.fail_spawns -= 1
            process.end(1)
        return process

    async def probe(self, url: str) -> int | None:
        assert url == self.spec.health_url
        answer = next(self.answers, 200)
        if answer == HANGING:
            self.probing.set()
            await asyncio.Event().wait()
        return answer


async def test_a_start_waits_until_health_answers_200(tmp_path: Path) -> None:
    rig = Rig(tmp_path, None, 503, 503, 200)
    await rig.child.start()
    assert rig.events.kinds() == ["starting", "ready"]
    assert rig.events[-1].seconds == pytest.approx(0.3)
    assert rig.child.state is ChildState.READY
    assert rig.child.pid == 100
    await rig.child.stop()
    assert rig.events.kinds() == ["starting", "ready", "stopped"]
    assert rig.child.pid is None


async def test_an_end_before_ready_fails_the_start_with_the_last_log_lines(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.fail_spawns = 1
    rig.spec.log.write_text("".join(f"line {number}\n" for number in range(40)) + "out of memory\n")
    with pytest.raises(RouterError) as caught:
        await rig.child.start()
    assert caught.value.code == "runner_failed"
    assert caught.value.message.startswith("runner small/0: ended with exit code 1 before it was ready\nlast lines of")
    assert caught.value.message.endswith("  line 39\n  out of memory")
    assert "line 20\n" not in caught.value.message
    assert rig.child.state is ChildState.STOPPED


async def test_an_engine_that_another_program_answers_for_is_not_ready(tmp_path: Path) -> None:
    """Something else answers 200 on the port while our process has already ended."""
    rig = Rig(tmp_path, 200)
    rig.fail_spawns = 1
    with pytest.raises(RouterError, match="ended with exit code 1"):
        await rig.child.start()


async def test_a_start_that_takes_too_long_fails_and_ends_the_process(tmp_path: Path) -> None:
    rig = Rig(tmp_path, *[503] * 10_000)
    with pytest.raises(RouterError, match="not ready within 30 s"):
        await rig.child.start()
    assert rig.clock.time == pytest.approx(1030.0, abs=0.2)
    assert rig.processes[0].terminated == 1
    assert rig.child.pid is None


async def test_a_port_in_use_fails_the_start_before_anything_runs(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", rig.spec.port))
        other.listen()
        with pytest.raises(RouterError, match=f"port {rig.spec.port} is in use"):
            await rig.child.start()
    assert rig.processes == []


async def test_a_cancelled_start_leaves_nothing_running(tmp_path: Path) -> None:
    rig = Rig(tmp_path, HANGING)
    start = asyncio.create_task(rig.child.start())
    await rig.probing.wait()
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert rig.processes[0].terminated == 1
    assert rig.processes[0].killed == 1


async def test_an_unexpected_end_is_followed_by_a_new_start_on_the_same_port(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.child.start()
    rig.processes[0].end(-11)
    await rig.events.wait("ready", 2)
    assert rig.events.kinds() == ["starting", "ready", "exited", "restarting", "starting", "ready"]
    assert "signal SIGSEGV" in rig.events[2].message
    assert {event.message for event in rig.events if event.kind == "starting"} == {f"starting on port {rig.spec.port}"}
    assert rig.child.restart_count == 1
    assert rig.child.pid == 101
    assert rig.processes[0].killed == 1
    await rig.child.stop()


async def test_pauses_double_while_starts_fail_up_to_the_longest(tmp_path: Path) -> None:
    rig = Rig(tmp_path, restarts=Restarts(first_s=1.0, max_s=8.0))
    await rig.child.start()
    rig.fail_spawns = 5
    rig.processes[0].end(1)
    await rig.events.wait("ready", 2)
    assert [event.seconds for event in rig.events if event.kind == "restarting"] == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    await rig.child.stop()


@pytest.mark.parametrize(("ran_s", "pause_s"), [(59.0, 2.0), (61.0, 1.0)])
async def test_only_a_stable_run_resets_the_pause(tmp_path: Path, ran_s: float, pause_s: float) -> None:
    rig = Rig(tmp_path, restarts=Restarts(stable_s=60.0))
    await rig.child.start()
    rig.processes[0].end(1)
    await rig.events.wait("ready", 2)
    await asyncio.sleep(0)
    rig.clock.time += ran_s
    rig.processes[1].end(1)
    await rig.events.wait("ready", 3)
    assert [event.seconds for event in rig.events if event.kind == "restarting"] == [1.0, pause_s]
    await rig.child.stop()


async def test_a_stop_during_the_pause_starts_nothing_more(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    pausing = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        pausing.set()
        await asyncio.Event().wait()

    child = ChildProcess(rig.spec, on_event=rig.events, spawn=rig.spawn, probe=rig.probe, sleep=sleep)
    await child.start()
    rig.processes[0].end(1)
    await pausing.wait()
    states = [child.state]
    await child.stop()
    assert [*states, child.state] == [ChildState.WAITING, ChildState.STOPPED]
    assert len(rig.processes) == 1
    assert rig.events.kinds()[-1] == "stopped"


async def test_a_stop_during_a_new_start_ends_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path, 200, HANGING)
    await rig.child.start()
    rig.processes[0].end(1)
    await rig.probing.wait()
    await rig.child.stop()
    assert rig.processes[1].returncode is not None
    assert rig.child.pid is None


async def test_a_second_stop_does_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.child.start()
    await rig.child.stop()
    await rig.child.stop()
    assert rig.processes[0].terminated == 1
    assert rig.events.kinds().count("stopped") == 1


@given(
    st.integers(min_value=1, max_value=10_000),
    st.floats(min_value=0.01, max_value=10),
    st.floats(min_value=10, max_value=600),
    st.floats(min_value=0, max_value=1),
)
def test_a_pause_lies_between_half_and_all_of_the_doubled_time(
    failures: int, first_s: float, max_s: float, chance: float
) -> None:
    restarts = Restarts(first_s=first_s, max_s=max_s)
    pause_s = restarts.pause_s(failures, lambda low, high: low + chance * (high - low))
    whole = min(max_s, first_s * 2 ** min(failures - 1, 30))
    assert whole / 2 <= pause_s <= whole
