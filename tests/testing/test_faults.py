"""What the rig does when it is told to go wrong."""

import json

import httpx
import pytest

from llmrouter.testing import (
    Answer,
    BlackHole,
    BrokenJson,
    Bytes,
    ErrorInside,
    FakeBackend,
    Hang,
    HttpError,
    Huge,
    NotHttp,
    RawHttp,
    RawSse,
    Refuses,
    Reset,
    Slow,
    Truncate,
    Window,
    event,
    parse_sse,
)
from tests.testing.raw import RawClient, fetch


@pytest.mark.parametrize(
    ("form", "body"),
    [
        ("openai", {"error": {"message": "no", "type": "invalid_request_error", "param": "n", "code": None}}),
        ("vllm", {"error": {"message": "no", "type": "BadRequestError", "param": "n", "code": 400}}),
        ("vllm_flat", {"object": "error", "message": "no", "type": "BadRequestError", "param": "n", "code": 400}),
        ("llama_cpp", {"error": {"code": 400, "message": "no", "type": "invalid_request_error"}}),
        ("text", {"error": "no"}),
        ("detail", {"detail": "no"}),
    ],
)
async def test_error_bodies_in_the_forms_of_engines(form, body):
    async with FakeBackend(HttpError(400, "no", param="n", form=form)) as backend:
        status, _, raw = await fetch(backend)
    assert (status, json.loads(raw)) == (400, body)


@pytest.mark.parametrize("dialect", ["vllm", "llama_cpp", "openai"])
async def test_an_error_speaks_the_backends_dialect_by_default(dialect):
    async with FakeBackend(HttpError(503), HttpError(503, form=dialect), dialect=dialect) as backend:
        own, named = [(await fetch(backend))[2] for _ in range(2)]
    assert own == named


async def test_g072_g074_retry_hints_are_sent_as_written():
    hints = HttpError(429, retry_after_s=7, retry_after_ms=250, headers={"x-should-retry": "false"})
    async with FakeBackend(hints, HttpError(429, retry_after_s="Wed, 21 Oct 2026 07:28:00 GMT")) as backend:
        _, first, _ = await fetch(backend)
        _, second, _ = await fetch(backend)
    assert (first["retry-after"], first["retry-after-ms"], first["x-should-retry"]) == ("7", "250", "false")
    assert second["retry-after"] == "Wed, 21 Oct 2026 07:28:00 GMT"


@pytest.mark.parametrize("error", [{"message": "busy", "code": 503}, "busy"])
async def test_g008_an_error_inside_a_200(error):
    step = ErrorInside(error, Answer("a b"), after=1)
    async with FakeBackend(default=step) as backend:
        status, _, plain = await fetch(backend)
        _, _, raw = await fetch(backend, stream=True)
    assert (status, json.loads(plain)) == (200, {"error": error})
    role, failure, done = parse_sse(raw)
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert (failure, done) == ({"error": error}, "[DONE]")


@pytest.mark.parametrize("stream", [False, True])
async def test_faults_keep_the_pace_of_the_answer_they_spoil(stream):
    late = Slow(Answer("a b"), before_headers_s=0.01)
    async with FakeBackend(ErrorInside("x", late), BrokenJson(late), Slow(Reset(), before_headers_s=0.01)) as backend:
        for _ in range(2):
            await fetch(backend, stream=stream)
        async with RawClient(backend.port) as client:
            await client.send(stream=stream)
            with pytest.raises(ConnectionResetError):
                await client.rest()
        await backend.until(lambda: all(call.finished for call in backend.calls))
        assert all((call.finished_s or 0) - call.arrived_s >= 0.01 for call in backend.calls)


async def test_an_error_after_the_last_chunk_is_the_last_word():
    async with FakeBackend(RawSse((event({}),)), ErrorInside("x", RawSse((event({}),)), after=1)) as backend:
        _, _, whole = await fetch(backend, stream=True)
        _, _, spoilt = await fetch(backend, stream=True)
    assert spoilt == whole + b'data: {"error":"x"}\n\ndata: [DONE]\n\n'


async def test_an_error_event_may_be_named_and_may_be_the_last():
    async with FakeBackend(ErrorInside("x", after=0, event_line=True, done=False)) as backend:
        assert (await fetch(backend, stream=True))[2] == b'event: error\ndata: {"error":"x"}\n\n'


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reset_before_any_byte(stream):
    async with FakeBackend(Reset()) as backend, RawClient(backend.port) as client:
        await client.send(stream=stream)
        with pytest.raises(ConnectionResetError):
            await client.rest()
        call = backend.calls[0]
        await backend.until(lambda: call.finished)
    assert (call.bytes_sent, call.status, call.disconnected.is_set()) == (0, None, False)


@pytest.mark.parametrize("after", ["headers", 2])
async def test_g012_g013_a_reset_after_the_headers_or_some_chunks(after):
    async with FakeBackend(Reset(Answer("a b c"), after=after)) as backend, RawClient(backend.port) as client:
        await client.send(stream=True)
        with pytest.raises(ConnectionResetError):
            await client.rest()
        assert backend.calls[0].chunks_sent == (0 if after == "headers" else after)


