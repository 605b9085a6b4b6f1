"""The gateway follows a plan: other questions, calls side by side, and the one answer that the plan accepts."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from decimal import Decimal
from typing import Any

import pytest

from llmrouter.protocols import Steps
from llmrouter.testing import Answer, FakeBackend, Hang, Held, HttpError, Signal, ToolCall, parse_sse, usage
from llmrouter.types import Accepted, ChatRequest, Observation, Outcome, Target
from tests.gateway.rig import MESSAGES, PATIENT, Wire, sdk, two, until
from tests.gateway.scripted import asking, follow_script
from tests.support import Running, running

ALONE = PATIENT + "max_concurrency = 1\n"
"""A pool with one slot: a lost one would be noticed by the next request."""


def small(**how: Any) -> Target:
    return Target("s", "small", "policy", **how)


def large(**how: Any) -> Target:
    return Target("l", "large", "check:agreement", **how)


def idle(gateway: Running) -> bool:
    status = [pool.status() for pool in gateway.assembly.pools.values()]
    return gateway.gateway.active == 0 and not any(one.in_flight or one.queued for one in status)


def seen(outcome: Outcome) -> Observation:
    assert outcome.seen is not None
    return outcome.seen


async def test_a_plans_own_question_is_sent_and_the_client_gets_one_choice_of_the_answer(tmp_path):
    outcomes: list[Outcome] = []

    def script(request: ChatRequest) -> Steps:
        ask = asking(request, n=3, temperature=0.7, logprobs=True, top_logprobs=2)
        outcome = yield small(ask=ask, observe=True)
        outcomes.append(outcome)
        return Accepted(outcome, choice=1, reason="agreement:accepted", check="agreement 2/3 0.93")

    answer = Answer(("four", "4 is it", "five"), logprobs=(-0.5,), usage=usage(10, 9))
    async with (
        FakeBackend(answer) as engine,
        FakeBackend() as other,
        running(two(engine, other), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        reply = await gateway.chat("2 + 2?")
        (entry,) = gateway.books()
    body = reply.json()
    sent = engine.calls[0].request.fields
    assert (sent["n"], sent["temperature"], sent["logprobs"], sent["top_logprobs"]) == (3, 0.7, True, 2)
    assert [(c["index"], c["message"]["content"], c["logprobs"]) for c in body["choices"]] == [(0, "4 is it", None)]
    assert body["usage"] == usage(10, 3)
    assert body["model"] == "auto"
    assert seen(outcomes[0]).texts == ("four", "4 is it", "five")
    assert seen(outcomes[0]).finish == ("stop", "stop", "stop")
    assert seen(outcomes[0]).first_token == {"four": -0.5, "four~1": -1.5}
    assert seen(outcomes[0]).usage.output_tokens == 9
    assert entry.usage.output_tokens == 9
    assert (entry.reason, entry.model_id, entry.finish) == ("agreement:accepted", "s", "stop")
    assert entry.reference_cost_usd == Decimal(10 * 10 + 3 * 20) / 10**6
    assert (entry.strategy, entry.route, entry.score) == ("cascade", "cascade", 0.625)
    assert entry.checks == "agreement 2/3 0.93"
    assert reply.headers["x-llmrouter-reason"] == "agreement:accepted"
    assert reply.headers["x-llmrouter-route"] == "cascade"
    assert reply.headers["x-llmrouter-score"] == "0.6250"
    assert reply.headers["x-llmrouter-check"] == "agreement 2/3 0.93"


async def test_a_client_gets_as_many_alternatives_a_token_as_it_asked_for(tmp_path):
    def script(request: ChatRequest) -> Steps:
        outcome = yield small(ask=asking(request, logprobs=True, top_logprobs=5), observe=True)
        return Accepted(outcome)

    async with (
        FakeBackend(Answer("one two")) as engine,
        FakeBackend() as other,
        running(two(engine, other), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        body = (await gateway.chat(logprobs=True, top_logprobs=2)).json()
    entries = body["choices"][0]["logprobs"]["content"]
    assert [(each["token"], len(each["top_logprobs"])) for each in entries] == [("one", 2), (" two", 2)]


async def test_an_earlier_answer_is_given_when_the_plan_comes_back_to_it(tmp_path):
    """Its model, pool and tokens are what the client is told, although a later call was made."""

    def script(request: ChatRequest) -> Steps:
        first = yield small(observe=True)
        yield large(ask=asking(request, max_tokens=1), observe=True)
        return Accepted(first, reason="kept", check="self_check 0.99")

    async with (
        FakeBackend(Answer("mine", usage=usage(5, 1))) as engine,
        FakeBackend(Answer("yes", usage=usage(50, 1))) as other,
        running(two(engine, other), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        reply = await gateway.chat()
        (entry,) = gateway.books()
    assert other.calls[0].request.output_cap == 1
    assert reply.json()["choices"][0]["message"]["content"] == "mine"
    assert reply.json()["usage"]["prompt_tokens"] == 5
    assert (reply.headers["x-llmrouter-model"], reply.headers["x-llmrouter-attempts"]) == ("s", "2")
    assert [(a.seq, a.model_id, a.committed, a.outcome) for a in entry.attempts] == [
        (1, "s", True, "ok"),
        (2, "l", False, "ok"),
    ]
    assert entry.usage.input_tokens == 55


@pytest.mark.parametrize("kind", ["failed", "foreign", "no such choice", "a stream it left behind"])
async def test_accepting_what_is_not_there_is_an_internal_error(tmp_path, caplog, kind):
    def script(request: ChatRequest) -> Steps:
        first = yield small(observe=True)
        second = yield large()
        if kind == "failed":
            return Accepted(second)
        if kind == "foreign":
            return Accepted(Outcome(small()))
        return Accepted(first, choice=3 if kind == "no such choice" else 0)

    steps = (HttpError(500),) if kind == "failed" else ()
    async with (
        FakeBackend() as engine,
        FakeBackend(*steps) as other,
        running(two(engine, other, pools=ALONE), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        with caplog.at_level(logging.ERROR, logger="llmrouter.gateway"):
            reply = await gateway.chat(stream=kind.startswith("a stream"))
        (entry,) = gateway.books()
        await until(lambda: idle(gateway))
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
    assert (entry.status, entry.model_id) == (500, None)
    assert any("failed inside the gateway" in record.getMessage() for record in caplog.records)


async def test_peers_are_asked_at_the_same_time_and_one_that_fails_is_no_end(tmp_path):
    gate = Signal()
    outcomes: list[Outcome] = []

    def script(request: ChatRequest) -> Steps:
        ask = asking(request, temperature=0)
        outcome = yield small(observe=True, beside=(large(ask=ask, observe=True), small(ask=ask), large(observe=True)))
        outcomes.append(outcome)
        return Accepted(outcome.beside[0], reason="agreement:peer")

    async with (
        FakeBackend(Held(gate, Answer("a"), after="request"), HttpError(500)) as engine,
        FakeBackend(Held(gate, Answer("b"), after="request"), Held(gate, Answer("c"), after="request")) as other,
        running(two(engine, other), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        asked = asyncio.create_task(gateway.chat())
        await until(lambda: len(engine.calls) + len(other.calls) == 4)
        gate.set()
        reply = await asked
        (entry,) = gateway.books()
        await until(lambda: idle(gateway))
    (outcome,) = outcomes
    assert [each.ok for each in (outcome, *outcome.beside)] == [True, True, False, True]
    assert {*seen(outcome).texts, *seen(outcome.beside[0]).texts, *seen(outcome.beside[2]).texts} == {"a", "b", "c"}
    assert reply.json()["choices"][0]["message"]["content"] == seen(outcome.beside[0]).texts[0]
    assert [(a.seq, a.model_id, a.outcome, a.committed) for a in entry.attempts] == [
        (1, "s", "ok", False),
        (2, "l", "ok", True),
        (3, "s", "server_error", False),
        (4, "l", "ok", False),
    ]
    assert reply.headers["x-llmrouter-attempts"] == "4"
    assert entry.cost_usd == sum(attempt.cost_usd for attempt in entry.attempts)


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_g039_leaving_ends_every_call_that_is_made_at_the_same_time(tmp_path, how):
    def script(request: ChatRequest) -> Steps:
        outcome = yield small(beside=(large(), large()))
        return Accepted(outcome)

    async with (
        FakeBackend(Hang(after="request")) as engine,
        FakeBackend(Answer("done"), Hang(after="half")) as other,
        running(two(engine, other, pools=PATIENT + "max_concurrency = 2\n"), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        async with Wire(gateway) as client:
            await client.ask()
            await until(lambda: len(engine.calls) + len(other.calls) == 3 and gateway_busy(gateway, "l") == 1)
            client.leave(how)
            await engine.calls[0].disconnected.wait(1.0)
            await other.calls[1].disconnected.wait(1.0)
            (entry,) = await gateway.settled(1)
        await until(lambda: idle(gateway))
    assert (entry.status, entry.error_code) == (499, "client_cancelled")
    assert [attempt.outcome for attempt in entry.attempts] == ["client_cancelled", "ok", "client_cancelled"]


def gateway_busy(gateway: Running, pool_id: str) -> int:
    return gateway.assembly.pools[pool_id].status().in_flight


@pytest.mark.parametrize("stream", [False, True])
async def test_g039_leaving_ends_a_checking_call(tmp_path, stream):
    """The verifier's call counts as any other, also when a streamed answer waits to be judged."""

    def script(request: ChatRequest) -> Steps:
        first = yield small(ask=asking(request), observe=True)
        yield large(ask=asking(request, max_tokens=1))
        return Accepted(first)

    async with (
        FakeBackend(Answer("four")) as engine,
        FakeBackend(Hang(after="request")) as other,
        running(two(engine, other, pools=ALONE), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        async with Wire(gateway) as client:
            await client.ask(stream=stream)
            await other.call(1)
            client.leave()
            await other.calls[0].disconnected.wait(1.0)
            (entry,) = await gateway.settled(1)
        await until(lambda: idle(gateway))
    assert (entry.status, entry.model_id) == (499, None)
    assert [attempt.outcome for attempt in entry.attempts] == ["ok", "client_cancelled"]


async def test_g039_leaving_while_a_peer_waits_for_a_slot_calls_nobody(tmp_path):
    gate = Signal()

    def script(request: ChatRequest) -> Steps:
        outcome = yield small(beside=(large(),))
        return Accepted(outcome)

    async with (
        FakeBackend(Answer("first"), Answer("mine")) as engine,
        FakeBackend(Held(gate, Answer("theirs"), after="request")) as other,
        running(two(engine, other, pools=ALONE), tmp_path) as gateway,
        Wire(gateway) as holder,
        Wire(gateway) as leaving,
    ):
        follow_script(gateway, script)
        await holder.ask()
        await other.call(1)
        await leaving.ask()
        await until(lambda: gateway.assembly.pools["l"].status().queued == 1 and len(engine.calls) == 2)
        leaving.leave()
        (entry,) = await gateway.settled(1)
        assert gateway.assembly.pools["l"].status().queued == 0
        gate.set()
        await holder.answer()
        await until(lambda: idle(gateway))
        assert len(other.calls) == 1
    assert entry.status == 499
    assert entry.attempts[1].outcome == "client_cancelled"
    assert entry.attempts[1].usage.input_tokens == 0


async def test_g047_a_cascade_is_one_entry_however_often_it_is_recorded(tmp_path):
    """Its calls are rows of that entry, so a repeat adds nothing to any sum."""

    def script(request: ChatRequest) -> Steps:
        yield small(observe=True)
        outcome = yield large()
        return Accepted(outcome)

    async with (
        FakeBackend(Answer("a", usage=usage(5, 1))) as engine,
        FakeBackend(Answer("b", usage=usage(7, 2))) as other,
        running(two(engine, other), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        await gateway.chat()
        (entry,) = gateway.books()
        await gateway.assembly._books.ledger.record(entry)
        assert gateway.books() == [entry]
    assert [attempt.usage.input_tokens for attempt in entry.attempts] == [5, 7]
    assert (entry.usage.input_tokens, entry.usage.output_tokens) == (12, 3)
    assert entry.cost_usd == sum(attempt.cost_usd for attempt in entry.attempts)


class Judge:
    """Scores by the length of the answer; holds a request up where it is told to."""

    def __init__(self, gate: Signal | None = None) -> None:
        self.gate = gate
        self.asked: list[tuple[str, str]] = []

    async def score(self, request: ChatRequest, answer_text: str) -> float | None:
        self.asked.append((request.last_user_text, answer_text))
        if self.gate is not None:
            await self.gate.wait(timeout_s=None)
        return len(answer_text) / 10


def judged(request: ChatRequest) -> Steps:
    """The better model answers where the verifier does not like the first answer."""
    first = yield small(ask=asking(request), observe=True, verifier="judge")
    verdict = seen(first).verdict
    if verdict is not None and verdict > 0.5:
        return Accepted(first, check=f"verifier {verdict:.2f}")
    better = yield large(ask=asking(request))
    return Accepted(better, check=f"verifier {verdict}")


def with_judge(gateway: Running, judge: Judge) -> None:
    pipeline = gateway.assembly._pipeline
    pipeline.state = dataclasses.replace(pipeline.state, verifiers={"judge": judge})
    follow_script(gateway, judged)


async def test_a_verifiers_score_is_seen_by_the_plan(tmp_path):
    judge = Judge()
    async with (
        FakeBackend(Answer("too"), Answer("long one")) as engine,
        FakeBackend(Answer("better")) as other,
        running(two(engine, other), tmp_path) as gateway,
    ):
        with_judge(gateway, judge)
        replies = [await gateway.chat("2 + 2?") for _ in range(2)]
    assert [reply.json()["choices"][0]["message"]["content"] for reply in replies] == ["better", "long one"]
    assert [reply.headers["x-llmrouter-check"] for reply in replies] == ["verifier 0.3", "verifier 0.80"]
    assert judge.asked == [("2 + 2?", "too"), ("2 + 2?", "long one")]


async def test_a_verifier_that_takes_too_long_leaves_time_for_another_model(tmp_path):
    async with (
        FakeBackend(Answer("long enough")) as engine,
        FakeBackend(Answer("better")) as other,
        running(two(engine, other), tmp_path) as gateway,
    ):
        with_judge(gateway, Judge(Signal()))
        reply = await gateway.chat(headers={"x-stainless-read-timeout": "1"})
        (entry,) = gateway.books()
    assert reply.json()["choices"][0]["message"]["content"] == "better"
    assert reply.headers["x-llmrouter-check"] == "verifier None"
    assert 0.4 < entry.total_s < 1


async def test_g039_leaving_ends_the_wait_for_a_verifier(tmp_path):
    judge = Judge(Signal())
    async with (
        FakeBackend(Answer("long enough")) as engine,
        FakeBackend() as other,
        running(two(engine, other, pools=ALONE), tmp_path) as gateway,
    ):
        with_judge(gateway, judge)
        async with Wire(gateway) as client:
            await client.ask()
            await until(lambda: bool(judge.asked))
            client.leave()
            (entry,) = await gateway.settled(1)
        await until(lambda: idle(gateway))
        assert other.calls == []
    assert (entry.status, entry.attempts[0].outcome, entry.model_id) == (499, "ok", None)


async def test_peers_share_the_requests_deadline(tmp_path):
    outcomes: list[Outcome] = []

    def script(request: ChatRequest) -> Steps:
        outcome = yield small(observe=True, beside=(large(), large()))
        outcomes.append(outcome)
        return Accepted(outcome)

    async with (
        FakeBackend(Answer("here")) as engine,
        FakeBackend(Hang(after="request"), Hang(after="headers")) as other,
        running(two(engine, other), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        reply = await gateway.chat(headers={"x-stainless-read-timeout": "0.4"})
        (entry,) = gateway.books()
    assert reply.json()["choices"][0]["message"]["content"] == "here"
    assert [each.failure for each in outcomes[0].beside] == ["timeout", "timeout"]
    assert 0.3 < entry.total_s < 2.0


async def test_peers_that_are_much_slower_are_not_waited_for(tmp_path):
    outcomes: list[Outcome] = []

    def script(request: ChatRequest) -> Steps:
        outcome = yield small(observe=True, beside=(large(), large()), linger_s=0.1)
        outcomes.append(outcome)
        return Accepted(outcome)

    async with (
        FakeBackend(Answer("here")) as engine,
        FakeBackend(Hang(after="request"), Answer("there")) as other,
        running(two(engine, other), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        reply = await gateway.chat()
        (entry,) = gateway.books()
        await until(lambda: idle(gateway))
    assert reply.json()["choices"][0]["message"]["content"] == "here"
    assert sorted(str(each.failure) for each in outcomes[0].beside) == ["None", "timeout"]
    assert sorted(each.outcome for each in entry.attempts) == ["ok", "ok", "timeout"]
    assert entry.total_s < 5.0


async def test_a_call_that_has_a_pace_to_keep_is_cut_although_it_is_the_first(tmp_path):
    outcomes: list[Outcome] = []

    def script(request: ChatRequest) -> Steps:
        answer = yield small(observe=True)
        outcomes.append((yield large(observe=True, beside=(large(),), linger_s=0.1, paced=True)))
        return Accepted(answer)

    async with (
        FakeBackend(Answer("here")) as engine,
        FakeBackend(Hang(after="request"), Answer("there")) as other,
        running(two(engine, other), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        reply = await gateway.chat()
        (entry,) = gateway.books()
        await until(lambda: idle(gateway))
    assert reply.json()["choices"][0]["message"]["content"] == "here"
    assert sorted(str(each.failure) for each in (outcomes[0], *outcomes[0].beside)) == ["None", "timeout"]
    assert sorted(each.outcome for each in entry.attempts) == ["ok", "ok", "timeout"]
    assert entry.total_s < 5.0


async def test_a_wait_of_several_calls_at_once_counts_once(tmp_path):
    gate = Signal()

    def script(request: ChatRequest) -> Steps:
        outcome = yield small(beside=(small(), small(), small()))
        return Accepted(outcome)

    async with (
        FakeBackend(Held(gate, Answer("a"), after="request")) as engine,
        FakeBackend() as other,
        running(two(engine, other, pools=ALONE), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        asked = asyncio.create_task(gateway.chat())
        await until(lambda: gateway.assembly.pools["s"].status().queued == 3)
        gate.set()
        reply = await asked
        (entry,) = gateway.books()
    assert len(engine.calls) == 4
    assert entry.queue_s <= entry.total_s
    assert entry.queue_s < sum(attempt.queue_s for attempt in entry.attempts)
    assert reply.status_code == 200


async def test_a_whole_answer_is_streamed_to_a_client_that_wants_a_stream(tmp_path):
    def script(request: ChatRequest) -> Steps:
        outcome = yield small(ask=asking(request, n=2, logprobs=True), observe=True)
        return Accepted(outcome, choice=1)

    answer = Answer(("no", "one two three"), usage=usage(7, 4), reasoning="let me see")
    async with (
        FakeBackend(answer, answer) as engine,
        FakeBackend() as other,
        running(two(engine, other), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        raw = await gateway.chat(stream=True, stream_options={"include_usage": True})
        (entry,) = gateway.books()
        async with sdk(gateway) as client:
            stream = await client.chat.completions.create(model="auto", messages=MESSAGES, stream=True)
            folded = [chunk async for chunk in stream]
    assert engine.calls[0].request.stream is False
    *chunks, done = parse_sse(raw.content)
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "one two three"
    assert chunks[-1]["usage"] == usage(7, 3)
    assert {chunk["model"] for chunk in chunks} == {"auto"}
    assert all(not choice.get("logprobs") for chunk in chunks for choice in chunk["choices"])
    assert entry.stream
    assert entry.ttft_s is not None
    assert entry.ttft_s <= entry.total_s
    assert "".join(chunk.choices[0].delta.content or "" for chunk in folded) == "one two three"
    assert folded[-1].choices[0].finish_reason == "stop"


async def test_tool_calls_of_a_whole_answer_are_streamed(tmp_path):
    def script(request: ChatRequest) -> Steps:
        outcome = yield small(ask=asking(request), observe=True)
        assert seen(outcome).tool_calls == ((("add", '{"a": 1}'), ("sub", '{"b": 2}')),)
        return Accepted(outcome)

    calls = (ToolCall("add", '{"a": 1}'), ToolCall("sub", '{"b": 2}'))
    async with (
        FakeBackend(Answer(tool_calls=calls)) as engine,
        FakeBackend() as other,
        running(two(engine, other), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        async with (
            sdk(gateway) as client,
            client.chat.completions.stream(model="auto", messages=MESSAGES) as stream,
        ):
            final = await stream.get_final_completion()
    message = final.choices[0].message
    assert [(c.function.name, c.function.arguments) for c in message.tool_calls] == [
        ("add", '{"a": 1}'),
        ("sub", '{"b": 2}'),
    ]
    assert final.choices[0].finish_reason == "tool_calls"


async def test_a_clients_own_choices_are_all_given(tmp_path):
    def script(request: ChatRequest) -> Steps:
        outcome = yield small(observe=True)
        return Accepted(outcome)

    async with (
        FakeBackend(Answer(("a", "b"))) as engine,
        FakeBackend() as other,
        running(two(engine, other), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        body = (await gateway.chat(n=2)).json()
    assert [(c["index"], c["message"]["content"]) for c in body["choices"]] == [(0, "a"), (1, "b")]


async def test_a_question_about_an_answer_goes_to_the_replica_that_gave_it(tmp_path):
    """It has the prompt in its cache; only replicas that failed are avoided."""

    def script(request: ChatRequest) -> Steps:
        first = yield small(observe=True)
        yield small(ask=asking(request, max_tokens=1))
        return Accepted(first)

    async with (
        FakeBackend() as one,
        FakeBackend() as another,
        FakeBackend() as other,
        running(two(one, other).replace(f'"{one.url}"', f'"{one.url}", "{another.url}"', 1), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        for turn in range(4):
            await gateway.chat(f"conversation {turn}")
        entries = gateway.books()
    assert {len({attempt.replica for attempt in entry.attempts}) for entry in entries} == {1}
