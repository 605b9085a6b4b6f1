"""The rig in a thread and in a process, for tests that have no event loop of their own."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvloop

from llmrouter.testing import (
    Answer,
    BrokenJson,
    FakeBackend,
    Hang,
    Held,
    HttpError,
    RawSse,
    Reset,
    Signal,
    Slow,
    ToolCall,
)
from llmrouter.testing.control import decode_step
from tests.testing.raw import MESSAGES, RawClient

CHAT = {"model": "m", "messages": MESSAGES}


def test_in_a_thread_beside_synchronous_code():
    gate = Signal()
    with (
        FakeBackend.in_thread(Answer("hi"), Held(gate), Hang()) as backend,
        httpx.Client(base_url=backend.url, verify=False) as client,
    ):
        assert client.post("/chat/completions", json=CHAT).json()["choices"][0]["message"]["content"] == "hi"
        gate.set()
        assert client.post("/chat/completions", json=CHAT).status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            client.post("/chat/completions", json=CHAT, timeout=0.02)
        backend.calls[2].disconnected.wait_blocking()
        backend.until_blocking(lambda: backend.in_flight == 0)
        assert backend.run(backend.close_idle()) == 0
        backend.run(backend.stop())
        with pytest.raises(httpx.ConnectError):
            client.get("/models")
        backend.run(backend.start())
        assert client.get("/models").status_code == 200


def call_a_backend_that_cannot_play(error: Exception | None) -> None:
    with FakeBackend.in_thread(Reset(Answer(), after=99)) as backend:
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(f"{backend.url}/chat/completions", json=CHAT, verify=False)
        if error:
            raise error


def test_a_thread_reports_a_step_that_could_not_be_played():
    with pytest.raises(ExceptionGroup) as caught:
        call_a_backend_that_cannot_play(None)
    assert "no point after 99" in str(caught.value.exceptions[0])


def test_a_failing_test_keeps_its_own_error_and_learns_of_the_script():
    with pytest.raises(ZeroDivisionError) as caught:
        call_a_backend_that_cannot_play(ZeroDivisionError())
    assert "no point after 99" in caught.value.__notes__[0]


async def reset_after_two_chunks() -> list[bytes]:
    gate = Signal()
    step = Held(gate, Reset(Answer("a b c"), after=2), after=2)
    async with FakeBackend(step) as backend, RawClient(backend.port) as client:
        await client.send(stream=True)
        await client.headers()
        chunks = client.chunks()
        read = [await anext(chunks), await anext(chunks)]
        gate.set()
        with pytest.raises(ConnectionResetError):
            await anext(chunks)
        return read


def test_a_reset_is_a_reset_under_uvloop_too():
    assert len(uvloop.run(reset_after_two_chunks())) == 2


@contextmanager
def process(*options: str) -> Iterator[str]:
    command = [sys.executable, "-m", "llmrouter.testing", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield json.loads(child.stdout.readline())["url"].removesuffix("/v1")
        finally:
            child.terminate()
    assert child.returncode == 0


@pytest.mark.process
def test_as_a_process_it_is_scripted_and_read_over_http():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with process("--port", str(port), "--dialect", "llama_cpp", "--model", "tiny") as url:
        assert url == f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, verify=False) as client:
            script = {
                "steps": [{"do": "Slow", "before_headers_s": 0.001, "step": {"do": "Answer", "text": "hi"}}],
                "default": {"do": "HttpError", "status": 503, "retry_after_s": 1},
                "routes": {"/health": {"do": "HttpError", "status": 500}},
            }
            assert client.post("/_fake/script", json=script).json()["unplayed"] == 1
            answers = [client.post("/v1/chat/completions", json=CHAT) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [200, 503]
            assert answers[0].content.startswith(b'{"choices":[{"finish_reason":"stop"')
            assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
            assert client.get("/health").status_code == 500
            assert client.post("/_fake/script", json={"routes": {"/health": None}}).status_code == 200
            assert client.get("/health").status_code == 200
            seen = client.get("/_fake/calls").json()
            assert [call["status"] for call in seen["calls"]] == [200, 503]
            assert [probe["path"] for probe in seen["probes"]] == ["/v1/models", "/health", "/health"]
            assert seen["calls"][0]["body"] == CHAT
            assert ["content-type", "application/json"] in [[k.lower(), v] for k, v in seen["calls"][0]["headers"]]
            assert (seen["in_flight"], seen["max_in_flight"], seen["connections"]) == (0, 1, 1)
            assert client.request("DELETE", "/_fake/calls").json()["calls"] == []
            assert client.get("/_fake/nothing").status_code == 404


def test_steps_from_json_are_the_steps_from_python():
    assert decode_step({"do": "Reset", "after": 2, "step": {"do": "Slow", "between_chunks_s": 1}}) == Reset(
        Slow(between_chunks_s=1), after=2
    )
    assert decode_step(
        {"do": "Answer", "tool_calls": [{"name": "f", "arguments": "{}"}], "text": ["a", "b"]}
    ) == Answer(("a", "b"), tool_calls=(ToolCall("f", "{}"),))
    assert decode_step({"do": "RawSse", "pieces": ["data: é\n\n"]}) == RawSse(("data: é\n\n".encode(),))
    assert decode_step({"do": "BrokenJson"}) == BrokenJson()
    assert decode_step({"do": "HttpError", "headers": {"a": "b"}}) == HttpError(headers={"a": "b"})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"do": "Decide"}, "one of Answer, BrokenJson"),
        ({"do": "Held"}, "one of Answer, BrokenJson"),
        ({"text": "x"}, "whose `do`"),
        ([], "whose `do`"),
        ({"do": "Answer", "txet": "x"}, "Answer has no txet; it has text"),
        ({"do": "Refuses"}, "Refuses: .*param"),
    ],
)
def test_a_step_that_does_not_exist_is_refused_with_what_does(value, words):
    with pytest.raises(ValueError, match=words):
        decode_step(value)


async def test_a_bad_script_is_a_400_and_changes_nothing():
    async with FakeBackend() as backend, httpx.AsyncClient(base_url=backend.root_url, verify=False) as client:
        scripts: list[object] = [{"setps": []}, {"steps": [{"do": "Answer"}, {"do": "x"}]}, [1]]
        for script in scripts:
            refused = await client.post("/_fake/script", json=script)
            assert refused.status_code == 400
            assert refused.json()["error"]
        assert (backend.unplayed, backend.calls) == ((), [])