@pytest.mark.parametrize("after", range(6))
async def test_g014_a_stream_truncated_at_each_chunk_boundary(after):
    whole = Answer("a b")
    async with FakeBackend(whole, Truncate(whole, after=after)) as backend, RawClient(backend.port) as client:
        _, _, complete = await fetch(backend, stream=True)
        await client.send(stream=True)
        await client.headers()
        rest = await client.rest()
    events = parse_sse(complete)
    assert rest.count(b"data: ") == after < len(events) + 1
    assert not rest.endswith(b"0\r\n\r\n")


async def test_a_plain_body_truncated_in_the_middle():
    answer = Bytes(b'{"choices": []}')
    async with FakeBackend(answer, Truncate(answer)) as backend, RawClient(backend.port) as client:
        _, _, whole = await fetch(backend)
        await client.send()
        _, headers = await client.headers()
        half = await client.rest()
    assert int(headers["content-length"]) == len(whole)
    assert half == whole[: len(whole) // 2]


async def test_a_point_that_the_answer_does_not_have_is_reported():
    async def call() -> None:
        async with FakeBackend(Reset(Answer("a"), after=9)) as backend, RawClient(backend.port) as client:
            await client.send()
            await client.rest()

    with pytest.raises(ExceptionGroup) as caught:
        await call()
    assert "no point after 9" in str(caught.value.exceptions[0])


@pytest.mark.parametrize("after", ["request", "headers", 1])
async def test_a_backend_that_hangs_notices_the_peer_leaving(after):
    async with FakeBackend(Hang(Answer("a"), after=after)) as backend:
        async with RawClient(backend.port) as client:
            await client.send(stream=True)
            call = await backend.call(1)
            await backend.until(lambda: call.chunks_sent == (after if after == 1 else 0))
        await call.disconnected.wait()
        await backend.until(lambda: backend.in_flight == 0)
    assert not call.finished


async def test_bytes_that_are_no_http():
    steps = (NotHttp(), RawHttp(b"HTTP/1.1 200 OK\r\ncontent-ty"))
    async with FakeBackend(*steps) as backend, httpx.AsyncClient(verify=False) as client:
        for _ in steps:
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post(f"{backend.url}/chat/completions", json={"m": 1})


async def test_raw_http_may_keep_the_connection_or_reset_it():
    interim = b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    async with FakeBackend(RawHttp(interim, then="keep"), Answer("b")) as backend:
        async with httpx.AsyncClient(verify=False) as client:
            answers = [await client.post(f"{backend.url}/chat/completions", json={"m": 1}) for _ in range(2)]
        assert answers[0].json() == {}
        assert backend.connections_made == 1
        backend.script(RawHttp(b"HTTP/1.1 ", then="reset"))
        async with RawClient(backend.port) as raw:
            await raw.send()
            with pytest.raises(ConnectionResetError):
                await raw.rest()


async def test_json_that_stops_in_the_middle():
    async with FakeBackend(default=BrokenJson()) as backend:
        _, headers, body = await fetch(backend)
        _, _, raw = await fetch(backend, stream=True)
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        json.loads(body)
    assert int(headers["content-length"]) == len(body)
    with pytest.raises(AssertionError, match="no JSON"):
        parse_sse(raw)


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_huge_body_is_valid_and_waits_for_a_slow_reader(framing):
    size = 16 * 2**20
    async with FakeBackend(Huge(size, framing)) as backend, RawClient(backend.port) as client:
        await client.send()
        call = await backend.call(1)
        await backend.until(lambda: call.bytes_sent > 0)
        assert call.bytes_sent < size
        _, _, body = await client.answer()
    assert len(body) >= size
    assert json.loads(body)["choices"][0]["message"]["content"].startswith("xxx")


async def test_g027_engines_that_refuse_one_name_of_the_cap():
    async with FakeBackend(default=Refuses("max_tokens", Answer("ok")), dialect="openai") as backend:
        refused, _, body = await fetch(backend, max_tokens=5)
        accepted, _, _ = await fetch(backend, max_completion_tokens=5)
    assert (refused, accepted) == (400, 200)
    assert json.loads(body)["error"]["param"] == "max_tokens"
    assert json.loads(body)["error"]["code"] == "unsupported_parameter"


async def test_g095_prompt_and_cap_together_must_fit_the_window():
    async with FakeBackend(default=Window(10)) as backend:
        fits, _, _ = await fetch(backend, max_tokens=7)
        status, _, body = await fetch(backend, max_tokens=8)
    assert (fits, status) == (200, 400)
    assert (
        "maximum context length is 10 tokens. However, you requested 11 tokens" in json.loads(body)["error"]["message"]
    )


async def test_invalid_utf8_is_sent_as_given():
    raw = b'data: {"a":"\xff"}\n\n'
    async with FakeBackend(RawSse((raw, event({})))) as backend:
        _, _, body = await fetch(backend, stream=True)
    assert body == raw + b"data: {}\n\n"
    with pytest.raises(AssertionError, match="UTF-8"):
        parse_sse(body)


async def test_nobody_answers_a_connect_to_a_black_hole():
    with BlackHole() as hole:
        async with httpx.AsyncClient(verify=False, timeout=httpx.Timeout(5, connect=0.02)) as client:
            with pytest.raises(httpx.ConnectTimeout):
                await client.get(hole.url)
