"""Faults of retries, cooldowns, slots and overload, through a whole gateway."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import time
from collections import Counter

import pytest
import uvloop

from llmrouter.backends.breaker import BreakerState
from llmrouter.protocols import Plan, PlanInput, Steps
from llmrouter.testing import (
    Answer,
    BrokenJson,
    FakeBackend,
    Hang,
    Held,
    HttpError,
    NotHttp,
    Reset,
    Signal,
    Slow,
    Step,
    Text,
    fold_chunks,
    parse_sse,
)
from llmrouter.types import Bound, BoundedCall, Decision, Target
from tests.gateway.rig import PATIENT, Wire, named, one, request, two, until
from tests.support import Running, running

TOUCHY = "breaker.failures = 1\nbreaker.open_s = 10\n"
"""A pool whose breaker opens with the first failure."""


def statuses(gateway: Running, pool: str = "s") -> list[tuple[BreakerState, int]]:
    return [(replica.breaker, replica.breaker_opens) for replica in gateway.assembly.pools[pool].status().replicas]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status", "seconds"),
    [
        (HttpError(429, retry_after_s=7), 429, 7.0),
        (HttpError(429, retry_after_s=7, retry_after_ms=2500), 429, 2.5),
        (HttpError(503, retry_after_s=7), 503, 7.0),
        (HttpError(429, retry_after_s="soon"), 429, 1.0),
        (HttpError(429), 429, 1.0),
    ],
    ids=["seconds", "milliseconds first", "overloaded", "rubbish", "none"],
)
async def test_g072_an_engines_retry_after_reaches_the_client_under_its_own_name(
    tmp_path, refusal, status, seconds, stream
):
    async with FakeBackend(refusal) as engine, running(one(engine), tmp_path) as gateway:
        answer = await gateway.chat(stream=stream)
    assert answer.status_code == status
    assert answer.headers["retry-after"] == str(-int(-seconds // 1))
    assert answer.headers["retry-after-ms"] == str(int(seconds * 1000))
    assert answer.headers["x-should-retry"] == "true"
    assert answer.json()["error"]["code"] == ("rate_limit_exceeded" if status == 429 else "no_capacity")


async def test_g072_a_retry_after_that_is_a_date_reaches_the_client_as_seconds(tmp_path):
    date = email.utils.formatdate(time.time() + 50, usegmt=True)
    async with FakeBackend(HttpError(429, retry_after_s=date)) as engine, running(one(engine), tmp_path) as gateway:
        answer = await gateway.chat()
    assert 45 <= int(answer.headers["retry-after"]) <= 50


async def test_g074_each_wait_is_what_the_newest_answer_asked_for(tmp_path):
    steps = (HttpError(429, retry_after_ms=20), HttpError(429, retry_after_ms=150), Answer("at last"))
    tier = "retries = 2\nmax_wait_s = 5\n"
    async with FakeBackend(*steps) as engine, running(one(engine, on=tier), tmp_path) as gateway:
        answer = await gateway.chat()
        (entry,) = gateway.books()
        first, second, third = (call.arrived_s for call in engine.calls)
    assert answer.json()["choices"][0]["message"]["content"] == "at last"
    assert second - first >= 0.02
    assert third - second >= 0.15
    assert [attempt.reason for attempt in entry.attempts] == [
        "default:small",
        "wait:rate_limited",
        "wait:rate_limited",
    ]


def test_g074_a_wait_never_ends_before_the_replica_may_be_called(tmp_path):
    """Timers of the served event loop may fire a little early; the one call after a wait must not be lost to that."""

    async def waits() -> Counter[int]:
        steps = [step for _ in range(40) for step in (HttpError(429, retry_after_ms=3.4), Answer("ok"))]
        tier = "retries = 1\nmax_wait_s = 5\n"
        async with FakeBackend(*steps) as engine, running(one(engine, on=tier), tmp_path) as gateway:
            return Counter([(await gateway.chat()).status_code for _ in range(40)])

    assert uvloop.run(waits()) == {200: 40}


@pytest.mark.parametrize(
    "fault",
    [HttpError(401), HttpError(403), HttpError(404), HttpError(500), HttpError(429), Reset(), NotHttp(), BrokenJson()],
    ids=named,
)
async def test_g076_statuses_and_broken_connections_fall_back_alike(tmp_path, fault):
    async with (
        FakeBackend(fault) as small,
        FakeBackend(Answer("from large")) as large,
        running(two(small, large), tmp_path) as gateway,
    ):
        answer = await gateway.chat()
        (entry,) = gateway.books()
    assert answer.json()["choices"][0]["message"]["content"] == "from large"
    assert entry.reason == f"fallback:{entry.attempts[0].outcome}"
    assert [attempt.committed for attempt in entry.attempts] == [False, True]


async def test_g076_a_key_that_the_pool_refuses_is_never_the_clients_401(tmp_path):
    async with FakeBackend(default=HttpError(401)) as engine, running(one(engine), tmp_path) as gateway:
        answer = await gateway.chat()
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_error")


async def test_g078_a_429_without_a_time_never_shortens_a_cooldown(tmp_path):
    first, second = Signal(), Signal()
    steps = (Held(first, HttpError(429, retry_after_s=60)), Held(second, HttpError(429)))
    async with FakeBackend(*steps) as engine, running(one(engine), tmp_path) as gateway:
        calls = [asyncio.create_task(gateway.chat()) for _ in steps]
        await engine.call(2)
        first.set()
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        second.set()
        await asyncio.wait(calls)
        third = await gateway.chat()
        assert len(engine.calls) == 2
    assert third.status_code == 503
    assert 55 < int(third.headers["retry-after"]) <= 60


async def test_g080_no_capacity_is_a_503_with_the_soonest_time_and_counts_as_nobodys_failure(tmp_path):
    async with (
        FakeBackend(default=HttpError(429, retry_after_s=30)) as later,
        FakeBackend(default=HttpError(500)) as sooner,
        running(one(later, sooner, on="retries = 1\nmax_wait_s = 0\n", pools=TOUCHY), tmp_path) as gateway,
    ):
        while not all(state is BreakerState.OPEN for state, _ in statuses(gateway)):
            assert (await gateway.chat()).status_code in (429, 502)
        before, called = statuses(gateway), len(later.calls) + len(sooner.calls)
        refused = [await gateway.chat(stream=stream) for stream in (False, True) * 3]
        assert statuses(gateway) == before
        assert len(later.calls) + len(sooner.calls) == called
        entry = gateway.books()[0]
    for answer in refused:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_capacity")
        assert 8 <= int(answer.headers["retry-after"]) <= 10
        assert answer.headers["x-should-retry"] == "true"
    assert [attempt.outcome for attempt in entry.attempts] == ["no_capacity"]
    assert entry.cost_usd == 0


async def test_g089_an_open_breaker_ends_by_time_alone(tmp_path):
    pools = "breaker.failures = 1\nbreaker.open_s = 0.05\n"
    async with FakeBackend(HttpError(500)) as engine, running(one(engine, pools=pools), tmp_path) as gateway:
        assert (await gateway.chat()).status_code == 502
        async with asyncio.timeout(5):
            while (answer := await gateway.chat()).status_code == 503:
                await asyncio.sleep(0.01)
        assert answer.status_code == 200
        assert statuses(gateway) == [(BreakerState.CLOSED, 1)]


async def test_g089_overload_in_an_engines_metrics_shuts_nobody_out(tmp_path):
    """Nor does a page that disappears after it said so."""
    overload = Text('vllm:num_requests_waiting{engine="0"} 100000\nvllm:num_requests_running{engine="0"} 500\n')
    async with FakeBackend() as engine:
        engine.routes["/metrics"] = overload
        async with running(one(engine), tmp_path, background=True) as gateway:
            await until(lambda: gateway.assembly.pools["s"].status().replicas[0].engine is not None)
            assert (await gateway.chat()).status_code == 200
            engine.routes["/metrics"] = HttpError(404)
            assert (await gateway.chat()).status_code == 200


async def test_g084_connections_that_engines_close_while_idle_cost_no_request(tmp_path):
    """One engine closes without a word, the other resets when it is called again."""
    async with (
        FakeBackend() as closing,
        FakeBackend(stale_after=1) as resetting,
        running(two(closing, resetting), tmp_path) as gateway,
    ):
        for number in range(1, 11):
            answer = await gateway.chat(stream=number % 2 == 0)
            assert (answer.status_code, answer.headers["x-llmrouter-attempts"]) == (200, "1")
            assert await closing.close_idle() == 1
        closing.default = HttpError(500)
        for number in range(1, 11):
            answer = await gateway.chat(stream=number % 2 == 0)
            assert (answer.status_code, answer.headers["x-llmrouter-attempts"]) == (200, "2")
        assert resetting.stale_drops == 9
        assert len(resetting.calls) == 10
        assert {entry.status for entry in gateway.books()} == {200}


async def test_g085_load_past_the_limit_is_shed_and_live_answers_all_the_while(tmp_path):
    gate = Signal()
    server = "[server]\nmax_concurrent_requests = 200\n"
    async with (
        FakeBackend(default=Held(gate, Answer("one two"), after=2)) as engine,
        running(server + one(engine), tmp_path) as gateway,
        contextlib.AsyncExitStack() as stack,
    ):
        crowd = [await stack.enter_async_context(Wire(gateway)) for _ in range(300)]
        for client in crowd:
            await client.ask(stream=True)
        heads = await asyncio.gather(*(client.headers() for client in crowd))
        assert Counter(status for status, _ in heads) == {200: 200, 503: 100}
        assert engine.in_flight == 200
        took = []
        for _ in range(20):
            began = time.perf_counter()
            assert (await gateway.http.get("/live")).status_code == 200
            took.append(time.perf_counter() - began)
        assert sorted(took)[10] < 0.2
        gate.set()
        for client, (status, headers) in zip(crowd, heads, strict=True):
            if status == 503:
                assert (headers["retry-after"], headers["x-should-retry"]) == ("1", "true")
            else:
                whole = fold_chunks(parse_sse(await client.body()))
                assert whole["choices"][0]["message"]["content"] == "one two"
        assert (await gateway.chat(stream=True)).status_code == 200
        assert len(gateway.books(1000)) == 201


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", ["request", "headers"])
async def test_g050_calls_that_time_out_give_their_slots_back(tmp_path, after, stream):
    pools = PATIENT + "max_concurrency = 10\nmax_queue = 0\n"
    steps = [Hang(after=after)] * 10
    short = {"x-stainless-read-timeout": "0.2"}
    async with FakeBackend(*steps) as engine, running(one(engine, pools=pools), tmp_path) as gateway:
        answers = await asyncio.gather(*(gateway.chat(stream=stream, headers=short) for _ in steps))
        assert [answer.status_code for answer in answers] == [504] * 10
        assert gateway.assembly.pools["s"].status().in_flight == 0
        again = await asyncio.gather(*(gateway.chat(stream=stream) for _ in steps))
        assert [answer.status_code for answer in again] == [200] * 10


@pytest.mark.parametrize("stream", [False, True])
async def test_g028_clients_with_short_time_outs_open_no_breaker(tmp_path, stream):
    """They would take the replica away from everybody else."""
    hasty = {"x-stainless-read-timeout": "0.05"}
    async with (
        FakeBackend(*[Hang()] * 6) as engine,
        running(one(engine, pools=TOUCHY), tmp_path) as gateway,
    ):
        answers = [await gateway.chat(stream=stream, headers=hasty) for _ in range(6)]
        assert [answer.status_code for answer in answers] == [504] * 6
        assert statuses(gateway) == [(BreakerState.CLOSED, 0)]
        engine.forget()
        assert (await gateway.chat(stream=stream)).status_code == 200


async def test_a_clients_patience_bounds_the_wait_for_a_stream_and_not_its_length(tmp_path):
    """The SDK's read time-out counts from byte to byte; a long answer that flows is no time-out."""
    slow = Slow(Answer("one two three four"), between_chunks_s=0.15)
    async with FakeBackend(slow) as engine, running(one(engine), tmp_path) as gateway:
        answer = await gateway.chat(stream=True, headers={"x-stainless-read-timeout": "0.5"})
        (entry,) = gateway.books()
    assert fold_chunks(parse_sse(answer.content))["choices"][0]["message"]["content"] == "one two three four"
    assert entry.total_s > 0.5


