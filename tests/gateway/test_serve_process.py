"""`llmrouter serve` as real processes: reloads, signals and dying workers under load lose nothing."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from llmrouter.config import load
from llmrouter.database import database_path, reading
from llmrouter.gateway.build import prepare_store
from llmrouter.ledger.queries import recent_entries
from llmrouter.tenancy.keys import KeyStore
from llmrouter.tenancy.pepper import load_pepper
from llmrouter.testing import Answer, FakeBackend, Slow, parse_sse
from tests.support import model, pool, tier

pytestmark = pytest.mark.process


@dataclass
class Served:
    process: asyncio.subprocess.Process
    config: Path
    key: str
    base_url: str
    log: list[str] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return database_path(load(self.config).store.url)

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.base_url,
            headers={"authorization": f"Bearer {self.key}"},
            timeout=20,
            limits=httpx.Limits(max_connections=64),
        )

    async def said(self, pattern: str) -> str:
        """The first log line that matches, waiting for it."""
        async with asyncio.timeout(20):
            while True:
                for line in self.log:
                    if re.search(pattern, line):
                        return line
                assert self.process.returncode is None, "\n".join(self.log)
                await asyncio.sleep(0.02)

    async def end(self) -> int:
        async with asyncio.timeout(30):
            return await self.process.wait()


@asynccontextmanager
async def served(folder: Path, text: str, *arguments: str, workers: int = 1) -> AsyncIterator[Served]:
    path = folder / "llmrouter.toml"
    path.write_text(f'[server]\nlisten = "127.0.0.1:0"\nworkers = {workers}\ndrain_s = 10\n{text}')
    config = load(path)
    store = prepare_store(config)
    key, _ = KeyStore(store, load_pepper(config.store, store)).create("default", admin=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "llmrouter", "serve", "--config", str(path), *arguments, stderr=asyncio.subprocess.PIPE
    )
    gateway = Served(process, path, key, "")
    assert process.stderr is not None

    async def read(stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            gateway.log.append(line.decode().rstrip())

    reader = asyncio.create_task(read(process.stderr))
    try:
        found = re.search(r"http://[^/]+", await gateway.said(r"base URL"))
        assert found is not None
        gateway.base_url = found.group()
        yield gateway
    finally:
        if process.returncode is None:
            process.terminate()
            await gateway.end()
        await reader


def body(text: str = "Hi", **fields: object) -> dict[str, object]:
    return {"model": "auto", "messages": [{"role": "user", "content": text}], **fields}


def one_model(url: str) -> str:
    return model("s") + pool("s", [url]) + tier("auto", small="s")


def booked(store: Path) -> int:
    with reading(store) as connection:
        return int(connection.execute("SELECT count(*) FROM ledger").fetchone()[0])


async def test_a_reload_under_load_fails_no_request(tmp_path: Path):
    """SIGHUP with a changed file while 16 clients ask and streams run: every answer is whole."""
    async with (
        FakeBackend(default=Slow(Answer("one two three four"), between_chunks_s=0.01)) as engine,
        served(tmp_path, one_model(engine.url), workers=2) as gateway,
        gateway.client() as http,
    ):
        stop = asyncio.Event()
        answers: list[httpx.Response] = []

        async def client(number: int) -> None:
            while not stop.is_set():
                answers.append(await http.post("/v1/chat/completions", json=body(stream=number % 2 == 0)))

        clients = [asyncio.create_task(client(number)) for number in range(16)]
        for round_number in range(3):
            gateway.config.write_text(gateway.config.read_text() + f"\n# change {round_number}\n")
            gateway.process.send_signal(signal.SIGHUP)
            await gateway.said(f"configuration version {round_number + 2} is in force")
        stop.set()
        await asyncio.gather(*clients)
        newest = await http.post("/v1/chat/completions", json=body())
    assert newest.headers["x-llmrouter-config-version"] == "4"
    assert [answer.status_code for answer in answers if answer.status_code != 200] == []
    for answer in answers:
        if answer.headers["content-type"].startswith("text/event-stream"):
            assert parse_sse(answer.content)[-1] == "[DONE]"
    assert booked(gateway.store) == len(answers) + 1


async def test_a_bad_new_file_keeps_the_old_configuration_and_says_so(tmp_path: Path):
    async with (
        FakeBackend(default=Answer("fine")) as engine,
        served(tmp_path, one_model(engine.url)) as gateway,
        gateway.client() as http,
    ):
        gateway.config.write_text(gateway.config.read_text() + "\n[srever]\n")
        gateway.process.send_signal(signal.SIGHUP)
        line = await gateway.said("not reloaded")
        assert "srever: unknown key; did you mean 'server'?" in line
        refused = await http.post("/v1/admin/reload")
        assert (refused.status_code, "srever" in refused.json()["error"]["message"]) == (400, True)
        gateway.config.write_text(
            gateway.config.read_text()
            .replace("[srever]", "")
            .replace("drain_s = 10", "drain_s = 10\nrequest_timeout_s = 5")
            + "\n[pools.s.timeouts]\nfirst_byte_s = 60\n"
        )
        refused = await http.post("/v1/admin/reload")
        assert (refused.status_code, "first_byte_s" in refused.json()["error"]["message"]) == (400, True)
        assert (await http.post("/v1/chat/completions", json=body())).status_code == 200


async def test_g105_sigterm_under_load_ends_streams_whole_and_books_every_call(tmp_path: Path):
    """Streams under way at SIGTERM end with `[DONE]`; the ledger has a row for every call that was admitted."""
    async with FakeBackend(default=Slow(Answer("one two three four five six"), between_chunks_s=0.05)) as engine:
        async with served(tmp_path, one_model(engine.url), workers=2) as gateway, gateway.client() as http:
            running = [
                asyncio.create_task(http.post("/v1/chat/completions", json=body(stream=True))) for _ in range(40)
            ]
            await engine.until(lambda: engine.in_flight == 40)
            gateway.process.terminate()
            answers = await asyncio.gather(*running)
            assert await gateway.end() == 0
        assert [parse_sse(answer.content)[-1] for answer in answers] == ["[DONE]"] * 40
        entries = recent_entries(gateway.store, 100)
    assert len(entries) == 40
    assert {(entry.status, entry.finish, entry.aborted) for entry in entries} == {(200, "stop", False)}


async def test_a_worker_that_is_killed_is_started_again(tmp_path: Path):
    async with (
        FakeBackend(default=Answer("fine")) as engine,
        served(tmp_path, one_model(engine.url)) as gateway,
        gateway.client() as http,
    ):
        before = children(gateway.process.pid)
        os.kill(before[0], signal.SIGKILL)
        await gateway.said("worker 0 ended")
        async with asyncio.timeout(20):
            while children(gateway.process.pid) in ([], before):
                await asyncio.sleep(0.05)
        assert (await http.post("/v1/chat/completions", json=body())).status_code == 200


async def test_rules_published_elsewhere_reach_every_worker_within_a_second(tmp_path: Path):
    text = model("s") + model("l")
    async with FakeBackend(default=Answer("small")) as small, FakeBackend(default=Answer("large")) as large:
        text += pool("s", [small.url]) + pool("l", [large.url]) + tier("auto", small="s", large="l")
        async with served(tmp_path, text, workers=2) as gateway, gateway.client() as http:
            assert (await http.post("/v1/chat/completions", json=body())).headers["x-llmrouter-model"] == "s"
            rules = [{"rule_id": "all-large", "match": {}, "tier_role": "large"}]
            published = await http.post("/v1/admin/routing", json={"base_version": 1, "rules": rules})
            assert published.status_code == 200
            await asyncio.sleep(1.0)
            # New connections each, so that both workers are asked.
            for _ in range(12):
                async with gateway.client() as other:
                    answer = await other.post("/v1/chat/completions", json=body())
                assert answer.headers["x-llmrouter-model"] == "l"
                assert answer.headers["x-llmrouter-routing-version"] == "2"


async def test_metrics_of_all_workers_are_one_page_on_the_admin_port(tmp_path: Path):
    async with FakeBackend(default=Answer("fine")) as engine:
        text = '[admin]\nlisten = "127.0.0.1:0"\n' + one_model(engine.url)
        async with served(tmp_path, text, workers=2) as gateway, gateway.client() as http:
            line = await gateway.said(r"admin +http")
            admin = line.split()[1].removesuffix("/v1/admin")
            for _ in range(10):
                async with gateway.client() as other:
                    await other.post("/v1/chat/completions", json=body())
            assert (await http.get("/metrics")).status_code == 404
            assert (await http.get("/v1/admin/routing")).status_code == 404
            assert (await http.get(f"{admin}/metrics", headers={"authorization": "Bearer nobody"})).status_code == 401
            async with asyncio.timeout(10):
                while (
                    'llmrouter_requests_total{model="s",status="200",tier="auto"} 10.0'
                    not in (await http.get(f"{admin}/metrics")).text
                ):
                    await asyncio.sleep(0.1)


async def test_g114_listening_off_loopback_without_keys_is_refused(tmp_path: Path):
    path = tmp_path / "llmrouter.toml"
    path.write_text('[server]\nlisten = "0.0.0.0:0"\n' + one_model("http://127.0.0.1:9/v1"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "llmrouter", "serve", "--config", str(path), stderr=asyncio.subprocess.PIPE
    )
    _, said = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 2
    assert "refusing to listen on 0.0.0.0:0" in said.decode()
    assert "llmrouter keys create" in said.decode()
    assert "Traceback" not in said.decode()


def children(pid: int) -> list[int]:
    """Process ids of a process's children (Linux)."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
