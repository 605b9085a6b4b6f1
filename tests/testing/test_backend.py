"""The server around the script: records, counters, disconnects, slots, connections, endpoints."""

import asyncio
import json
import time

import httpx
import pytest

from llmrouter.testing import Answer, FakeBackend, Hang, Held, HttpError, Json, Signal, Slow, Takes, Text
from tests.testing.raw import RawClient, fetch, request_bytes


async def test_the_script_is_played_in_order_and_then_the_default_answers():
    async with FakeBackend(HttpError(500), default=Json({"d": 1})) as backend:
        backend.script(HttpError(502))
        assert len(backend.unplayed) == 2
        assert [(await fetch(backend))[0] for _ in range(4)] == [500, 502, 200, 200]
        assert not backend.unplayed


async def test_a_call_is_recorded_as_it_came():
    async with FakeBackend() as backend:
        await fetch(backend, temperature=0.5, stream=True)
        call = backend.calls[0]
    assert (call.method, call.path, call.status, call.finished) == ("POST", "/v1/chat/completions", 200, True)
    assert call.headers == (
        ("Host", "fake"),
        ("X-Odd", "Spelling"),
        ("Content-Length", str(len(call.request.raw_body))),
    )
    assert call.header("x-odd") == "Spelling"
    assert call.body["temperature"] == 0.5
    assert call.chunks_sent == 6
    assert call.bytes_sent > 600
    assert abs(call.arrived_s - time.monotonic()) < 5
    assert call.disconnected_after_s is None


