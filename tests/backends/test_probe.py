"""Health and load probes against a scripted server; nothing here waits for real time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping

import httpx
import pytest

from llmrouter.backends.echo import EchoBackend
from llmrouter.backends.engine_metrics import EngineLoad
from llmrouter.backends.pool import Health, Pool
from llmrouter.backends.probe import Prober
from llmrouter.config import PoolConfig
from llmrouter.errors import NoCapacity
from llmrouter.protocols import Backend
from llmrouter.types import Failure

METRICS = 'vllm:num_requests_running{model_name="m"} 2.0\nvllm:num_requests_waiting{model_name="m"} 5.0\n'


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Server:
    """Answers each path as scripted (404 else), or breaks, and keeps every request it got."""

    def __init__(self, pages: Mapping[str, httpx.Response | Exception | None]) -> None:
        self.pages = dict(pages)
        self.requests: list[httpx.Request] = []
        self.reached = asyncio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.reached.set()
        page = self.pages.get(request.url.path, httpx.Response(404))
        if isinstance(page, Exception):
            raise page
        if page is None:
            await asyncio.Event().wait()
        assert isinstance(page, httpx.Response)
        return httpx.Response(page.status_code, content=page.content)

    @property
    def asked(self) -> list[str]:
        return [str(request.url) for request in self.requests]


class Rig:
    """A pool of one replica `a` at `http://a:8000/v1`, its prober and the server behind both."""

    def __init__(self, pages: Mapping[str, httpx.Response | Exception | None], **changes: object) -> None:
        self.clock = Clock()
        self.server = Server(pages)
        settings = {"model": "m", "api": "vllm", "urls": ["http://a:8000/v1"], **changes}
        self.config = PoolConfig.model_validate(settings)
        backend = EchoBackend(name="a", model="m")
        members: list[tuple[Backend, str | None]] = [(backend, url) for url in self.config.urls or (None,)]
        rng = random.Random(1)
        self.pool = Pool.with_replicas("small", self.config, members, now=self.clock, rng=rng)
        self.prober = Prober(self.pool, rng=rng, client=httpx.AsyncClient(transport=httpx.MockTransport(self.server)))
        self.replica = self.pool.replicas[0]

    async def probe(self) -> Health:
        await self.prober.probe_once(self.replica)
        return self.health()

    def health(self) -> Health:
        return self.replica.health(self.clock.seconds)

    @property
    def load(self) -> EngineLoad | None:
        return self.replica.engine_load(self.clock.seconds)


def well() -> dict[str, httpx.Response | Exception | None]:
    return {"/health": httpx.Response(200), "/metrics": httpx.Response(200, text=METRICS)}


@pytest.mark.parametrize(
    ("url", "health"),
    [
        ("http://a:8000/v1", "http://a:8000/health"),
        ("http://a:8000/v1/", "http://a:8000/health"),
        ("https://gpu.example/llm/v1", "https://gpu.example/llm/health"),
        ("http://a:8000", "http://a:8000/health"),
    ],
)
async def test_health_and_metrics_are_asked_for_at_the_servers_root(url, health):
    rig = Rig({}, urls=[url])
    await rig.probe()
    assert rig.server.asked == [health, health.removesuffix("health") + "metrics"]


@pytest.mark.parametrize("api", ["vllm", "llama_cpp"])
async def test_a_server_that_is_well_is_up_and_its_load_known(api):
    rig = Rig(well(), api=api)
    assert rig.health() is Health.UNKNOWN
    assert await rig.probe() is Health.UP
    assert rig.load == EngineLoad(running=2, waiting=5)
    assert rig.replica.load(rig.clock.seconds) == 5


@pytest.mark.parametrize(
    "trouble", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.Response(500), httpx.Response(502)]
)
async def test_two_misses_in_a_row_take_a_replica_down_and_one_answer_brings_it_back(trouble):
    rig = Rig({**well(), "/health": trouble})
    assert await rig.probe() is Health.UNKNOWN
    assert await rig.probe() is Health.DOWN
    assert rig.pool.try_acquire() is None
    rig.server.pages["/health"] = httpx.Response(200)
    assert await rig.probe() is Health.UP


async def test_misses_that_are_not_in_a_row_do_not_add_up():
    rig = Rig(well())
    for page in (httpx.Response(500), httpx.Response(200)) * 3:
        rig.server.pages["/health"] = page
        assert await rig.probe() in (Health.UP, Health.UNKNOWN)


async def test_a_busy_replica_that_answers_calls_is_not_taken_down_by_slow_probes():
    rig = Rig({"/health": httpx.ReadTimeout("slow")})
    for _ in range(5):
        lease = rig.pool.try_acquire()
        assert lease is not None
        lease.succeed()
        assert await rig.probe() is Health.UNKNOWN
    assert await rig.probe() is Health.DOWN


@pytest.mark.parametrize(
    "page",
    [
        httpx.Response(503, json={"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}),
        httpx.Response(503),
        httpx.Response(200, json={"status": "loading model"}),
        httpx.Response(200, json={"status": "loading"}),
    ],
)
async def test_a_server_that_says_it_is_not_ready_is_down_at_once(page):
    rig = Rig({**well(), "/health": page})
    assert await rig.probe() is Health.DOWN
    assert rig.server.asked == ["http://a:8000/health"]
    rig.server.pages["/health"] = httpx.Response(200, json={"status": "ok"})
    assert await rig.probe() is Health.UP


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405, 429])
async def test_an_answer_that_says_nothing_of_health_leaves_it_unknown(status):
    rig = Rig({**well(), "/health": httpx.ConnectError("refused")})
    await rig.probe()
    await rig.probe()
    rig.server.pages["/health"] = httpx.Response(status)
    assert await rig.probe() is Health.UNKNOWN
    assert rig.pool.try_acquire() is not None
    assert rig.load == EngineLoad(running=2, waiting=5)


async def test_g089_overload_that_stops_being_reported_lets_requests_flow_again():
    """The queue figure vanishes from the page: unknown at the next probe. The page vanishes: unknown after its time."""
    rig = Rig(well())
    await rig.probe()
    assert rig.replica.load(rig.clock.seconds) == 5
    rig.server.pages["/metrics"] = httpx.Response(200, text='vllm:num_requests_running{model_name="m"} 2.0\n')
    await rig.probe()
    assert rig.replica.load(rig.clock.seconds) == 0

    rig.server.pages["/metrics"] = httpx.Response(200, text=METRICS)
    await rig.probe()
    rig.server.pages["/metrics"] = httpx.Response(404)
    rig.clock.seconds += 14.9
    await rig.probe()
    assert rig.load is not None
    rig.clock.seconds += 0.1
    await rig.probe()
    assert rig.load is None
    assert rig.replica.load(rig.clock.seconds) == 0


async def test_g089_health_found_long_ago_is_unknown():
    rig = Rig({"/health": httpx.Response(503)}, probe_interval_s=20)
    assert await rig.probe() is Health.DOWN
    rig.clock.seconds += 59.9
    assert rig.health() is Health.DOWN
    rig.clock.seconds += 0.1
    assert rig.health() is Health.UNKNOWN


async def test_an_endless_page_is_given_up():
    rig = Rig({**well(), "/metrics": httpx.Response(200, content=METRICS.encode() + b"# " + b"x" * (8 << 20))})
    assert await rig.probe() is Health.UP
    assert rig.load is None


async def test_a_hosted_api_is_asked_for_its_models_only_while_its_breaker_is_not_closed():
    rig = Rig({"/v1/models": httpx.Response(200, json={"object": "list", "data": []})}, api="openai")
    assert await rig.probe() is Health.UNKNOWN
    assert rig.server.asked == []
    lease = rig.pool.try_acquire()
    assert lease is not None
    lease.fail(Failure.RATE_LIMITED, 30)
    assert await rig.probe() is Health.UP
    assert rig.server.asked == ["http://a:8000/v1/models"]
    rig.clock.seconds += 30
    trial = rig.pool.try_acquire()
    assert trial is not None
    trial.succeed()
    await rig.probe()
    assert len(rig.server.asked) == 1


async def test_a_runner_decides_how_its_pool_is_probed():
    rig = Rig(well(), api="openai", urls=[], runner={"kind": "llama_cpp", "model": "x"})
    await rig.probe()
    assert rig.server.asked == [], "a runner's replica has no address before it is started"
    rig.replica.base_url = "http://127.0.0.1:4711/v1"
    assert await rig.probe() is Health.UP
    assert rig.server.asked[0] == "http://127.0.0.1:4711/health"


async def test_an_echo_pool_is_never_probed():
    rig = Rig(well(), api="echo", urls=[])
    await rig.prober.probe_all()
    assert rig.server.asked == []


async def test_probes_carry_the_pools_key_and_headers():
    rig = Rig(well(), api_key="sk-pool", headers={"x-gateway": "blue"})
    await rig.probe()
    for request in rig.server.requests:
        assert (request.headers["authorization"], request.headers["x-gateway"]) == ("Bearer sk-pool", "blue")


async def test_a_change_to_or_from_down_is_logged_without_secrets(caplog):
    rig = Rig({"/health": httpx.Response(503)}, api_key="sk-pool")
    with caplog.at_level(logging.WARNING):
        await rig.probe()
        await rig.probe()
        rig.server.pages["/health"] = httpx.Response(200)
        await rig.probe()
    assert caplog.messages == ["replica a of pool small is down", "replica a of pool small is up"]


async def test_a_round_tells_those_who_wait_that_nothing_is_usable_any_more():
    rig = Rig(well(), max_concurrency=1)
    held = rig.pool.try_acquire()
    assert held is not None
    waiting = asyncio.create_task(rig.pool.acquire(deadline=1e9))
    await asyncio.sleep(0)
    rig.server.pages["/health"] = httpx.Response(503)
    await rig.prober.probe_all()
    with pytest.raises(NoCapacity, match="no usable replica"):
        await waiting


class Sleeper:
    """Stands in for `asyncio.sleep`: ends each pause when told to."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.asleep = asyncio.Event()
        self.wake = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.asleep.set()
        await self.wake.wait()
        self.wake.clear()

    async def round(self) -> None:
        self.asleep.clear()
        self.wake.set()
        await self.asleep.wait()


