"""Answered calls of consenting tenants become samples; of all others nothing is kept."""

from __future__ import annotations

import pytest

from llmrouter.quality.sample_store import Selection, list_samples, read_samples
from llmrouter.testing import Answer, FakeBackend, HttpError
from tests.gateway.rig import one, until
from tests.support import running

CONSENT = "[tenants.default.samples]\nconsent = true\nrate = 1.0\n[tenants.other]\n"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_is_kept_with_what_the_client_got_and_personal_data_masked(tmp_path, stream):
    async with FakeBackend(default=Answer("write to ada@example.org")) as engine:
        async with running(one(engine, more=CONSENT), tmp_path) as gateway:
            answer = await gateway.chat("I am bob@example.org", stream=stream)
            assert (
                await gateway.chat("nobody", headers={"authorization": f"Bearer {await gateway.new_key('other')}"})
            ).is_success
            await until(lambda: gateway.assembly.gauges(0)["llmrouter_samples"][0] == ["kept", 1])
        (sample,) = read_samples(gateway.store, Selection(), None)
    assert sample.info.request_id == answer.headers["x-request-id"]
    assert sample.info.inclusion_probability == 1.0
    assert sample.request["messages"] == [{"role": "user", "content": "I am [email]"}]
    assert "write to [email]" in str(sample.choices)
    assert "example.org" not in str(sample)


async def test_failed_calls_and_tenants_without_consent_leave_nothing(tmp_path):
    async with FakeBackend(HttpError(500), default=Answer("fine")) as engine:
        async with running(one(engine, more=CONSENT), tmp_path) as gateway:
            assert (await gateway.chat()).status_code == 502
            other = {"authorization": f"Bearer {await gateway.new_key('other')}"}
            assert (await gateway.chat(headers=other)).status_code == 200
        assert list_samples(gateway.store, Selection(), 9) == []


async def test_consent_given_or_withdrawn_by_a_reload_counts_from_then_on(tmp_path):
    async with FakeBackend(default=Answer("fine")) as engine:
        text = one(engine, more=CONSENT)
        async with running(text, tmp_path) as gateway:
            await gateway.chat()
            (tmp_path / "llmrouter.toml").write_text(text.replace("consent = true", "consent = false"))
            await until(lambda: gateway.assembly.gauges(0)["llmrouter_samples"][0] == ["kept", 1])
            gateway.reload()
            await gateway.chat()
        assert len(list_samples(gateway.store, Selection(), 9)) == 1
