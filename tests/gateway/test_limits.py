"""Limits at the gateway: reserved before the call, settled after it, refused with everything a client needs to know."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import openai
import pytest

from llmrouter.testing import Answer, FakeBackend, Hang, Held, HttpError, Signal, usage
from llmrouter.types import LimitKind
from tests.gateway.rig import MESSAGES, one, sdk, two
from tests.support import Running, running


def tenant(limits: str = "", *, more: str = "") -> str:
    """The tenant `default` with these limits."""
    return f"[tenants.default]\n{more}\n[tenants.default.limits]\n{limits}\n"


def limit_of(answer) -> dict[str, object]:
    found: dict[str, object] = answer.json()["error"]["limit"]
    return found


async def all_slots_free(gateway: Running, slots: int) -> bool:
    """Whether so many calls at once are admitted."""
    answers = await asyncio.gather(*(gateway.chat() for _ in range(slots)))
    return [answer.status_code for answer in answers] == [200] * slots


async def test_a_request_over_the_rate_is_refused_with_the_limit_and_when_to_come_back(tmp_path):
    async with (
        FakeBackend(default=Answer("fine")) as engine,
        running(one(engine, more=tenant("requests_per_minute = 2")), tmp_path) as gateway,
    ):
        first, second, third = [await gateway.chat() for _ in range(3)]
    assert [first.status_code, second.status_code, third.status_code] == [200, 200, 429]
    assert third.json()["error"]["code"] == "rate_limit_exceeded"
    assert "requests_per_minute of tenant default" in third.json()["error"]["message"]
    found = limit_of(third)
    assert (found["scope"], found["kind"], found["limit"], found["current"]) == (
        "tenant:default",
        "requests_per_minute",
        "2",
        "2",
    )
    assert third.headers["x-should-retry"] == "true"
    assert third.headers["x-llmrouter-routing-version"] == "1"
    assert 25 < float(third.headers["retry-after"]) <= 30
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in (first, second, third)] == ["1", "0", "0"]
    assert len(engine.calls) == 2


async def test_a_refused_request_is_counted_and_leaves_no_row(tmp_path):
    async with (
        FakeBackend(default=Answer("fine")) as engine,
        running(one(engine, more=tenant("requests_per_minute = 1")), tmp_path, with_admin=True) as gateway,
    ):
        await gateway.chat()
        await gateway.chat()
        admin = {"authorization": f"Bearer {gateway.admin_key}"}
        metrics = (await gateway.http.get("/metrics", headers=admin)).text
        assert len(gateway.books()) == 1
    assert 'llmrouter_refused_total{code="rate_limit_exceeded",status="429"} 1.0' in metrics


async def test_g053_a_request_refused_for_concurrency_takes_nothing_of_the_rate(tmp_path):
    gate = Signal()
    limits = tenant("requests_per_minute = 2\nconcurrent_requests = 1")
    async with (
        FakeBackend(Held(gate, Answer("A")), default=Answer("C")) as engine,
        running(one(engine, more=limits), tmp_path) as gateway,
    ):
        running_call = asyncio.create_task(gateway.chat())
        await engine.until(lambda: engine.in_flight == 1)
        refused = await gateway.chat()
        gate.set()
        assert (await running_call).status_code == 200
        admitted = await gateway.chat()
        last = await gateway.chat()
    assert (refused.status_code, limit_of(refused)["kind"]) == (429, "concurrent_requests")
    assert admitted.status_code == 200
    assert (last.status_code, limit_of(last)["kind"]) == (429, "requests_per_minute")


async def test_g050_calls_that_time_out_give_their_slots_back(tmp_path):
    limits = tenant("concurrent_requests = 10")
    slow = "breaker.failures = 1000\ntimeouts.first_byte_s = 0.2\n"
    async with (
        FakeBackend(*[Hang()] * 10, default=Answer("fine")) as engine,
        running(one(engine, pools=slow, more=limits), tmp_path) as gateway,
    ):
        answers = await asyncio.gather(*(gateway.chat() for _ in range(10)))
        assert {answer.status_code for answer in answers} == {504}
        assert await all_slots_free(gateway, 10)


async def test_g051_a_malformed_request_takes_no_slot(tmp_path):
    limits = tenant("concurrent_requests = 1")
    async with (
        FakeBackend(default=Answer("fine")) as engine,
        running(one(engine, more=limits), tmp_path) as gateway,
    ):
        wrong = await gateway.http.post(
            "/v1/chat/completions", json={"model": "auto", "messages": [{"role": "user2", "content": "Hi"}]}
        )
        assert wrong.status_code == 400
        assert (await gateway.chat()).status_code == 200


async def test_clients_that_leave_give_their_slots_back(tmp_path):
    gate = Signal()
    limits = tenant("concurrent_requests = 4")
    async with (
        FakeBackend(*[Held(gate, Answer("late"))] * 4, default=Answer("fine")) as engine,
        running(one(engine, more=limits), tmp_path) as gateway,
    ):
        calls = [asyncio.create_task(gateway.chat()) for _ in range(4)]
        await engine.until(lambda: engine.in_flight == 4)
        assert (await gateway.chat()).status_code == 429
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await gateway.settled(4)
        assert await all_slots_free(gateway, 4)


async def test_g041_a_new_user_has_the_default_budget_from_his_first_calls(tmp_path):
    """Eight calls at once of a user nobody has seen, with a budget for one: at most one gets through."""
    dear = "max_output_tokens = 100\ncontext_window = 2000\n"
    limits = '[tenants.default.user_limits]\nusd_per_day = "0.0003"\n'
    async with (
        FakeBackend(default=Answer("fine", usage=usage(10, 100))) as engine,
        running(one(engine, models=dear, more=limits), tmp_path) as gateway,
    ):
        calls = [gateway.chat(max_tokens=100, user="nobody-before") for _ in range(8)]
        answers = await asyncio.gather(*calls)
        assert sorted(answer.status_code for answer in answers) == [200, *[429] * 7]
        spent = sum((entry.cost_usd for entry in gateway.books()), Decimal(0))
        assert spent <= Decimal("0.0003")
        assert {limit_of(a)["scope"] for a in answers if a.status_code == 429} == {"user:default/nobody-before"}
        assert (await gateway.chat(max_tokens=100, user="somebody-else")).status_code == 200
    assert len(engine.calls) == 2


async def test_g043_the_error_of_a_spent_budget_names_whose_it_is(tmp_path):
    async with (
        FakeBackend(default=Answer("fine", usage=usage(10, 100))) as engine,
        running(one(engine, more=tenant('usd_per_day = "0.0005"')), tmp_path) as gateway,
    ):
        assert (await gateway.chat(max_tokens=100)).status_code == 200
        refused = await gateway.chat(max_tokens=200)
    error = refused.json()["error"]
    assert refused.status_code == 429
    assert (error["code"], error["type"]) == ("insufficient_quota", "insufficient_quota")
    assert error["message"].startswith("usd_per_day of tenant default is spent: $0.00021 of $0.0005")
    assert error["limit"]["scope"] == "tenant:default"
    assert error["limit"]["current"] == "$0.00021"
    assert 0 < error["limit"]["reset_s"] <= 86_400
    assert refused.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("how", ["body user", "body safety_identifier", "header", "key"])
async def test_g044_a_user_is_limited_however_the_request_names_him(tmp_path, how):
    limits = "[tenants.default.user_limits]\nrequests_per_minute = 1\n"
    async with (
        FakeBackend(default=Answer("fine")) as engine,
        running(one(engine, more=limits), tmp_path) as gateway,
    ):
        first = await gateway.chat(user="bob")
        headers, fields = {}, {}
        if how == "header":
            headers["x-llmrouter-user"] = "bob"
        elif how == "key":
            headers["authorization"] = f"Bearer {await gateway.new_key(user_id='bob')}"
            fields["user"] = "somebody whom the key does not stand for"
        else:
            fields[how.removeprefix("body ")] = "bob"
        second = await gateway.chat(headers=headers, **fields)
        assert [entry.user_id for entry in gateway.books()] == ["bob"]
    assert (first.status_code, second.status_code) == (200, 429)
    assert limit_of(second)["scope"] == "user:default/bob"


async def test_a_budget_that_calls_under_way_have_set_aside_is_worth_another_try(tmp_path):
    gate = Signal()
    async with (
        FakeBackend(Held(gate, Answer("fine", usage=usage(1, 1))), default=Answer("fine")) as engine,
        running(one(engine, more=tenant('usd_per_day = "0.0005"')), tmp_path) as gateway,
    ):
        first = asyncio.create_task(gateway.chat(max_tokens=200))
        await engine.until(lambda: engine.in_flight == 1)
        refused = await gateway.chat(max_tokens=200)
        gate.set()
        await first
        assert (await gateway.chat(max_tokens=200)).status_code == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "calls under way have set aside" in refused.json()["error"]["message"]
    assert (refused.headers["x-should-retry"], refused.headers["retry-after"]) == ("true", "1")


async def test_a_client_that_leaves_while_it_waits_for_a_slot_gets_its_request_back(tmp_path):
    gate = Signal()
    async with (
        FakeBackend(default=Held(gate, Answer("fine"))) as engine,
        running(
            one(engine, pools="max_concurrency = 1\n", more=tenant("requests_per_minute = 2")), tmp_path
        ) as gateway,
    ):
        first = asyncio.create_task(gateway.chat())
        await engine.until(lambda: engine.in_flight == 1)
        waiting = asyncio.create_task(gateway.chat())
        async with asyncio.timeout(5):
            while gateway.assembly.pools["s"].status().queued == 0:
                await asyncio.sleep(0.002)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await gateway.settled(1)
        gate.set()
        await first
        assert (await gateway.chat()).status_code == 200


async def test_g077_the_sdk_asks_once_for_a_spent_budget_and_again_for_a_rate(tmp_path):
    limits = tenant('usd_per_day = "0.0005"\nrequests_per_minute = 600\nrequests_burst = 1')
    async with (
        FakeBackend(default=Answer("fine", usage=usage(10, 100))) as engine,
        running(one(engine, more=limits), tmp_path) as gateway,
        sdk(gateway, max_retries=2) as client,
    ):

        async def ask(most: int) -> None:
            await client.chat.completions.create(model="auto", messages=MESSAGES, max_tokens=most)

        await ask(10)
        await ask(10)
        refused = gateway.assembly.metrics.snapshot()["counters"]["llmrouter_refused"]
        assert refused == [["429", "rate_limit_exceeded", 1]]
        await asyncio.sleep(0.1)
        with pytest.raises(openai.RateLimitError) as caught:
            await ask(200)
        refused = gateway.assembly.metrics.snapshot()["counters"]["llmrouter_refused"]
        assert ["429", "insufficient_quota", 1] in refused
    assert caught.value.code == "insufficient_quota"


async def test_tokens_are_reserved_for_the_worst_case_and_given_back(tmp_path):
    """Two attempts of 100 tokens are set aside while the call runs; afterwards only what it used is missing."""
    gate = Signal()
    limits = tenant("tokens_per_minute = 300")
    async with (
        FakeBackend(Held(gate, Answer("fine", usage=usage(10, 10))), default=Answer("fine")) as engine,
        running(one(engine, on="retries = 1\nmax_wait_s = 0\n", more=limits), tmp_path) as gateway,
    ):
        running_call = asyncio.create_task(gateway.chat(max_tokens=50))
        await engine.until(lambda: engine.in_flight == 1)
        refused = await gateway.chat(max_tokens=50)
        assert (refused.status_code, limit_of(refused)["kind"]) == (429, "tokens_per_minute")
        assert int(str(limit_of(refused)["current"])) >= 150
        gate.set()
        whole = await running_call
        again = await gateway.chat(max_tokens=50)
    assert (whole.status_code, again.status_code) == (200, 200)


async def test_a_request_larger_than_a_whole_limit_says_that_waiting_does_not_help(tmp_path):
    async with (
        FakeBackend(default=Answer("fine")) as engine,
        running(one(engine, more=tenant("tokens_per_minute = 300")), tmp_path) as gateway,
    ):
        refused = await gateway.chat(max_tokens=5000)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "request_over_limit")
    assert "lower `max_tokens`" in refused.json()["error"]["message"]
    assert refused.headers["x-should-retry"] == "false"
    assert limit_of(refused)["reset_s"] is None
    assert engine.calls == []


async def test_what_is_reserved_is_what_the_engine_may_write(tmp_path):
    limits = tenant("tokens_per_minute = 100000")
    async with (
        FakeBackend(default=Answer("fine")) as engine,
        running(one(engine, models="max_output_tokens = 77\n", more=limits), tmp_path) as gateway,
    ):
        assert (await gateway.chat()).status_code == 200
    assert engine.calls[0].body["max_tokens"] == 77


@pytest.mark.parametrize(("window", "sent"), [("", 4096), ("context_window = 8192\n", None)])
async def test_a_long_prompt_is_answered_in_full_under_a_limit_too(tmp_path, window, sent):
    """A cap of what the bound leaves of the window would cut the answer to a token."""
    limits = tenant("tokens_per_minute = 100000")
    async with (
        FakeBackend(default=Answer("fine")) as engine,
        running(one(engine, models=window, more=limits), tmp_path) as gateway,
    ):
        assert (await gateway.chat("word " * 6000)).status_code == 200
    assert engine.calls[0].body.get("max_tokens") == sent


async def test_a_request_that_the_books_cannot_hold_is_told_so(tmp_path):
    engine_may = 'capabilities = ["completions", "n"]\n'
    async with (
        FakeBackend(default=Answer("fine")) as engine,
        running(one(engine, models=engine_may), tmp_path) as gateway,
    ):
        body = {"model": "auto", "prompt": ["a"] * 4000, "max_tokens": 2**31 - 1}
        refused = await gateway.http.post("/v1/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")
    assert "more than the books can hold" in refused.json()["error"]["message"]


async def test_without_a_limit_on_tokens_or_dollars_no_cap_is_sent(tmp_path):
    async with (
        FakeBackend(default=Answer("fine")) as engine,
        running(one(engine, models="max_output_tokens = 77\n"), tmp_path) as gateway,
    ):
        assert (await gateway.chat()).status_code == 200
    assert "max_tokens" not in engine.calls[0].body


async def test_a_spent_budget_degrades_to_the_cheaper_tier_where_the_tenant_says_so(tmp_path):
    policy = 'on_budget = "degrade"\ndegrade_to = "economy"\n'
    budget = '[tenants.default.tier_limits.auto]\nusd_per_day = "0.0005"\n'
    more = f'[tiers.economy]\nsmall = "s"\nretries = 0\nmax_wait_s = 0\n[tenants.default]\n{policy}\n{budget}'
    text_on = "retries = 0\nmax_wait_s = 0\nfallback = ['large']\n"
    async with (
        FakeBackend(default=Answer("small")) as small,
        FakeBackend(default=Answer("large", usage=usage(10, 190))) as large,
        running(two(small, large, on=text_on, more=more), tmp_path) as gateway,
    ):
        first = await gateway.chat(max_tokens=20)
        second = await gateway.chat(max_tokens=200)
        newest, oldest = gateway.books()
    assert (first.status_code, second.status_code) == (200, 200)
    assert (first.headers["x-llmrouter-model"], second.headers["x-llmrouter-model"]) == ("l", "s")
    assert second.headers["x-llmrouter-degraded"] == "economy"
    assert (oldest.degraded_to, newest.degraded_to) == (None, "economy")
    assert (newest.tier, newest.model_id) == ("auto", "s")


async def test_a_request_that_the_cheaper_tier_refuses_too_is_not_called_degraded(tmp_path):
    policy = 'on_budget = "degrade"\ndegrade_to = "economy"\n'
    budget = '[tenants.default.limits]\nusd_per_day = "0"\n'
    more = f'[tiers.economy]\nsmall = "s"\n[tenants.default]\n{policy}{budget}'
    async with FakeBackend() as engine, running(one(engine, more=more), tmp_path) as gateway:
        refused = await gateway.chat(max_tokens=20)
    assert refused.status_code == 429
    assert "x-llmrouter-degraded" not in refused.headers


async def test_a_group_shares_its_limit_between_tenants(tmp_path):
    more = (
        "[groups.research]\nlimits.requests_per_minute = 2\n"
        '[tenants.default]\ngroup = "research"\n[tenants.other]\ngroup = "research"\n'
    )
    async with (
        FakeBackend(default=Answer("fine")) as engine,
        running(one(engine, more=more), tmp_path) as gateway,
    ):
        theirs = {"authorization": f"Bearer {await gateway.new_key('other')}"}
        answers = [await gateway.chat(), await gateway.chat(headers=theirs), await gateway.chat(headers=theirs)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert (limit_of(answers[2])["scope"], limit_of(answers[2])["current"]) == ("group:research", None)


async def test_of_a_tier_shared_by_all_only_the_limit_is_told(tmp_path):
    async with (
        FakeBackend(default=Answer("fine")) as engine,
        running(one(engine, on="retries = 0\nlimits.requests_per_minute = 1\n"), tmp_path) as gateway,
    ):
        await gateway.chat()
        refused = await gateway.chat()
    assert (limit_of(refused)["scope"], limit_of(refused)["current"]) == ("tier:auto", None)


async def test_g048_a_reload_changes_limits_at_once_and_keeps_what_was_used(tmp_path):
    def with_limit(most: int) -> str:
        return one(engine, more=tenant(f"requests_per_minute = {most}"))

    async with FakeBackend(default=Answer("fine")) as engine, running(with_limit(1), tmp_path) as gateway:
        assert (await gateway.chat()).status_code == 200
        assert (await gateway.chat()).status_code == 429
        (tmp_path / "llmrouter.toml").write_text(with_limit(3))
        gateway.reload()
        answer = await gateway.chat()
        assert (answer.status_code, answer.headers["x-llmrouter-config-version"]) == (200, "2")
        (tmp_path / "llmrouter.toml").write_text(with_limit(1))
        gateway.reload()
        assert (await gateway.chat()).status_code == 429


async def test_a_failed_call_gives_tokens_and_dollars_back(tmp_path):
    limits = tenant('tokens_per_minute = 400\nusd_per_day = "0.001"')
    async with (
        FakeBackend(HttpError(500), default=Answer("fine", usage=usage(10, 10))) as engine,
        running(one(engine, more=limits), tmp_path) as gateway,
    ):
        assert (await gateway.chat(max_tokens=300)).status_code == 502
        assert (await gateway.chat(max_tokens=300)).status_code == 200


KINDS: tuple[LimitKind, ...] = ("requests_per_minute", "tokens_per_minute", "concurrent_requests", "usd_per_hour")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_limit_of_the_key_is_its_own(tmp_path, kind):
    most = {"requests_per_minute": 1, "tokens_per_minute": 260, "concurrent_requests": 1, "usd_per_hour": 5 * 10**5}
    gate = Signal()
    async with (
        FakeBackend(Held(gate, Answer("fine", usage=usage(100, 150))), default=Answer("fine")) as engine,
        running(one(engine), tmp_path) as gateway,
    ):
        amount = f"{most[kind] / 10**9:.9f}" if kind.startswith("usd") else most[kind]
        limited = {"authorization": f"Bearer {await gateway.new_key(limits={kind: amount})}"}
        running_call = asyncio.create_task(gateway.chat(headers=limited, max_tokens=200))
        await engine.until(lambda: engine.in_flight == 1)
        refused = await gateway.chat(headers=limited, max_tokens=200)
        free = await gateway.chat(max_tokens=200)
        gate.set()
        await running_call
    assert (refused.status_code, limit_of(refused)["kind"]) == (429, kind)
    assert str(limit_of(refused)["scope"]).startswith("key:")
    assert free.status_code == 200
