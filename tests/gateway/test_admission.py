"""What is set aside for a plan of several calls, and what its calls may then take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from llmrouter.config import LimitsConfig
from llmrouter.gateway.admission import worst_case
from llmrouter.protocols import Candidate, Steps
from llmrouter.testing import Answer, FakeBackend, Held, Signal, usage
from llmrouter.types import Accepted, Bound, BoundedCall, ChatRequest, Decision, Target
from tests.gateway.rig import PATIENT, two, until
from tests.gateway.scripted import asking, follow_script
from tests.support import running


def tenant(limits: str) -> str:
    return f"[tenants.default.limits]\n{limits}\n"


def agreement(request: ChatRequest) -> Steps:
    """Three samples of the small model and an answer of the other one, side by side."""
    ask = asking(request, n=3)
    peer = Target("l", "peer1", "check:agreement", ask=asking(request), observe=True)
    outcome = yield Target("s", "small", "policy", ask=ask, observe=True, beside=(peer,))
    return Accepted(outcome, choice=2)


def of_agreement(candidates: Sequence[Candidate]) -> Bound:
    small, other = candidates
    return Bound(
        (
            BoundedCall("s", 1, small.input_tokens, 3 * small.output_tokens),
            BoundedCall("l", 1, other.input_tokens, other.output_tokens),
        )
    )


async def test_samples_and_peers_are_reserved_and_what_they_did_not_use_comes_back(tmp_path):
    gate = Signal()
    samples = Answer(("a", "b", "c"), usage=usage(10, 3))
    async with (
        FakeBackend(Held(gate, samples, after="request"), default=samples) as small,
        FakeBackend(default=Answer("d", usage=usage(12, 1))) as other,
        running(two(small, other, more=tenant("tokens_per_minute = 300")), tmp_path) as gateway,
    ):
        follow_script(gateway, agreement, of_agreement)
        under_way = asyncio.create_task(gateway.chat(max_tokens=50))
        await until(lambda: bool(small.calls))
        refused = await gateway.chat(max_tokens=50)
        limit = refused.json()["error"]["limit"]
        assert (refused.status_code, limit["kind"]) == (429, "tokens_per_minute")
        assert int(limit["requested"]) == int(limit["current"]) >= 3 * 50 + 50
        gate.set()
        assert (await under_way).json()["choices"][0]["message"]["content"] == "c"
        again = await gateway.chat(max_tokens=50)
        entries = gateway.books()
    assert again.status_code == 200
    assert [entry.usage.output_tokens for entry in entries] == [4, 4]
    assert [entry.usage.input_tokens for entry in entries] == [22, 22]


async def test_calls_at_the_same_time_are_one_concurrent_request_and_take_a_slot_each(tmp_path):
    gate = Signal()
    pools = PATIENT + "max_concurrency = 1\n"

    def script(request: ChatRequest) -> Steps:
        outcome = yield Target("s", "small", "policy", beside=tuple(Target("l", "peer1", "check") for _ in range(3)))
        return Accepted(outcome)

    async with (
        FakeBackend(default=Answer("a")) as small,
        FakeBackend(Held(gate, Answer("b"), after="request"), default=Answer("b")) as other,
        running(two(small, other, pools=pools, more=tenant("concurrent_requests = 1")), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        under_way = asyncio.create_task(gateway.chat())
        peers = gateway.assembly.pools["l"]
        await until(lambda: (peers.status().in_flight, peers.status().queued) == (1, 2))
        assert (await gateway.chat()).status_code == 429
        gate.set()
        assert (await under_way).status_code == 200
        assert (await gateway.chat()).status_code == 200
        entry = gateway.books()[-1]
    assert [attempt.outcome for attempt in entry.attempts] == ["ok"] * 4


async def test_a_plans_question_keeps_its_own_cap_and_one_without_gets_the_reservations(tmp_path):
    def script(request: ChatRequest) -> Steps:
        outcome = yield Target("s", "small", "policy", ask=asking(request, n=2))
        yield Target("s", "small", "check:self_check", ask=asking(request, max_tokens=1))
        return Accepted(outcome)

    config = two_small("max_output_tokens = 77\n", tenant("tokens_per_minute = 100000"))
    async with FakeBackend() as small, FakeBackend() as other, running(config(small, other), tmp_path) as gateway:
        follow_script(gateway, script)
        reply = await gateway.chat()
    assert [call.request.output_cap for call in small.calls] == [77, 1]
    assert "x-llmrouter-clamped" not in reply.headers


def two_small(models: str, more: str) -> Any:
    def config(small: FakeBackend, other: FakeBackend) -> str:
        return two(small, other, more=more).replace("[models.l]", f"{models}[models.l]")

    return config


class Judged:
    """A plan that answers and then asks about the answer, whose question is longer than the prompt."""

    decision = Decision("cascade", "policy")

    def steps(self) -> Steps:
        raise NotImplementedError

    def bound(self) -> Bound:
        return Bound((BoundedCall("s", 1, 100, 50), BoundedCall("s", 1, 150, 1), BoundedCall("l", 2, 120, 50)))


@pytest.mark.parametrize(("bytes_per_token", "inputs"), [(None, [100, 150, 120]), (1.0, [409, 459, 409])])
def test_what_a_plan_adds_to_the_prompt_is_reserved_whatever_a_prompt_counts_as(bytes_per_token, inputs):
    request = ChatRequest("chat", "auto", {}, text_bytes=400, message_count=1)
    bound = worst_case(Judged(), request, LimitsConfig(reserve_bytes_per_token=bytes_per_token))
    assert [each.input_tokens for each in bound.calls] == inputs
    assert [each.output_tokens for each in bound.calls] == [50, 1, 50]