async def test_a_stream_ends_with_the_longest_time_a_request_may_take(tmp_path):
    server = "[server]\nrequest_timeout_s = 0.4\n"
    pools = PATIENT + "timeouts.connect_s = 0.4\n"
    slow = Slow(Answer("one two three four"), between_chunks_s=0.15)
    async with FakeBackend(slow) as engine, running(server + one(engine, pools=pools), tmp_path) as gateway:
        answer = await gateway.chat(stream=True)
        (entry,) = gateway.books()
    *_, told = parse_sse(answer.content)
    assert told["error"]["code"] == entry.error_code == "upstream_timeout"


async def test_g050_a_stream_that_goes_silent_gives_its_slot_back(tmp_path):
    pools = PATIENT + "max_concurrency = 1\nmax_queue = 0\ntimeouts.between_chunks_s = 0.3\n"
    step: Step = Hang(Answer("one two"), after=2)
    async with FakeBackend(step) as engine, running(one(engine, pools=pools), tmp_path) as gateway:
        *_, told = parse_sse((await gateway.chat(stream=True)).content)
        assert told["error"]["code"] == "upstream_timeout"
        assert (await gateway.chat()).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_g050_a_strategy_that_breaks_loses_no_slot(tmp_path, stream):
    pools = PATIENT + "max_concurrency = 1\nmax_queue = 0\n"
    async with FakeBackend() as engine, running(one(engine, pools=pools), tmp_path) as gateway:
        served = gateway.assembly.state.tiers["auto"]
        good, served.strategy = served.strategy, Breaks()
        answer = await gateway.chat(stream=stream)
        served.strategy = good
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert "no luck" not in answer.text
        assert (await gateway.chat(stream=stream)).status_code == 200
        assert [entry.error_code for entry in gateway.books()] == [None, "internal_error"]


