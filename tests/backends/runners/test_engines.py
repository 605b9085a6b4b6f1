"""Real engines with real models. SmolLM2 is enough; what needs a larger model is skipped when it cannot be had."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from llmrouter.backends.runners.manager import RunnerManager
from llmrouter.backends.runners.models import obtain
from llmrouter.config import Config, parse
from llmrouter.errors import RouterError
from tests.backends.runners.runner_rig import Events

pytest.importorskip("xllamacpp", reason="the extra engines-cpu is not installed")
pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}


def configure(model: str) -> Config:
    return parse(
        '[models.m]\nprice.usd = { input_usd_per_mtok = "1", output_usd_per_mtok = "2" }\ncontext_window = 1024\n'
        '[pools.p]\nmodel = "m"\napi_key = "sk-pool"\n'
        f'runner = {{ kind = "llama_cpp", model = "{model}", context = 2048, slots = 2 }}\n'
        '[tiers.auto]\nsmall = "m"\n',
        environ={},
    )


async def serve(model: str, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a running engine, with the pool's key."""
    try:
        obtain(model)
    except RouterError as error:
        pytest.skip(error.message)
    manager = RunnerManager(configure(model), folder)
    urls = await manager.start(Events())
    try:
        headers = {"authorization": "Bearer sk-pool"}
        async with httpx.AsyncClient(base_url=urls["p"][0], headers=headers, timeout=120, trust_env=False) as client:
            yield client
    finally:
        await manager.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def smol(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    async for client in serve("smollm2-135m", tmp_path_factory.mktemp("smol")):
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def qwen(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    async for client in serve("qwen2.5-coder-0.5b", tmp_path_factory.mktemp("qwen")):
        yield client


async def chat(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "temperature": 0, "max_tokens": 48, "messages": [QUESTION], **fields}
    answer = await client.post("chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_the_small_model_answers_under_its_alias(smol: httpx.AsyncClient) -> None:
    answer = await chat(smol, messages=[{"role": "user", "content": "Say hello."}], max_tokens=8)
    assert answer["model"] == "m"
    assert answer["choices"][0]["message"]["content"].strip()
    assert 0 < answer["usage"]["completion_tokens"] <= 8


async def test_the_engine_wants_the_pools_key_but_tells_its_health_to_all(smol: httpx.AsyncClient) -> None:
    bare = {"authorization": ""}
    assert (await smol.get("models", headers=bare)).status_code == 401
    assert (await smol.get("../health", headers=bare)).status_code == 200


async def test_metrics_and_the_window_of_a_slot_are_told(smol: httpx.AsyncClient) -> None:
    metrics = await smol.get("../metrics")
    assert "llamacpp:requests_processing" in metrics.text
    slots = (await smol.get("../slots")).json()
    assert [slot["n_ctx"] for slot in slots] == [1024, 1024]


async def test_web_pages_are_not_let_in(smol: httpx.AsyncClient) -> None:
    answer = await smol.get("../health", headers={"origin": "https://example.com"})
    assert answer.headers.get("access-control-allow-origin", "") not in ("*", "https://example.com")


async def test_the_large_model_calls_a_tool(qwen: httpx.AsyncClient) -> None:
    (choice,) = (await chat(qwen, tools=[WEATHER]))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}


async def test_the_large_model_streams_a_tool_call(qwen: httpx.AsyncClient) -> None:
    body = {
        "model": "m",
        "temperature": 0,
        "max_tokens": 48,
        "messages": [QUESTION],
        "tools": [WEATHER],
        "stream": True,
    }
    async with qwen.stream("POST", "chat/completions", json=body) as answer:
        lines = [line async for line in answer.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert "get_weather" in "".join(lines)
    assert '"finish_reason":"tool_calls"' in "".join(lines)


async def test_the_large_model_answers_in_words_when_no_tool_helps(qwen: httpx.AsyncClient) -> None:
    question = {"role": "user", "content": "Who wrote Hamlet?"}
    (choice,) = (await chat(qwen, tools=[WEATHER], messages=[question]))["choices"]
    assert choice["finish_reason"] == "stop"
    assert "Shakespeare" in choice["message"]["content"]


async def test_the_large_model_answers_from_a_tools_result(qwen: httpx.AsyncClient) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    turns = [
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "21 degrees, sunny"},
    ]
    (choice,) = (await chat(qwen, tools=[WEATHER], messages=turns))["choices"]
    assert choice["finish_reason"] == "stop"
    assert "21" in choice["message"]["content"]


async def test_without_tools_the_prompt_is_that_of_the_models_own_template(qwen: httpx.AsyncClient) -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]
    prompt = (await qwen.post("../apply-template", json={"messages": turns})).json()["prompt"]
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_a_file_that_is_no_model_fails_the_start_with_the_engines_words(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(RouterError) as caught:
        await RunnerManager(configure(str(broken)), tmp_path).start(Events())
    assert "runner p/0: ended with exit code 1 before it was ready" in caught.value.message
    assert "llama.cpp did not start" in caught.value.message
