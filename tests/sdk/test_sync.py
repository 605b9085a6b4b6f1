"""The official synchronous SDK, from a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from llmrouter.testing import Answer, FakeBackend, Step, ToolCall, Truncate
from tests.gateway.rig import MESSAGES, one
from tests.support import running

ABLE = 'capabilities = ["tools", "json_schema", "logprobs", "n", "completions", "embeddings"]'


class Verdict(BaseModel):
    label: str


async def ask(folder: Path, work: Callable[[Any], Any], *steps: Step) -> Any:
    """What the work in a thread makes of a client whose requests are answered by these steps."""
    async with FakeBackend(*steps) as engine, running(one(engine, models=ABLE), folder) as gateway:

        def run() -> Any:
            plain = openai.DefaultHttpxClient(verify=False)
            with OpenAI(base_url=gateway.base_url, api_key=gateway.key, http_client=plain, max_retries=0) as client:
                return work(client)

        return await asyncio.to_thread(run)


async def test_create(tmp_path):
    answer = await ask(
        tmp_path, lambda client: client.chat.completions.create(model="auto", messages=MESSAGES), Answer("Paris")
    )
    assert (answer.choices[0].message.content, answer.model) == ("Paris", "auto")


async def test_create_with_a_stream(tmp_path):
    def work(client: Any) -> str:
        stream = client.chat.completions.create(model="auto", messages=MESSAGES, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await ask(tmp_path, work, Answer("one two é北")) == "one two é北"


async def test_the_stream_helper_with_tools(tmp_path):
    def work(client: Any) -> Any:
        tools = [{"type": "function", "function": {"name": "f"}}]
        with client.chat.completions.stream(model="auto", messages=MESSAGES, tools=tools) as stream:
            return stream.get_final_completion()

    final = await ask(tmp_path, work, Answer(tool_calls=(ToolCall("f", '{"a": 1}'), ToolCall("f", '{"a": 2}'))))
    assert [call.function.arguments for call in final.choices[0].message.tool_calls] == ['{"a": 1}', '{"a": 2}']


async def test_parse_raw_responses_completions_embeddings_and_models(tmp_path):
    def work(client: Any) -> tuple[Any, ...]:
        parsed = client.chat.completions.parse(model="auto", messages=MESSAGES, response_format=Verdict)
        raw = client.chat.completions.with_raw_response.create(model="auto", messages=MESSAGES, n=2, logprobs=True)
        return (
            parsed.choices[0].message.parsed,
            len(raw.parse().choices),
            raw.headers["x-llmrouter-model"],
            client.completions.create(model="auto", prompt="x y").choices[0].text,
            len(client.embeddings.create(model="auto", input="x").data[0].embedding),
            [model.id for model in client.models.list()],
            client.models.retrieve("auto").id,
        )

    told = await ask(tmp_path, work, Answer('{"label": "good"}'))
    assert told == (Verdict(label="good"), 2, "s", "x y", 8, ["auto"], "auto")


async def test_a_stream_that_breaks_off_is_an_error(tmp_path):
    def work(client: Any) -> str:
        stream = iter(client.chat.completions.create(model="auto", messages=MESSAGES, stream=True))
        seen = [next(stream).choices[0].delta.content for _ in range(2)]
        with pytest.raises(openai.APIError, match="the answer broke off"):
            next(stream)
        return "".join(seen)

    assert await ask(tmp_path, work, Truncate(Answer("one two"), after=2)) == "one"


async def test_statuses_are_the_sdks_classes(tmp_path):
    def work(client: Any) -> None:
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="nobody", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="auto", messages=[])
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="x").models.list()

    await ask(tmp_path, work)
