"""Faults of the store and of shutting down: nobody is locked out, and no call is missing from the books."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from llmrouter.errors import StoreUnavailable
from llmrouter.gateway.listen import bind, server
from llmrouter.ledger.sqlite import SqliteLedger
from llmrouter.testing import Answer, FakeBackend, Hang, Held, HttpError, Signal, fold_chunks, parse_sse, usage
from tests.gateway.rig import Wire, one, two, until
from tests.support import Running, running


@contextlib.contextmanager
def unreachable(store: Path) -> Iterator[None]:
    """The database is gone and something else stands in its place."""
    files = [path for path in store.parent.iterdir() if path.name.startswith(store.name) and path.is_file()]
    away = store.parent / "away"
    away.mkdir()
    for path in files:
        path.rename(away / path.name)
    store.mkdir()
    yield
    store.rmdir()
    for path in files:
        (away / path.name).rename(path)


async def test_g102_a_store_that_is_down_is_a_503_and_never_a_401(tmp_path, caplog):
    async with FakeBackend() as engine, running(one(engine), tmp_path) as gateway:
        assert (await gateway.chat()).status_code == 200
        with unreachable(gateway.store):
            with pytest.raises(StoreUnavailable):
                await gateway.assembly.follow_store()
            refused = await gateway.chat()
            bad = await gateway.chat(headers={"authorization": "Bearer lr-0-nobody"})
            assert (await gateway.http.get("/v1/models")).status_code == 200
            assert (await gateway.http.get("/live")).status_code == 200
        assert (await gateway.chat()).status_code == 200
        entries = gateway.books()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
    assert refused.headers["x-should-retry"] == "true"
    assert bad.status_code == 401
    assert [entry.status for entry in entries] == [200, 200]
    assert len(engine.calls) == 2, "what could not be reserved was not called"
    assert "was refused before anything was called: the store" in caplog.text


async def test_g102_a_stream_that_cannot_be_booked_ends_in_an_error_instead_of_done(tmp_path):
    gate = Signal()
    async with (
        FakeBackend(Held(gate, Answer("one two"), after=2)) as engine,
        running(one(engine), tmp_path) as gateway,
        Wire(gateway) as client,
    ):
        await client.ask(stream=True)
        seen = await client.until(b"one")
        with unreachable(gateway.store):
            gate.set()
            seen += await client.until(b"0\r\n\r\n")
        assert (await gateway.chat()).status_code == 200
    assert b'"code":"store_unavailable"' in seen
    assert b"[DONE]" not in seen


async def test_g102_the_watch_of_the_store_survives_an_outage(tmp_path, caplog):
    async with FakeBackend() as engine, running(one(engine), tmp_path, background=True) as gateway:
        with unreachable(gateway.store):
            await until(lambda: "the store cannot be read" in caplog.text)
        revoked, _ = gateway.keys().create("default")
        async with asyncio.timeout(5):
            while (await gateway.chat(headers={"authorization": f"Bearer {revoked}"})).status_code != 200:
                await asyncio.sleep(0.02)
        gateway.keys().revoke(revoked)
        async with asyncio.timeout(5):
            while (await gateway.chat(headers={"authorization": f"Bearer {revoked}"})).status_code != 401:
                await asyncio.sleep(0.02)


async def test_g047_recording_an_entry_again_changes_nothing(tmp_path):
    async with (
        FakeBackend(HttpError(500)) as small,
        FakeBackend(Answer(usage=usage(1000, 500))) as large,
        running(two(small, large), tmp_path) as gateway,
    ):
        await gateway.chat()
        (entry,) = gateway.books()
        again = SqliteLedger(gateway.store)
        await asyncio.gather(*(again.record(entry) for _ in range(3)))
        await again.aclose()
        assert gateway.books() == [entry]
    assert len(entry.attempts) == 2
    assert entry.usage == entry.attempts[0].usage + entry.attempts[1].usage
    assert entry.cost_usd == entry.attempts[0].cost_usd + entry.attempts[1].cost_usd == Decimal("0.02")


@contextlib.asynccontextmanager
async def drained(gateway: Running, *, drain_s: float) -> AsyncIterator[None]:
    """Serve the same gateway on its port's neighbour, as a worker does, and shut that down as on SIGTERM."""
    listener = bind("127.0.0.1:0")
    served = server(gateway.gateway, drain_s=drain_s)
    serving = asyncio.create_task(served.serve(sockets=[listener]))
    own, gateway.root = gateway.root, f"http://127.0.0.1:{listener.getsockname()[1]}"
    await until(lambda: served.started)
    try:
        yield
    finally:
        gateway.gateway.draining = True
        served.should_exit = True
        await serving
        await gateway.gateway.idle(1.0)
        gateway.gateway.draining = False
        gateway.root = own


async def test_g105_a_shutdown_lets_streams_finish_takes_nothing_new_and_books_everything(tmp_path):
    gate = Signal()
    steps = [Held(gate, Answer("one two three"), after=2)] * 30
    async with FakeBackend(*[Answer()] * 20, *steps) as engine, running(one(engine), tmp_path) as gateway:
        for _ in range(20):
            assert (await gateway.chat()).status_code == 200
        async with contextlib.AsyncExitStack() as clients:
            streams = []
            async with drained(gateway, drain_s=5):
                streams = [await clients.enter_async_context(Wire(gateway)) for _ in steps]
                late = await clients.enter_async_context(Wire(gateway))
                for stream in streams:
                    await stream.ask(stream=True)
                await engine.until(lambda: engine.in_flight == 30)
                gateway.gateway.draining = True
                await late.ask()
                status, headers, body = await late.answer()
                assert (status, headers["retry-after"]) == (503, "1")
                assert b'"code":"draining"' in body
                assert (await gateway.http.get("/ready")).json() == {"status": "unavailable", "reason": "draining"}
                assert (await gateway.http.get("/live")).status_code == 200
                gate.set()
            for stream in streams:
                await stream.headers()
                whole = fold_chunks(parse_sse(await stream.body()))
                assert whole["choices"][0]["message"]["content"] == "one two three"
        entries = gateway.books(1000)
    assert len(entries) == len(engine.calls) == 50
    assert {(entry.status, entry.finish, entry.aborted) for entry in entries} == {(200, "stop", False)}


async def test_g105_what_does_not_finish_within_the_grace_time_is_told_and_booked(tmp_path):
    steps = (Hang(Answer("one two"), after=2), Hang(after="request"))
    async with FakeBackend(*steps) as engine, running(one(engine), tmp_path) as gateway:
        async with contextlib.AsyncExitStack() as clients:
            async with drained(gateway, drain_s=1):
                stream = await clients.enter_async_context(Wire(gateway))
                plain = await clients.enter_async_context(Wire(gateway))
                await stream.ask(stream=True)
                await stream.until(b"one")
                await plain.ask()
                await engine.call(2)
            assert b'"code":"draining"' in await stream.until(b"0\r\n\r\n")
            status, _, body = await plain.answer()
            assert (status, b'"code":"draining"' in body) == (503, True)
        for call in engine.calls:
            await call.disconnected.wait(1.0)
        entries = gateway.books()
    assert [(entry.status, entry.error_code, entry.aborted) for entry in entries] == [(503, "draining", False)] * 2
    assert sorted(entry.usage.output_tokens for entry in entries) == [0, 1]
