"""The official SDK against `llmrouter serve` in front of real engines: a small smoke set.

SmolLM2 answers as `small`; Qwen2.5-Coder-0.5B as `large`, where it can be had.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI, BadRequestError

from llmrouter.backends.runners.models import obtain
from llmrouter.errors import RouterError
from llmrouter.ledger.queries import recent_entries
from tests.gateway.test_serve_process import Served, served

pytestmark = [pytest.mark.engine, pytest.mark.process]

PRICE = "price.gpu = { usd_per_hour = 0.1, input_pool_s_per_token = 0.01, output_pool_s_per_token = 0.02 }"
CONFIG = f"""
[models.small]
{PRICE}
context_window = 2048
[models.large]
{PRICE.replace("0.1,", "1.0,")}
context_window = 2048
capabilities = ["json_object", "json_schema", "logprobs", "engine_fields", "completions", "tools"]
[pools.small]
model = "small"
runner = {{ kind = "llama_cpp", model = "smollm2-135m", context = 4096, slots = 2 }}
[pools.large]
model = "large"
runner = {{ kind = "llama_cpp", model = "qwen2.5-coder-0.5b", context = 4096, slots = 2 }}
[tiers.auto]
small = "small"
large = "large"
[routing]
reference_model = "large"
[[routing.rules]]
rule_id = "code-to-large"
match = {{ intent = "code" }}
tier_role = "large"
"""


@pytest.fixture(scope="module")
def models() -> None:
    for name in ("smollm2-135m", "qwen2.5-coder-0.5b"):
        try:
            obtain(name, progress=None)
        except RouterError as error:
            pytest.skip(f"{name} cannot be had: {error.message}")


@pytest.fixture
async def gateway(models: None, tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path, CONFIG) as gateway:
        yield gateway


async def test_the_sdk_talks_to_real_engines(gateway: Served):
    """One gateway start for all, since engines take seconds to be ready."""
    async with AsyncOpenAI(base_url=f"{gateway.base_url}/v1", api_key=gateway.key, max_retries=0) as client:
        await a_rule_sends_code_to_the_large_model(client)
        await a_stream_has_text_and_usage(client)
        await structured_output_is_json(client)
        await a_tool_is_called(client)
        await log_probabilities_come(client)
        await a_prompt_beyond_the_window_is_a_400(client)
        await a_client_that_leaves_frees_the_engine(client)
    entries = recent_entries(gateway.store, 100)
    assert {entry.model_id for entry in entries if entry.status == 200} == {"small", "large"}
    for entry in entries:
        if entry.status == 200:
            assert entry.usage.output_tokens > 0
            assert entry.cost_usd > 0
            assert not entry.usage.estimated


async def a_rule_sends_code_to_the_large_model(client: AsyncOpenAI) -> None:
    ask = "Write a Python function that returns the square of a number."
    answer = await client.chat.completions.with_raw_response.create(
        model="auto", messages=[{"role": "user", "content": ask}], max_tokens=60, temperature=0
    )
    assert answer.headers["x-llmrouter-model"] == "large"
    assert answer.headers["x-llmrouter-reason"] == "rule:code-to-large"
    assert "def " in (answer.parse().choices[0].message.content or "")


async def a_stream_has_text_and_usage(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model="auto",
        messages=[{"role": "user", "content": "Say hello."}],
        max_tokens=200,
        temperature=0,
        stream_options={"include_usage": True},
    ) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.content
    assert final.usage is not None
    assert final.usage.completion_tokens > 0


async def structured_output_is_json(client: AsyncOpenAI) -> None:
    schema: dict[str, object] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    answer = await client.chat.completions.create(
        model="auto",
        messages=[{"role": "user", "content": "The capital of France as JSON."}],
        response_format={"type": "json_schema", "json_schema": {"name": "capital", "schema": schema}},
        max_tokens=60,
        temperature=0,
    )
    assert isinstance(json.loads(answer.choices[0].message.content or "")["city"], str)


async def a_tool_is_called(client: AsyncOpenAI) -> None:
    """Only the large model has the capability, so no rule is needed to send it there."""
    answer = await client.chat.completions.create(
        model="auto",
        messages=[{"role": "user", "content": "What is the weather in Paris? Use the tool."}],
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "description": "Current weather of a city",
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"type": "string"}},
                        "required": ["city"],
                    },
                },
            }
        ],
        max_tokens=80,
        temperature=0,
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    call = choice.message.tool_calls[0]
    assert call.type == "function"
    assert json.loads(call.function.arguments)["city"] == "Paris"


async def log_probabilities_come(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="auto", messages=[{"role": "user", "content": "Hi"}], max_tokens=5, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content
    assert len(logprobs.content[0].top_logprobs) == 2


async def a_prompt_beyond_the_window_is_a_400(client: AsyncOpenAI) -> None:
    """Not long enough for the gateway to be sure (8 bytes a token): the engines say it, and the plan tries both."""
    with pytest.raises(BadRequestError) as refused:
        await client.chat.completions.create(
            model="auto", messages=[{"role": "user", "content": "one two three " * 900}], max_tokens=5
        )
    assert refused.value.code == "context_length_exceeded"


async def a_client_that_leaves_frees_the_engine(client: AsyncOpenAI) -> None:
    """With both slots taken by answers nobody waits for, the next question would hang for minutes."""
    for _ in range(4):
        stream = await client.chat.completions.create(
            model="auto",
            messages=[{"role": "user", "content": "Tell a very long story."}],
            max_tokens=1500,
            stream=True,
        )
        await anext(aiter(stream))
        await stream.close()
    async with asyncio.timeout(20):
        await client.chat.completions.create(model="auto", messages=[{"role": "user", "content": "Hi"}], max_tokens=5)
