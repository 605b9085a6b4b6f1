"""What configuration values come to."""

from __future__ import annotations

import pytest

from llmrouter.backends.openai import OpenAIBackend
from llmrouter.cli.effective import output_cap_field
from llmrouter.config import PoolConfig
from llmrouter.protocols import Timeouts
from llmrouter.testing import FakeBackend
from llmrouter.types import ChatRequest


@pytest.mark.parametrize("api", ["openai", "vllm", "llama_cpp"])
@pytest.mark.parametrize("field", [None, "max_tokens", "max_completion_tokens"])
async def test_the_named_output_cap_is_the_one_that_is_sent(api: str, field: str | None):
    async with FakeBackend() as engine:
        pool = PoolConfig.model_validate({"model": "m", "api": api, "urls": [engine.url], "max_tokens_field": field})
        backend = OpenAIBackend(
            name="m/0", base_url=engine.url, engine=pool.engine, model="m", cap_field=pool.max_tokens_field
        )
        request = ChatRequest("chat", "m", {"messages": [{"role": "user", "content": "Hi"}]}, max_output_tokens=7)
        reply = await backend.open(request, request_id="r", timeouts=Timeouts(1, 1, 1, 1), cache_salt=None)
        await reply.read()
        await backend.aclose()
    sent = engine.calls[0].request.fields
    assert {name for name in ("max_tokens", "max_completion_tokens") if name in sent} == {output_cap_field(pool)}
