"""Two gateways, each on a disk of its own, on one Redis and one PostgreSQL: one truth, also through outages."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

import pytest

from llmrouter.testing import Answer, FakeBackend, Held, Signal, Slow, usage
from llmrouter.types import LedgerEntry
from tests.gateway.rig import one, two, until
from tests.servers import PostgresServer, RedisServer
from tests.support import Running, running


@pytest.fixture
def stores(redis_url: str, postgres_url: str) -> str:
    return (
        f'[store]\nlimits_url = "{redis_url}"\nledger_url = "{postgres_url}"\n'
        'secret = "a pepper that both gateways have"\n'
    )


@contextlib.asynccontextmanager
async def gateways(text: str, folder: Path) -> AsyncIterator[tuple[Running, Running, dict[str, str]]]:
    """Both, and the authorization of one key that both know."""
    for name in ("a", "b"):
        (folder / name).mkdir()
    async with (
        running(text, folder / "a", background=True) as first,
        running(text, folder / "b", background=True) as second,
    ):
        key = {"authorization": f"Bearer {await first.new_key()}"}
        await second.assembly.follow_store()
        yield first, second, key


async def shipped(gateway: Running, count: int) -> dict[str, LedgerEntry]:
    """The entries that a gateway sees once there are so many: its own, and those that the other one has shipped."""
    await until(lambda: len(gateway.books(1000)) >= count, 15.0)
    return {entry.request_id: entry for entry in gateway.books(1000)}


async def test_both_count_against_the_same_limits_and_book_into_the_same_ledger(stores, tmp_path):
    limits = '[tenants.default.limits]\nrequests_per_minute = 40\nconcurrent_requests = 6\nusd_per_day = "0.01"\n'
    answer = Slow(Answer("fine", usage=usage(10, 20)), between_chunks_s=0.01)
    async with FakeBackend(default=answer) as engine:
        async with gateways(stores + one(engine, more=limits), tmp_path) as (first, second, key):
            both = (first, second)

            async def client(number: int) -> int:
                answer = await both[number % 2].chat(headers=key, max_tokens=20)
                return answer.status_code

            statuses: Counter[int] = Counter()
            for _ in range(8):
                statuses += Counter(await asyncio.gather(*(client(number) for number in range(30))))
            calls = len(engine.calls)
            booked = await shipped(first, calls)
            assert booked == await shipped(second, calls)
        assert engine.max_in_flight <= 6
    assert set(statuses) == {200, 429}
    assert statuses[200] == calls == len(booked)
    # Forty at once, and what came back in the seconds that this took: less than ten.
    assert 20 <= calls < 50
    assert sum((entry.cost_usd for entry in booked.values()), Decimal(0)) <= Decimal("0.01")


async def test_a_budget_spent_at_one_gateway_is_spent_at_the_other(stores, tmp_path):
    limits = '[tenants.default.limits]\nusd_per_day = "0.0005"\n'
    async with (
        FakeBackend(default=Answer("fine", usage=usage(10, 200))) as engine,
        gateways(stores + one(engine, more=limits), tmp_path) as (first, second, key),
    ):
        assert (await first.chat(headers=key, max_tokens=200)).status_code == 200
        refused = await second.chat(headers=key, max_tokens=200)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")


async def test_while_the_ledger_server_is_away_calls_go_on_and_nothing_is_lost(
    stores, tmp_path, postgres_server: PostgresServer
):
    async with (
        FakeBackend(default=Answer("fine")) as engine,
        gateways(stores + one(engine), tmp_path) as (first, second, key),
    ):
        assert (await first.chat(headers=key)).status_code == 200
        postgres_server.kill()
        answers = [await each.chat(headers=key) for each in (first, second) * 3]
        assert {answer.status_code for answer in answers} == {200}
        postgres_server.start()
        entries = await shipped(first, 7)
        assert entries == await shipped(second, 7)
    assert len(entries) == 7
    assert {answer.headers["x-request-id"] for answer in answers} < set(entries)


@pytest.mark.parametrize("policy", ["closed", "open"])
async def test_while_the_limits_are_away_the_policy_holds_and_then_the_limits_again(
    stores, tmp_path, redis_server: RedisServer, policy
):
    limits = '[tenants.default.limits]\nconcurrent_requests = 2\nusd_per_day = "1"\n'
    rule = f'[limits]\non_store_down = "{policy}"\nlease_s = 0\n'
    gate = Signal()
    async with (
        FakeBackend(default=Held(gate, Answer("fine"))) as engine,
        gateways(rule + stores + one(engine, more=limits), tmp_path) as (first, second, key),
    ):
        under_way = asyncio.create_task(first.chat(headers=key))
        await engine.until(lambda: engine.in_flight == 1)
        redis_server.kill()
        asked = [asyncio.create_task(each.chat(headers=key)) for each in (first, second) * 2]
        if policy == "closed":
            refused = await asyncio.gather(*asked)
            assert {answer.status_code for answer in refused} == {503}
            assert {answer.json()["error"]["code"] for answer in refused} == {"store_unavailable"}
        else:
            await engine.until(lambda: engine.in_flight == 5)
        gate.set()
        assert (await under_way).status_code == 200
        if policy == "open":
            assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
            unlimited = [
                each.assembly.metrics.snapshot()["counters"]["llmrouter_unlimited"] for each in (first, second)
            ]
            assert unlimited == [[["auto", 2.0]], [["auto", 2.0]]]
        redis_server.start()
        engine.default = Slow(Answer("fine"), before_headers_s=0.3)
        async with asyncio.timeout(20):
            statuses: Counter[int] = Counter()
            while statuses != {200: 2, 429: 2}:
                again = await asyncio.gather(*(each.chat(headers=key) for each in (first, second) * 2))
                statuses = Counter(answer.status_code for answer in again)


async def test_without_limits_calls_do_not_need_the_limits_server(stores, tmp_path, redis_server: RedisServer):
    async with (
        FakeBackend(default=Answer("fine")) as engine,
        gateways(stores + one(engine), tmp_path) as (first, _second, key),
    ):
        redis_server.kill()
        assert (await first.chat(headers=key)).status_code == 200


async def test_both_send_a_conversation_to_the_same_model(stores, tmp_path):
    """Sticky shares are a hash, so replicas agree without asking each other."""
    rules = "".join(
        f'[[routing.rules]]\nrule_id = "{role}"\ntier_role = "{role}"\nweight = 1\n' for role in ("small", "large")
    )
    async with (
        FakeBackend(default=Answer("small")) as small,
        FakeBackend(default=Answer("large")) as large,
        gateways(stores + two(small, large, more=rules), tmp_path) as (first, second, key),
    ):
        chosen = []
        for number in range(12):
            headers = {**key, "x-llmrouter-conversation": f"talk {number}"}
            chosen.append({(await each.chat(headers=headers)).headers["x-llmrouter-model"] for each in (first, second)})
    assert {len(models) for models in chosen} == {1}
    assert set.union(*chosen) == {"s", "l"}
