"""What hostile testing found: limits on heads, honest books for odd answers, reloads that outlive a worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from llmrouter.gateway.run import Trial
from llmrouter.testing import Answer, FakeBackend, Json, RawSse, Slow, event
from llmrouter.types import ChatRequest, Failure, Target, Usage
from tests.gateway.test_serve_process import body, children, one_model, served
from tests.support import model, pool, running, tier


def one(engine: FakeBackend, extra: str = "") -> str:
    return extra + model("s") + pool("s", [engine.url]) + tier("auto", small="s", extra="retries = 0")


async def test_a_head_without_end_is_cut_off(tmp_path: Path):
    async with FakeBackend() as engine, running(one(engine), tmp_path) as gateway:
        host, port = gateway.root.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /live HTTP/1.1\r\n")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 20_000_000 and not reader.at_eof():
                writer.write(b"x-a: " + b"y" * 8000 + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0)
                sent += 8000
        writer.close()
        assert sent < 20_000_000
        assert (await gateway.http.get("/live")).status_code == 200


async def test_engine_aliases_of_checked_parameters_are_refused(tmp_path: Path):
    """llama.cpp's `n_cmpl` and `n_predict` say again what `n` and `max_tokens` say, past every check and the books."""
    async with FakeBackend() as engine, running(one(engine), tmp_path) as gateway:
        for name in ("n_cmpl", "n_predict"):
            answer = await gateway.chat("Hi", **{name: 4})  # type: ignore[arg-type]
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


async def test_a_malformed_earlier_call_is_the_clients_fault(tmp_path: Path):
    """Engines answer it with a 500, and one tenant could open the breaker for all."""
    async with FakeBackend() as engine, running(one(engine), tmp_path) as gateway:
        turns = [{"role": "assistant", "content": None, "tool_calls": [{"id": 5}]}, {"role": "user", "content": "z"}]
        answer = await gateway.chat(messages=turns)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].tool_calls[0].id")
        assert engine.calls == []


async def test_a_body_of_brackets_alone_is_refused_unread(tmp_path: Path):
    async with FakeBackend() as engine, running(one(engine), tmp_path) as gateway:
        text = '{"model": "auto", "messages": [' + ",".join(["[]"] * 300_000) + "]}"
        answer = await gateway.http.post("/v1/chat/completions", content=text)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


def trial(failure: Failure | None = None) -> Trial:
    request = ChatRequest(endpoint="chat", model="auto", fields={}, text_bytes=400)
    made = Trial(seq=1, target=Target("s", "small", "default:small"), request=request, started=0.0, called=True)
    made.failure = failure
    return made


@pytest.mark.parametrize("raw", [{}, {"prompt_tokens": None, "completion_tokens": None}])
def test_a_usage_of_nothing_is_estimated(raw: dict[str, None]):
    made = trial()
    made.count(raw, output_chunks=50)
    assert (made.usage.output_tokens, made.usage.estimated) == (50, True)
    assert made.usage.input_tokens > 0


def test_a_usage_from_before_the_cut_gives_way_to_what_was_seen():
    made = trial(Failure.RESET)
    made.count({"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 9}, output_chunks=51)
    assert (made.usage.output_tokens, made.usage.estimated) == (51, True)


async def test_an_answer_that_cannot_be_given_is_booked_as_work_done(tmp_path: Path):
    odd = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": None}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 4000, "total_tokens": 5000},
    }
    async with FakeBackend(default=Json(odd)) as engine, running(one(engine), tmp_path) as gateway:
        assert (await gateway.chat()).status_code == 502
        (entry,) = gateway.books()
    assert (entry.usage.input_tokens, entry.usage.output_tokens) == (1000, 4000)
    assert entry.cost_usd > 0


async def test_a_broken_answer_that_states_no_usage_costs_nothing(tmp_path: Path):
    """Nothing says that the engine has worked, so nothing is billed."""
    broken = Json({"error": {"message": "no", "code": 500}})
    async with FakeBackend(default=broken) as engine, running(one(engine), tmp_path) as gateway:
        assert (await gateway.chat()).status_code == 502
        (entry,) = gateway.books()
    assert entry.usage == Usage()
    assert not entry.cost_usd


async def test_comments_and_role_chunks_do_not_push_the_time_limit_out(tmp_path: Path):
    role = event({"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]})

    async with FakeBackend(default=RawSse((role,))) as engine:
        engine.script(Slow(RawSse((role,) * 100), between_chunks_s=0.02))
        text = one(engine) + "[pools.s.timeouts]\nfirst_byte_s = 0.2\n"
        async with running(text, tmp_path) as gateway:
            began = asyncio.get_running_loop().time()
            answer = await gateway.chat(stream=True)
            assert answer.status_code == 504
            assert asyncio.get_running_loop().time() - began < 1.5


@pytest.mark.process
async def test_a_reload_while_a_worker_is_dead_reaches_all_and_is_not_the_last(tmp_path: Path):
    async with (
        FakeBackend(default=Answer("fine")) as engine,
        served(tmp_path, one_model(engine.url), workers=2) as gateway,
    ):
        os.kill(children(gateway.process.pid)[0], signal.SIGKILL)
        gateway.process.send_signal(signal.SIGHUP)
        await gateway.said("configuration version 2 is in force")
        async with asyncio.timeout(20):
            while len(children(gateway.process.pid)) < 2:
                await asyncio.sleep(0.05)
        gateway.process.send_signal(signal.SIGHUP)
        await gateway.said("configuration version 3 is in force")
        seen = set()
        async with asyncio.timeout(20):
            for _ in range(16):
                async with gateway.client() as http:
                    answer = await http.post("/v1/chat/completions", json=body())
                seen.add(answer.headers["x-llmrouter-config-version"])
        assert seen == {"3"}
        assert json.loads(answer.text)["object"] == "chat.completion"