class Breaks:
    """A strategy, and its plan, that breaks its word when it has been answered."""

    decision = Decision("breaks", "")

    def plan(self, given: PlanInput) -> Plan:
        return self

    def bound(self) -> Bound:
        return Bound((BoundedCall("s", 1, 1, 1),))

    def steps(self) -> Steps:
        yield Target("s", "small", "")
        raise RuntimeError("no luck")


async def test_g050_a_client_that_stops_reading_holds_its_slot_no_longer_than_a_request_may_take(tmp_path):
    server = "[server]\nrequest_timeout_s = 0.5\n"
    pools = PATIENT + "max_concurrency = 1\nmax_queue = 0\ntimeouts.connect_s = 0.5\n"
    flood = Answer(pieces=("x" * 65536,) * 400)
    async with FakeBackend(flood) as engine, running(server + one(engine, pools=pools), tmp_path) as gateway:
        async with Wire(gateway) as client:
            await client.ask(stream=True)
            (entry,) = await gateway.settled(1)
            await engine.calls[0].disconnected.wait(1.0)
            assert (entry.status, entry.error_code, entry.aborted) == (504, "upstream_timeout", False)
            assert statuses(gateway) == [(BreakerState.CLOSED, 0)]
            assert (await gateway.chat()).status_code == 200
        await until(lambda: gateway.gateway.active == 0)