def loop_rig(pages: Mapping[str, httpx.Response | Exception | None]) -> tuple[Rig, Prober, Sleeper]:
    rig, sleeper = Rig(pages), Sleeper()
    client = httpx.AsyncClient(transport=httpx.MockTransport(rig.server))
    return rig, Prober(rig.pool, rng=random.Random(2), client=client, sleep=sleeper), sleeper


async def test_rounds_follow_one_another_with_jitter_until_closed():
    rig, prober, sleeper = loop_rig(well())
    prober.start()
    prober.start()
    await sleeper.asleep.wait()
    for _ in range(9):
        await sleeper.round()
    assert rig.server.asked.count("http://a:8000/health") == 10
    assert all(4.0 <= pause <= 6.0 for pause in sleeper.pauses)
    assert len(set(sleeper.pauses)) == 10
    await prober.aclose()
    await prober.aclose()
    assert len(asyncio.all_tasks()) == 1


async def test_closing_ends_a_probe_that_is_under_way():
    rig, prober, _ = loop_rig({"/health": None})
    prober.start()
    await rig.server.reached.wait()
    await prober.aclose()
    assert len(asyncio.all_tasks()) == 1


async def test_a_bug_in_one_round_does_not_end_all_probing(caplog):
    rig, prober, sleeper = loop_rig({"/health": RuntimeError("a bug")})
    prober.start()
    await sleeper.asleep.wait()
    assert "probing pool small failed" in caplog.text
    rig.server.pages.update(well())
    await sleeper.round()
    assert rig.health() is Health.UP
    await prober.aclose()


async def test_a_round_follows_a_reconfigured_pool():
    rig, prober, sleeper = loop_rig(well())
    prober.start()
    await sleeper.asleep.wait()
    rig.pool.reconfigure(rig.config, [(EchoBackend(name="b", model="m"), "http://b:8000/v1")])
    await sleeper.round()
    assert rig.server.asked[-2:] == ["http://b:8000/health", "http://b:8000/metrics"]
    await prober.aclose()


async def test_the_probers_own_client_goes_past_environment_proxies_and_is_closed(monkeypatch):
    """A probe must take the way that calls take; a real server on loopback sees it come and go."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    asked: list[bytes] = []
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readline():
            asked.append(head)
            while await reader.readline() not in (b"\r\n", b""):
                pass
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()
        gone.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        rig = Rig({}, urls=[f"http://127.0.0.1:{port}/v1"])
        prober = Prober(rig.pool, rng=random.Random(1))
        await prober.probe_all()
        assert rig.health() is Health.UP
        assert asked == [b"GET /health HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\n"]
        assert not gone.is_set()
        await prober.aclose()
        await gone.wait()
