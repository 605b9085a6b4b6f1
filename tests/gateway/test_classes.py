"""Latency classes at the gateway: who may ask for which, and what each means for a call."""

from __future__ import annotations

import asyncio

import pytest

from llmrouter.testing import Answer, FakeBackend, Hang, Held, HttpError, Signal
from tests.gateway.rig import PATIENT, one, two
from tests.support import running

PRIORITY = PATIENT + "send_priority = true\n"


@pytest.mark.parametrize(
    ("headers", "fields", "latency_class", "priority"),
    [
        ({}, {}, "standard", 0),
        ({"x-llmrouter-class": "batch"}, {}, "batch", 10),
        ({}, {"service_tier": "priority"}, "interactive", -10),
        ({}, {"service_tier": "flex"}, "batch", 10),
        ({}, {"service_tier": "auto"}, "standard", 0),
        ({"x-llmrouter-class": "interactive"}, {"service_tier": "flex"}, "interactive", -10),
    ],
)
async def test_the_class_is_what_the_request_asks_for_and_the_engine_is_told(
    tmp_path, headers, fields, latency_class, priority
):
    async with FakeBackend(default=Answer("fine")) as engine, running(one(engine, pools=PRIORITY), tmp_path) as gateway:
        assert (await gateway.chat(headers=headers, **fields)).status_code == 200
        assert gateway.books()[0].latency_class == latency_class
    assert engine.calls[0].body["priority"] == priority


async def test_an_engine_that_does_not_schedule_by_priority_is_sent_none(tmp_path):
    async with FakeBackend(default=Answer("fine")) as engine, running(one(engine), tmp_path) as gateway:
        await gateway.chat(headers={"x-llmrouter-class": "batch"})
    assert "priority" not in engine.calls[0].body


async def test_a_key_asks_only_for_the_classes_that_it_was_given(tmp_path):
    async with FakeBackend(default=Answer("fine")) as engine, running(one(engine), tmp_path) as gateway:
        batch_only = {"authorization": f"Bearer {await gateway.new_key(classes=['batch'])}"}
        refused = await gateway.chat(headers={**batch_only, "x-llmrouter-class": "interactive"})
        unasked = await gateway.chat(headers=batch_only)
        unknown = await gateway.chat(headers={"x-llmrouter-class": "urgent"})
        assert gateway.books()[0].latency_class == "batch"
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "latency_class_not_allowed")
    assert "it may ask for: batch" in refused.json()["error"]["message"]
    assert unasked.status_code == 200
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "x-llmrouter-class")
    assert len(engine.calls) == 1


async def test_batch_does_not_spill_to_a_hosted_pool_while_the_tier_has_its_own(tmp_path):
    async with FakeBackend(default=HttpError(503)) as own, FakeBackend(default=Answer("hosted")) as hosted:
        text = two(own, hosted).replace('[pools.l]\nmodel = "l"', '[pools.l]\nmodel = "l"\nhosted = true')
        async with running(text, tmp_path) as gateway:
            spilled = await gateway.chat()
            kept = await gateway.chat(headers={"x-llmrouter-class": "batch"})
    assert (spilled.status_code, spilled.headers["x-llmrouter-model"]) == (200, "l")
    assert kept.status_code >= 500
    assert len(hosted.calls) == 1


async def test_batch_goes_to_a_hosted_pool_where_the_tier_has_no_other(tmp_path):
    async with FakeBackend(default=Answer("hosted")) as hosted:
        text = one(hosted, pools=PATIENT + "hosted = true\n")
        async with running(text, tmp_path) as gateway:
            assert (await gateway.chat(headers={"x-llmrouter-class": "batch"})).status_code == 200


async def test_a_class_has_time_outs_of_its_own(tmp_path):
    more = "[classes.interactive]\nrequest_timeout_s = 0.3\n[classes.batch]\nfirst_byte_s = 0.2\n"
    async with FakeBackend(default=Hang()) as engine, running(one(engine, more=more), tmp_path) as gateway:
        loop = asyncio.get_running_loop()
        for name in ("interactive", "batch"):
            began = loop.time()
            answer = await gateway.chat(headers={"x-llmrouter-class": name})
            assert answer.status_code == 504
            assert loop.time() - began < 5


async def test_an_interactive_request_takes_the_place_of_a_batch_request_in_a_full_queue(tmp_path):
    gate = Signal()
    full = PATIENT + "max_concurrency = 1\nmax_queue = 1\n"
    async with (
        FakeBackend(default=Held(gate, Answer("fine"))) as engine,
        running(one(engine, pools=full), tmp_path) as gateway,
    ):
        first = asyncio.create_task(gateway.chat())
        await engine.until(lambda: engine.in_flight == 1)
        batch = asyncio.create_task(gateway.chat(headers={"x-llmrouter-class": "batch"}))
        while gateway.assembly.pools["s"].status().queued == 0:
            await asyncio.sleep(0.002)
        urgent = asyncio.create_task(gateway.chat(headers={"x-llmrouter-class": "interactive"}))
        shed = await batch
        gate.set()
        assert [answer.status_code for answer in await asyncio.gather(first, urgent)] == [200, 200]
    assert (shed.status_code, shed.json()["error"]["code"]) == (503, "no_capacity")
    assert "retry-after" in shed.headers