async def test_g051_requests_that_are_refused_hold_no_slot(tmp_path):
    pools = "max_concurrency = 1\nmax_queue = 0\n"
    server = "[server]\nmax_concurrent_requests = 1\n"
    async with FakeBackend() as engine, running(server + one(engine, pools=pools), tmp_path) as gateway:
        post = gateway.http.post
        turn = [{"role": "user2", "content": "Hi"}]
        for _ in range(3):
            assert (await gateway.chat(messages=turn)).status_code == 400
            assert (await gateway.chat(tier="nobody")).status_code == 404
            assert (await gateway.chat(tools=[{}])).status_code == 400
            assert (await post("/v1/chat/completions", content=b"{")).status_code == 400
            assert (await post("/v1/chat/completions", headers={"authorization": "Bearer x"})).status_code == 401
        assert (await gateway.chat()).status_code == 200
        assert len(engine.calls) == len(gateway.books()) == 1


async def test_g050_a_full_queue_sheds_with_a_time_and_a_waiting_request_gets_its_turn(tmp_path):
    gate = Signal()
    pools = PATIENT + "max_concurrency = 1\nmax_queue = 1\nqueue_timeout_s = 5\n"
    async with (
        FakeBackend(Held(gate, Answer("first"), after=2)) as engine,
        running(one(engine, pools=pools), tmp_path) as gateway,
        Wire(gateway) as holder,
    ):
        await holder.ask(stream=True)
        await holder.until(b"first")
        waiting = asyncio.create_task(gateway.chat("second"))
        await until(lambda: gateway.assembly.pools["s"].status().queued == 1)
        shed = await gateway.chat("third")
        gate.set()
        assert (await waiting).json()["choices"][0]["message"]["content"] == "second"
        entries = gateway.books()
    assert (shed.status_code, shed.headers["retry-after"]) == (503, "5")
    assert sorted((entry.status, entry.queue_s > 0) for entry in entries) == [(200, False), (200, True), (503, False)]


