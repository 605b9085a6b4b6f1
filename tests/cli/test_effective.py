"""What configuration values come to."""

from __future__ import annotations

import tomllib

import pytest

from llmrouter.backends.openai import OpenAIBackend
from llmrouter.cli.effective import effective_values, output_cap_field
from llmrouter.config import PoolConfig, parse
from llmrouter.protocols import Timeouts
from llmrouter.testing import FakeBackend
from llmrouter.types import ChatRequest
from tests.support import model, pool, tier


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


def test_what_limits_and_classes_leave_out_is_shown_as_it_takes_effect():
    text = (
        model("s")
        + pool("s", ["http://127.0.0.1:9/v1"])
        + tier("auto", small="s", extra="limits.tokens_per_minute = 9")
    )
    tenants = (
        "[tenants.a]\nkey_limits.requests_per_minute = 60\nlimits.requests_per_minute = 90\nlimits.requests_burst = 5"
    )
    config = parse(f"{text}\n{tenants}\n[server]\nrequest_timeout_s = 99", environ={})
    shown = {each.key: (each.value, each.source) for each in effective_values(config, {}, {})}
    assert shown["tenants.a.key_limits.requests_burst"] == (60, "derived: a minute's worth, requests_per_minute")
    assert shown["tiers.auto.limits.tokens_burst"][0] == 9
    assert shown["tenants.a.limits.requests_burst"][0] == 5
    assert shown["classes.batch.request_timeout_s"] == (99, "derived: server.request_timeout_s")


def test_addresses_of_servers_show_no_password():
    text = model("s") + pool("s", ["http://127.0.0.1:9/v1"]) + tier("auto", small="s")
    store = '[store]\nlimits_url = "redis://:hunter2@h/0"\nledger_url = "postgresql://u:hunter2@h/d"'
    values = effective_values(parse(f"{text}\n{store}", environ={}), tomllib.loads(store), {})
    assert "hunter2" not in repr(values)
    assert {each.value for each in values if each.key in ("store.limits_url", "store.ledger_url")} == {"***"}
