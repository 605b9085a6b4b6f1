"""Pools to processes: with a stand-in engine as real processes, with models out of a scripted `obtain`."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from llmrouter.backends.runners.manager import RunnerManager
from llmrouter.backends.runners.models import Progress
from llmrouter.backends.runners.process import ChildState
from llmrouter.config import Config, parse
from llmrouter.errors import ConfigError, RouterError
from tests.backends.runners.runner_rig import STAND_IN, Events, gone, lives, until


def configure(*, runners: dict[str, str], models: str = "") -> Config:
    text = []
    for name, runner in runners.items():
        text.append(f'[models.{name}]\nprice.usd = {{ input_usd_per_mtok = "1", output_usd_per_mtok = "2" }}\n{models}')
        text.append(f'[pools."{name}-pool"]\nmodel = "{name}"\n{runner}')
    first = next(iter(runners))
    text.append(f'[tiers.auto]\nsmall = "{first}"')
    return parse("\n".join(text), environ={})


def stand_in(*arguments: str, replicas: int = 1, ready_timeout_s: float = 30.0, more: str = "") -> str:
    command = json.dumps([sys.executable, "-I", "-S", str(STAND_IN)])
    return (
        f'runner = {{ kind = "vllm", model = "m", command = {command}, replicas = {replicas}, '
        f"ready_timeout_s = {ready_timeout_s}, extra_args = {json.dumps(arguments)} }}\n{more}"
    )


def read(log: Path) -> str:
    return log.read_text()


def fetch(url: str, *, post: bool = False) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, b"" if post else None), timeout=10) as answer:
        return json.load(answer)


@pytest.mark.process
async def test_pools_start_together_and_answer_on_their_own_ports(tmp_path: Path) -> None:
    config = configure(runners={"small": stand_in(replicas=2), "large": stand_in()})
    events = Events()
    manager = RunnerManager(config, tmp_path)
    urls = await manager.start(events)
    try:
        assert {pool: len(found) for pool, found in urls.items()} == {"small-pool": 2, "large-pool": 1}
        every = [url for found in urls.values() for url in found]
        assert len(set(every)) == 3
        assert [status.url for status in manager.status()] == every
        assert [status.replica for status in manager.status()] == ["small-pool/0", "small-pool/1", "large-pool/0"]
        assert {status.state for status in manager.status()} == {ChildState.READY}
        for url in every:
            argv = (await asyncio.to_thread(fetch, f"{url}/arguments"))["argv"]
            assert f"--port {url.split(':')[2].removesuffix('/v1')}" in " ".join(argv)
        assert events.kinds()[:3] == ["starting"] * 3
        assert events.kinds()[3:] == ["ready"] * 3
        pids = [status.pid for status in manager.status()]
    finally:
        await manager.stop()
    assert {status.state for status in manager.status()} == {ChildState.STOPPED}
    assert not any(pid and lives(pid) for pid in pids)


@pytest.mark.process
async def test_a_crashed_engine_comes_back_at_the_same_address(tmp_path: Path) -> None:
    events = Events()
    manager = RunnerManager(configure(runners={"small": stand_in()}), tmp_path)
    urls = await manager.start(events)
    try:
        (url,) = urls["small-pool"]
        with pytest.raises(OSError):
            await asyncio.to_thread(fetch, f"{url}/crash", post=True)
        await events.wait("ready", 2)
        assert events.kinds() == ["starting", "ready", "exited", "restarting", "starting", "ready"]
        assert "exit code 3" in events[2].message
        assert (await asyncio.to_thread(fetch, f"{url}/arguments"))["argv"]
        (status,) = manager.status()
        assert (status.url, status.restarts) == (url, 1)
        assert "asked to crash" in read(Path(f"{status.log}.1"))
    finally:
        await manager.stop()


@pytest.mark.process
async def test_the_pools_key_reaches_the_engine_by_the_environment_alone(tmp_path: Path) -> None:
    config = configure(runners={"small": stand_in(more='api_key = "sk-pool"\nupstream_model = "as-it-calls-it"')})
    manager = RunnerManager(config, tmp_path)
    urls = await manager.start(Events())
    try:
        told = await asyncio.to_thread(fetch, f"{urls['small-pool'][0]}/arguments")
    finally:
        await manager.stop()
    assert told["env"]["VLLM_API_KEY"] == "sk-pool"
    assert "sk-pool" not in " ".join(told["argv"])
    assert "--served-model-name as-it-calls-it" in " ".join(told["argv"])


@pytest.mark.process
async def test_one_engine_that_cannot_start_ends_the_others_and_says_why(tmp_path: Path) -> None:
    config = configure(runners={"small": stand_in(), "large": stand_in("--fail-with", "4")})
    manager = RunnerManager(config, tmp_path)
    with pytest.raises(RouterError) as caught:
        await manager.start(Events())
    assert "runner large-pool/0: ended with exit code 4 before it was ready" in caught.value.message
    assert "no such checkpoint" in caught.value.message
    assert {status.state for status in manager.status()} == {ChildState.STOPPED}
    assert {status.pid for status in manager.status()} == {None}


@pytest.mark.process
async def test_an_engine_that_never_gets_ready_fails_the_start(tmp_path: Path) -> None:
    runner = stand_in("--loading-answers", "1000000", ready_timeout_s=0.5)
    with pytest.raises(RouterError, match=r"not ready within 0\.5 s"):
        await RunnerManager(configure(runners={"small": runner}), tmp_path).start(Events())


@pytest.mark.process
async def test_a_stop_ends_the_helpers_of_an_engine_too(tmp_path: Path) -> None:
    manager = RunnerManager(configure(runners={"small": stand_in("--with-helper")}), tmp_path)
    await manager.start(Events())
    (status,) = manager.status()
    helper = int(read(status.log).partition("helper ")[2].split()[0])
    assert lives(helper)
    await manager.stop()
    await gone(helper)


@pytest.mark.process
async def test_engines_die_with_a_killed_gateway(tmp_path: Path) -> None:
    """SIGKILL gives the gateway no chance to stop anything."""
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from llmrouter.config import load\n"
        "from llmrouter.backends.runners.manager import RunnerManager\n"
        "async def main():\n"
        "    await RunnerManager(load(Path(sys.argv[1])), Path(sys.argv[2])).start(lambda event: None)\n"
        "    print('started', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    file = tmp_path / "llmrouter.toml"
    file.write_text(
        '[models.small]\nprice.usd = { input_usd_per_mtok = "1", output_usd_per_mtok = "2" }\n'
        f'[pools.small]\nmodel = "small"\n{stand_in("--with-helper")}\n'
        '[tiers.auto]\nsmall = "small"\n'
    )
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(file), str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert gateway.stdout is not None
        assert await asyncio.wait_for(gateway.stdout.readline(), 30) == b"started\n"
        said = read(tmp_path / "runners" / "small-0.log").split()
        engine, helper = int(said[1]), int(said[3])
        assert lives(engine)
        assert lives(helper)
    finally:
        gateway.kill()
        await gateway.wait()
    await gone(engine)
    await gone(helper)


LLAMA = 'runner = { kind = "llama_cpp", model = "smollm2-135m" }\n'


class Library:
    """Stands for `models.obtain`: blocks until it is told to go on, then fails or is cancelled."""

    def __init__(self, error: RouterError | None = None) -> None:
        self.error = error
        self.cancelled = threading.Event()

    def __call__(self, name_or_path: str, *, progress: Progress, cancel: threading.Event) -> Path:
        for done in range(0, 1001, 100):
            progress(f"{name_or_path} from a shelf", done, 1000)
        if self.error is not None:
            raise self.error
        assert cancel.wait(20)
        self.cancelled.set()
        raise RouterError("cancelled")


async def test_downloads_are_told_as_events_and_not_too_often(tmp_path: Path) -> None:
    """Eleven pieces of news at one moment give the first and the last."""
    events = Events()
    library = Library(RouterError("no source", code="model_unavailable"))
    manager = RunnerManager(configure(runners={"small": LLAMA}), tmp_path, obtain=library, now=lambda: 5.0)
    with pytest.raises(RouterError, match="no source"):
        await manager.start(events)
    assert [(event.kind, event.pool_id, event.done_bytes, event.total_bytes) for event in events] == [
        ("downloading", "small-pool", 0, 1000),
        ("downloading", "small-pool", 1000, 1000),
    ]


async def test_a_cancelled_start_ends_the_download(tmp_path: Path) -> None:
    events, library = Events(), Library()
    manager = RunnerManager(configure(runners={"small": LLAMA}), tmp_path, obtain=library)
    start = asyncio.create_task(manager.start(events))
    await events.wait("downloading")
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await until(library.cancelled.is_set)


async def test_a_window_that_no_slot_holds_is_refused_before_any_download(tmp_path: Path) -> None:
    config = configure(runners={"small": LLAMA}, models="context_window = 8192")
    with pytest.raises(ConfigError, match=r"models\.small\.context_window is 8192"):
        await RunnerManager(config, tmp_path, obtain=Library()).start(Events())


async def test_an_engine_that_is_not_installed_is_told_before_any_download(tmp_path: Path) -> None:
    runner = 'runner = { kind = "vllm", model = "m", command = ["no-such-engine"] }'
    with pytest.raises(ConfigError, match="no program 'no-such-engine'"):
        await RunnerManager(configure(runners={"small": runner}), tmp_path).start(Events())


async def test_without_runners_nothing_is_started(tmp_path: Path) -> None:
    manager = RunnerManager(configure(runners={"small": 'api = "echo"'}), tmp_path)
    assert await manager.start(Events()) == {}
    assert manager.status() == ()
    await manager.stop()
    assert not (tmp_path / "runners").exists()