async def test_g043_a_refusal_names_the_limit_that_was_met(tmp_path):
    gate = Signal()
    server = "[server]\nmax_concurrent_requests = 2\n"
    pools = PATIENT + "max_concurrency = 1\nmax_queue = 0\n"
    async with (
        FakeBackend(Held(gate, Answer("one two"), after=2)) as engine,
        running(server + one(engine, pools=pools), tmp_path) as gateway,
        Wire(gateway) as first,
        Wire(gateway) as uploading,
    ):
        await first.ask(stream=True)
        await first.until(b"one")
        queue = await gateway.chat()
        uploading.writer.write(request(gateway)[:-5])
        await until(lambda: gateway.gateway.active == 2)
        process = await gateway.chat()
        gate.set()
        await first.until(b"[DONE]")
    messages = [answer.json()["error"]["message"] for answer in (queue, process)]
    assert "pool 's' is busy: its queue is full" in messages[0]
    assert "takes 2 requests at once" in messages[1]
    assert [answer.headers["retry-after"] for answer in (queue, process)] == ["10", "1"]


async def test_g090_no_replica_of_five_starves(tmp_path):
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(FakeBackend()) for _ in range(5)]
        gateway = await stack.enter_async_context(running(one(*engines), tmp_path))

        async def ask(number: int) -> None:
            async with Wire(gateway) as client:
                for turn in range(16):
                    await client.ask(messages=[{"role": "user", "content": f"prompt {number} {turn}"}])
                    assert (await client.answer())[0] == 200

        await asyncio.gather(*(ask(number) for number in range(25)))
        served = sorted(len(engine.calls) for engine in engines)
    assert sum(served) == 400
    assert served[-1] < 2 * served[0]


async def test_g086_a_reload_refuses_settings_that_contradict_each_other(tmp_path):
    async with FakeBackend() as engine, running(one(engine, on=""), tmp_path, with_admin=True) as gateway:
        (tmp_path / "llmrouter.toml").write_text(one(engine, on="retries = 0\nmax_wait_s = 5\n"))
        headers = {"authorization": f"Bearer {gateway.admin_key}"}
        told = await gateway.http.post("/v1/admin/reload", headers=headers)
        assert told.status_code == 400
        assert "tiers.auto.max_wait_s: retries = 0 allows no call after a wait" in told.json()["error"]["message"]
        assert (await gateway.chat()).headers["x-llmrouter-config-version"] == "1"