async def test_a_body_that_is_no_object_gets_400_and_takes_no_step():
    async with FakeBackend(HttpError(418)) as backend, RawClient(backend.port) as client:
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 3\r\n\r\n{{{")
        status, _, _ = await client.answer()
        assert (status, backend.calls[0].body, backend.calls[0].request.raw_body) == (400, None, b"{{{")
        assert len(backend.unplayed) == 1


async def test_what_is_no_http_request_is_counted_and_answered_with_400():
    async with FakeBackend() as backend, RawClient(backend.port) as client:
        client.writer.write(b"\x16\x03\x01 hello\r\n\r\n")
        assert (await client.rest()).startswith(b"HTTP/1.1 400 ")
        assert (backend.malformed_requests, backend.calls) == (1, [])


async def test_g119_only_probes_are_kept_apart_from_calls():
    async with FakeBackend() as backend:
        for path in ("/health", "/metrics", "/v1/models", "/invocations", "/tokenize"):
            await fetch(backend, path=path, method="GET")
        assert [probe.path for probe in backend.probes] == ["/health", "/metrics", "/v1/models"]
        assert [(call.path, call.status) for call in backend.calls] == [("/invocations", 404), ("/tokenize", 200)]


@pytest.mark.parametrize("phase", ["before the headers", "before the first chunk", "between chunks"])
async def test_g035_g037_a_disconnect_is_noticed_within_milliseconds_in_every_phase(phase):
    slow = {
        "before the headers": Slow(before_headers_s=60),
        "before the first chunk": Slow(before_first_chunk_s=60),
        "between chunks": Slow(between_chunks_s=60),
    }[phase]
    async with FakeBackend(slow) as backend:
        async with RawClient(backend.port) as client:
            await client.send(stream=True)
            call = await backend.call(1)
            await backend.until(lambda: call.status is not None or phase == "before the headers")
            left_s = time.monotonic()
        await call.disconnected.wait()
        assert call.disconnected.at_s is not None
        assert call.disconnected_after_s is not None
        assert call.disconnected.at_s - left_s < 0.25
        assert 0 <= call.disconnected_after_s < 5
        await backend.until(lambda: backend.in_flight == 0)


async def test_a_peer_that_resets_is_noticed_too():
    async with FakeBackend(Hang()) as backend, RawClient(backend.port) as client:
        await client.send()
        call = await backend.call(1)
        client.writer.transport.abort()
        await call.disconnected.wait()


async def test_a_peer_that_leaves_at_once_after_its_request_is_recorded_as_gone():
    async with FakeBackend(Hang()) as backend:
        async with RawClient(backend.port) as client:
            await client.send()
        call = await backend.call(1)
        await call.disconnected.wait()
        await backend.until(lambda: backend.in_flight == 0)


async def test_g037_slots_hold_calls_back_in_order_and_a_leaving_peer_frees_its_place():
    gates = [Signal() for _ in range(3)]
    async with FakeBackend(*(Held(gate, Answer(str(number))) for number, gate in enumerate(gates)), slots=1) as backend:
        async with RawClient(backend.port) as first, RawClient(backend.port) as third:
            await first.send()
            await backend.call(1)
            async with RawClient(backend.port) as second:
                await second.send()
                await backend.call(2)
                await third.send()
                await backend.call(3)
                assert (backend.in_flight, backend.running, backend.waiting) == (3, 1, 2)
            await backend.calls[1].disconnected.wait()
            gates[2].set()
            gates[0].set()
            assert b'"0"' in (await first.answer())[2]
            assert b'"2"' in (await third.answer())[2]
        assert (backend.max_in_flight, backend.max_running, backend.running) == (3, 1, 0)


async def test_a_held_answer_waits_for_its_gate():
    gate = Signal()
    async with FakeBackend(Held(gate, Answer("a b"), after=2)) as backend, RawClient(backend.port) as client:
        await client.send(stream=True)
        await client.headers()
        chunks = client.chunks()
        assert [b'"role"' in await anext(chunks), b'"a"' in await anext(chunks)] == [True, True]
        pending = asyncio.ensure_future(anext(chunks))
        await backend.until(lambda: backend.calls[0].chunks_sent == 2)
        assert not pending.done()
        gate.set()
        assert b'" b"' in await pending
        assert [chunk async for chunk in chunks][-1] == b"data: [DONE]\n\n"


async def test_delays_last_as_long_as_they_say():
    paced = Slow(Answer("a b"), before_headers_s=0.01, before_first_chunk_s=0.02, between_chunks_s=0.005)
    async with FakeBackend(paced, Takes(0.02), Takes(0.02, Answer("a b"))) as backend:
        await fetch(backend, stream=True)
        await fetch(backend)
        await fetch(backend, stream=True)
        took = [(call.finished_s or 0) - call.arrived_s for call in backend.calls]
    assert took[0] >= 0.01 + 0.02 + 4 * 0.005
    assert took[1] >= 0.02
    assert took[2] >= 0.02
    assert max(took) < 5


async def test_connections_are_kept_and_counted():
    async with FakeBackend() as backend:
        async with RawClient(backend.port) as one, RawClient(backend.port) as two:
            for client in (one, one, two):
                await client.send()
                await client.answer()
            assert (backend.connections, backend.connections_made) == (2, 2)
            assert [call.connection for call in backend.calls] == [1, 1, 2]
        await backend.until(lambda: backend.connections == 0)


async def test_a_client_that_asks_for_it_gets_its_connection_closed():
    async with FakeBackend() as backend, RawClient(backend.port) as client:
        client.writer.write(request_bytes().replace(b"Host: fake", b"Connection: close"))
        await client.answer()
        assert await client.rest() == b""


async def test_g084_idle_connections_close_silently():
    async with (
        FakeBackend(Answer("a"), Hang()) as backend,
        RawClient(backend.port) as idle,
        RawClient(backend.port) as busy,
    ):
        await idle.send()
        _, headers, _ = await idle.answer()
        await busy.send()
        await backend.call(2)
        assert await backend.close_idle() == 1
        assert await idle.rest() == b""
        assert backend.connections == 1
    assert "connection" not in headers


async def test_g084_a_stale_connection_is_reset_by_its_next_request():
    async with FakeBackend(Answer("a"), Answer("b"), stale_after=1) as backend, RawClient(backend.port) as client:
        await client.send()
        await client.answer()
        await client.send()
        with pytest.raises(ConnectionResetError):
            await client.rest()
        assert (backend.stale_drops, len(backend.calls), len(backend.unplayed)) == (1, 1, 1)
        assert (await fetch(backend))[0] == 200


async def test_an_engine_that_is_down_and_comes_back_on_its_port():
    async with FakeBackend() as backend:
        port = backend.port
        await fetch(backend)
        await backend.stop()
        with pytest.raises(ConnectionRefusedError):
            await fetch(backend)
        await backend.start()
        assert backend.port == port
        assert (await fetch(backend))[0] == 200


async def test_stopping_does_not_count_as_the_peer_leaving():
    async with FakeBackend(Hang()) as backend, RawClient(backend.port) as client:
        await client.send()
        call = await backend.call(1)
        await backend.stop()
        await backend.start()
    assert (call.disconnected.is_set(), call.finished, backend.in_flight) == (False, False, 0)


async def test_g088_g089_health_metrics_and_models_say_what_the_test_sets():
    async with (
        FakeBackend(models=("a", "b")) as backend,
        httpx.AsyncClient(base_url=backend.root_url, verify=False) as client,
    ):
        assert [(model["id"], model["owned_by"]) for model in (await client.get("/v1/models")).json()["data"]] == [
            ("a", "vllm"),
            ("b", "vllm"),
        ]
        assert (await client.get("/health")).status_code == 200
        backend.routes["/health"] = HttpError(503)
        backend.routes["/metrics"] = Text("vllm:num_requests_running 7\n")
        backend.routes["/v1/models"] = Json({"data": []})
        assert (await client.get("/health")).status_code == 503
        assert (await client.get("/metrics")).text == "vllm:num_requests_running 7\n"
        assert (await client.get("/v1/models")).json() == {"data": []}
        backend.routes["/metrics"] = HttpError(404)
        assert (await client.get("/metrics")).status_code == 404


@pytest.mark.parametrize(
    ("dialect", "running", "waiting"),
    [
        (
            "vllm",
            'vllm:num_requests_running{engine="0",model_name="fake-model"} 1.0',
            'vllm:num_requests_waiting{engine="0",model_name="fake-model"} 1.0',
        ),
        ("llama_cpp", "llamacpp:requests_processing 1.0", "llamacpp:requests_deferred 1.0"),
    ],
)
async def test_metrics_tell_the_load_by_default(dialect, running, waiting):
    async with (
        FakeBackend(Hang(), Hang(), dialect=dialect, slots=1) as backend,
        RawClient(backend.port) as one,
        RawClient(backend.port) as two,
    ):
        await one.send()
        await two.send()
        await backend.until(lambda: backend.running == 1 and backend.waiting == 1)
        lines = (await fetch(backend, path="/metrics", method="GET"))[2].decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [running, waiting]


async def test_tokenize_answers_in_the_engines_form():
    async with FakeBackend() as vllm, FakeBackend(dialect="llama_cpp") as llama_cpp:
        counted = json.loads((await fetch(vllm, path="/tokenize"))[2])
        listed = json.loads((await fetch(llama_cpp, path="/tokenize"))[2])
    assert counted == {"count": 3, "max_model_len": 8192, "tokens": [1, 2, 3], "token_strs": None}
    assert listed == {"tokens": [1, 2, 3]}


async def test_g108_records_can_be_bounded():
    async with FakeBackend(keep_calls=2) as backend:
        for _ in range(3):
            await fetch(backend)
        assert [call.request.seq for call in backend.calls] == [2, 3]
        backend.forget()
        assert backend.calls == []


async def test_waiting_in_vain_says_so():
    async with FakeBackend() as backend:
        with pytest.raises(TimeoutError, match=r"not within 0\.01 s"):
            await backend.call(1, timeout_s=0.01)


async def test_a_large_upload_may_ask_to_continue_first():
    async with FakeBackend() as backend, RawClient(backend.port) as client:
        head, _, body = request_bytes().partition(b"\r\n\r\n")
        client.writer.write(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(body)
        assert (await client.answer())[0] == 200
