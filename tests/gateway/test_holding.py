"""A streamed answer is held back until its plan has judged it; then it goes on, or another one takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from llmrouter.protocols import Steps
from llmrouter.testing import (
    Answer,
    ErrorInside,
    FakeBackend,
    Hang,
    Held,
    HttpError,
    RawSse,
    Reset,
    Signal,
    Step,
    ToolCall,
    Truncate,
    event,
    fold_chunks,
    parse_sse,
    usage,
)
from llmrouter.types import Accepted, ChatRequest, Hold, Observation, Outcome, Target
from tests.gateway.rig import MESSAGES, PATIENT, Wire, sdk, two, until
from tests.gateway.scripted import asking, follow_script
from tests.support import Running, running

ALONE = PATIENT + "max_concurrency = 1\n"
WORDS = " ".join(f"w{position}" for position in range(20))
BEST = Answer("the better answer", usage=usage(9, 3))
LONG_HOLD = Hold(tokens=1000, deadline_s=30.0)


def held(request: ChatRequest, hold: Hold, **fields: Any) -> Target:
    """The small model's stream with log-probabilities, held back."""
    ask = asking(request, stream=True, logprobs=True, top_logprobs=2, **fields)
    return Target("s", "small", "policy", ask=ask, observe=True, hold=hold)


def judging(
    hold: Hold, good: Callable[[Observation], bool] = lambda _: True, outcomes: list[Outcome] | None = None
) -> Callable[[ChatRequest], Steps]:
    """A cascade: the small model's prefix is good, or the large one answers."""

    def script(request: ChatRequest) -> Steps:
        outcome = yield held(request, hold)
        if outcomes is not None:
            outcomes.append(outcome)
        if outcome.ok and outcome.seen is not None and good(outcome.seen):
            return Accepted(outcome, reason="logprobs:accepted", check="logprobs 0.97")
        outcome = yield Target("l", "large", f"fallback:{outcome.failure}" if outcome.failure else "check:logprobs")
        return Accepted(outcome, check="logprobs 0.12") if outcome.ok else None

    return script


def bad(_: Observation) -> bool:
    return False


def seen(outcome: Outcome) -> Observation:
    assert outcome.seen is not None
    return outcome.seen


def idle(gateway: Running) -> bool:
    status = [pool.status() for pool in gateway.assembly.pools.values()]
    return gateway.gateway.active == 0 and not any(one.in_flight or one.queued for one in status)


def text_of(body: bytes) -> str:
    text: str = fold_chunks(parse_sse(body))["choices"][0]["message"]["content"]
    return text


async def test_an_accepted_prefix_goes_on_and_nothing_is_sent_before(tmp_path):
    gate = Signal()
    outcomes: list[Outcome] = []
    async with (
        FakeBackend(Held(gate, Answer(WORDS, logprobs=(-0.25,)), after=5)) as small,
        FakeBackend() as large,
        running(two(small, large, more="[server]\nkeepalive_comment_s = 0.02\n"), tmp_path) as gateway,
        Wire(gateway) as client,
    ):
        follow_script(gateway, judging(Hold(8, 30.0), outcomes=outcomes))
        await client.ask(stream=True)
        await until(lambda: bool(small.calls) and small.calls[0].chunks_sent == 5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.reader.readexactly(1)
        assert outcomes == []
        gate.set()
        await client.until(b"[DONE]")
        (entry,) = await gateway.settled(1)
        assert large.calls == []
    observed = seen(outcomes[0])
    assert observed.texts[0].startswith("w0 w1 w2 w3 w4 w5 w6 w7")
    assert (observed.finish, observed.whole, observed.usage.estimated) == ((None,), False, True)
    assert observed.first_token == {"w0": -0.25, "w0~1": -1.25}
    assert (entry.model_id, entry.reason, entry.finish) == ("s", "logprobs:accepted", "stop")
    assert entry.usage.output_tokens == 20


async def test_a_committed_prefix_is_what_the_client_would_have_got_without_a_plan(tmp_path):
    """Log-probabilities that only the plan asked for are in no event; the rest is the same."""
    answer = Answer(WORDS, reasoning="let me think", usage=usage(3, 23))
    fields: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    async with (
        FakeBackend(answer, answer) as small,
        FakeBackend() as large,
        running(two(small, large), tmp_path) as gateway,
    ):
        plain = await gateway.chat(**fields)
        follow_script(gateway, judging(Hold(6, 30.0)))
        cascaded = await gateway.chat(**fields)
        calls = small.calls
    assert "logprobs" not in calls[0].request.fields
    assert calls[1].request.fields["logprobs"] is True
    assert parse_sse(cascaded.content)[-1] == "[DONE]"
    assert _comparable(cascaded.content) == _comparable(plain.content)
    assert cascaded.headers["x-llmrouter-check"] == "logprobs 0.97"


def _comparable(body: bytes) -> list[Any]:
    return [chunk if chunk == "[DONE]" else {**chunk, "id": "", "created": 0} for chunk in parse_sse(body)]


async def test_a_client_that_asked_for_logprobs_gets_as_many_as_it_asked_for(tmp_path):
    async with (
        FakeBackend(Answer(WORDS)) as small,
        FakeBackend() as large,
        running(two(small, large), tmp_path) as gateway,
        sdk(gateway) as client,
    ):
        follow_script(gateway, judging(Hold(6, 30.0)))
        stream = await client.chat.completions.create(
            model="auto", messages=MESSAGES, stream=True, logprobs=True, top_logprobs=1
        )
        chunks = [chunk async for chunk in stream]
    entries = [
        entry for chunk in chunks for choice in chunk.choices if choice.logprobs for entry in choice.logprobs.content
    ]
    assert "".join(entry.token for entry in entries) == WORDS
    assert {len(entry.top_logprobs) for entry in entries} == {1}


async def test_a_rejected_prefix_is_cancelled_at_once_booked_and_replaced(tmp_path):
    async with (
        FakeBackend(Hang(Answer(WORDS), after=9)) as small,
        FakeBackend(BEST) as large,
        running(two(small, large, pools=ALONE), tmp_path) as gateway,
    ):
        follow_script(gateway, judging(Hold(6, 30.0), bad))
        reply = await gateway.chat(stream=True, stream_options={"include_usage": True})
        await small.calls[0].disconnected.wait(1.0)
        (entry,) = gateway.books()
        await until(lambda: idle(gateway))
        assert (await gateway.chat()).status_code == 200
    assert text_of(reply.content) == "the better answer"
    assert b"w0" not in reply.content
    assert parse_sse(reply.content)[-2]["usage"] == usage(9, 3)
    assert [(a.model_id, a.outcome, a.committed) for a in entry.attempts] == [("s", "ok", False), ("l", "ok", True)]
    wasted = entry.attempts[0].usage
    assert (6 <= wasted.output_tokens <= 9, wasted.estimated, wasted.input_tokens > 0) == (True, True, True)
    assert entry.usage.output_tokens == wasted.output_tokens + 3
    assert (entry.reason, entry.model_id) == ("check:logprobs", "l")
    assert reply.headers["x-llmrouter-model"] == "l"
    assert reply.headers["x-llmrouter-check"] == "logprobs 0.12"


async def test_the_time_to_the_first_byte_tells_of_the_hold(tmp_path):
    """An attempt's own time is the engine's; the entry's is when the client got something."""
    gate = Signal()
    async with (
        FakeBackend(Held(gate, Answer(WORDS), after=4)) as small,
        FakeBackend() as large,
        running(two(small, large), tmp_path) as gateway,
    ):
        follow_script(gateway, judging(Hold(1000, 0.3)))
        async with Wire(gateway) as client:
            await client.ask(stream=True)
            await client.until(b"w0")
            gate.set()
            await client.until(b"[DONE]")
            (entry,) = await gateway.settled(1)
    assert entry.ttft_s is not None
    assert entry.attempts[0].ttft_s is not None
    assert 0.3 <= entry.ttft_s <= entry.total_s
    assert entry.attempts[0].ttft_s < 0.3


async def test_the_deadline_of_a_hold_waits_for_the_first_output(tmp_path):
    gate = Signal()
    outcomes: list[Outcome] = []
    async with (
        FakeBackend(Held(gate, Answer(WORDS), after=1)) as small,
        FakeBackend() as large,
        running(two(small, large), tmp_path) as gateway,
        Wire(gateway) as client,
    ):
        follow_script(gateway, judging(Hold(1000, 0.001), outcomes=outcomes))
        await client.ask(stream=True)
        await until(lambda: bool(small.calls) and small.calls[0].chunks_sent == 1)
        assert outcomes == []
        gate.set()
        await client.until(b"[DONE]")
    assert seen(outcomes[0]).texts[0].startswith("w0")


async def test_a_hold_ends_when_the_clients_patience_does(tmp_path):
    """By then a stream must have begun, so what has come is judged."""
    gate = Signal()
    async with (
        FakeBackend(Held(gate, Answer(WORDS), after=4)) as small,
        FakeBackend() as large,
        running(two(small, large), tmp_path) as gateway,
        Wire(gateway) as client,
    ):
        follow_script(gateway, judging(LONG_HOLD))
        await client.ask(stream=True, headers={"x-stainless-read-timeout": "0.3"})
        await client.until(b"w0")
        gate.set()
        await client.until(b"[DONE]")
        (entry,) = await gateway.settled(1)
    assert entry.status == 200
    assert entry.ttft_s is not None
    assert 0.3 <= entry.ttft_s < 3


async def test_an_answer_that_ends_in_the_hold_is_judged_whole(tmp_path):
    outcomes: list[Outcome] = []
    async with (
        FakeBackend(Answer("short one", usage=usage(4, 2))) as small,
        FakeBackend() as large,
        running(two(small, large), tmp_path) as gateway,
    ):
        follow_script(gateway, judging(LONG_HOLD, outcomes=outcomes))
        reply = await gateway.chat(stream=True)
        (entry,) = gateway.books()
    observed = seen(outcomes[0])
    assert (observed.texts, observed.finish, observed.whole) == (("short one",), ("stop",), True)
    assert text_of(reply.content) == "short one"
    assert entry.usage.output_tokens == 2


BROKEN: dict[str, tuple[Step, str]] = {
    "an error event": (ErrorInside({"message": "out of memory", "code": 500}, Answer(WORDS), after=4), "server_error"),
    "a reset": (Reset(Answer(WORDS), after=4), "reset"),
    "silence": (Hang(Answer(WORDS), after=4), "timeout"),
    "a cut": (Truncate(Answer(WORDS), after=4), "reset"),
    "an early end": (
        RawSse((event({"choices": [{"index": 0, "delta": {"content": "w0"}}]}), b"data: [DONE]\n\n")),
        "protocol",
    ),
}


@pytest.mark.parametrize(("step", "failure"), BROKEN.values(), ids=BROKEN)
async def test_a_stream_that_breaks_while_it_is_held_back_is_a_failure_for_the_plan(tmp_path, step, failure):
    outcomes: list[Outcome] = []
    async with (
        FakeBackend(step) as small,
        FakeBackend(BEST) as large,
        running(two(small, large, pools=f"{ALONE}timeouts.between_chunks_s = 0.2\n"), tmp_path) as gateway,
    ):
        follow_script(gateway, judging(LONG_HOLD, outcomes=outcomes))
        reply = await gateway.chat(stream=True)
        (entry,) = gateway.books()
        await until(lambda: idle(gateway))
    assert text_of(reply.content) == "the better answer"
    assert outcomes[0].failure == entry.attempts[0].outcome == failure
    assert entry.attempts[0].usage.output_tokens > 0
    assert entry.reason == f"fallback:{outcomes[0].failure}"


async def test_g008_nothing_is_sent_when_the_escalation_fails_too(tmp_path):
    """The held prefix of a rejected answer is no preamble: the client gets a status and an error body."""
    async with (
        FakeBackend(Answer(WORDS)) as small,
        FakeBackend(HttpError(503)) as large,
        running(two(small, large), tmp_path) as gateway,
    ):
        follow_script(gateway, judging(Hold(4, 30.0), bad))
        reply = await gateway.chat(stream=True)
        (entry,) = gateway.books()
    assert reply.status_code == 503
    assert reply.headers["content-type"] == "application/json"
    assert reply.json()["error"]["code"]
    assert (entry.ttft_s, entry.model_id) == (None, None)


async def test_g014_a_break_after_the_escalation_ends_in_an_error_event(tmp_path):
    async with (
        FakeBackend(Answer(WORDS)) as small,
        FakeBackend(Reset(Answer(WORDS), after=8)) as large,
        running(two(small, large), tmp_path) as gateway,
    ):
        follow_script(gateway, judging(Hold(4, 30.0), bad))
        reply = await gateway.chat(stream=True)
        (entry,) = gateway.books()
    assert reply.status_code == 200
    assert "error" in parse_sse(reply.content)[-1]
    assert [(a.model_id, a.outcome) for a in entry.attempts] == [("s", "ok"), ("l", "reset")]
    assert entry.attempts[1].committed


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("phase", ["held back", "waiting for the better model", "streaming the better model"])
async def test_g039_leaving_a_cascade_ends_its_call(tmp_path, phase, how):
    good = Hang(Answer(WORDS), after=6) if phase == "streaming the better model" else Hang(after="request")
    hold = LONG_HOLD if phase == "held back" else Hold(4, 30.0)
    async with (
        FakeBackend(Hang(Answer(WORDS), after=8)) as small,
        FakeBackend(good) as large,
        running(two(small, large, pools=ALONE), tmp_path) as gateway,
    ):
        follow_script(gateway, judging(hold, bad))
        async with Wire(gateway) as client:
            await client.ask(stream=True)
            engine = small if phase == "held back" else large
            call = await engine.call(1)
            if phase.startswith("streaming"):
                await client.until(b"w3")
            elif phase == "held back":
                await until(lambda: call.chunks_sent == 8)
            client.leave(how)
            await call.disconnected.wait(1.0)
            (entry,) = await gateway.settled(1)
        await until(lambda: idle(gateway))
    assert (entry.status, entry.error_code, entry.aborted) == (499, "client_cancelled", True)
    assert entry.attempts[-1].outcome == "client_cancelled"
    if phase == "held back":
        assert (entry.attempts[0].usage.output_tokens > 0, entry.ttft_s) == (True, None)
    else:
        assert entry.attempts[0].outcome == "ok"


@pytest.mark.parametrize(
    ("answer", "fields"),
    [
        (Answer(tool_calls=(ToolCall("add", '{"a": 1, "b": 2}'),)), {}),
        (Answer(("one two three", "four five six")), {"n": 2}),
    ],
    ids=["a tool call", "several choices"],
)
async def test_what_says_nothing_in_parts_is_held_whole(tmp_path, answer, fields):
    outcomes: list[Outcome] = []
    async with (
        FakeBackend(answer) as small,
        FakeBackend() as large,
        running(two(small, large), tmp_path) as gateway,
    ):
        follow_script(gateway, judging(Hold(1, 30.0), outcomes=outcomes))
        reply = await gateway.chat(stream=True, **fields)
    observed = seen(outcomes[0])
    assert observed.whole
    folded = fold_chunks(parse_sse(reply.content))["choices"]
    assert [choice["message"].get("content") or "" for choice in folded] == list(observed.texts)
    if not fields:
        assert observed.tool_calls == ((("add", '{"a": 1, "b": 2}'),),)


async def test_a_stream_without_a_hold_is_observed_at_its_first_output(tmp_path):
    gate = Signal()
    outcomes: list[Outcome] = []

    def script(request: ChatRequest) -> Steps:
        outcome = yield Target("s", "small", "policy", observe=True)
        outcomes.append(outcome)
        return None

    async with (
        FakeBackend(Held(gate, Answer(WORDS), after=2)) as small,
        FakeBackend() as large,
        running(two(small, large), tmp_path) as gateway,
        Wire(gateway) as client,
    ):
        follow_script(gateway, script)
        await client.ask(stream=True)
        await client.until(b"w0")
        gate.set()
        await client.until(b"[DONE]")
    assert (seen(outcomes[0]).texts, seen(outcomes[0]).whole) == (("w0",), False)


async def test_a_plan_cannot_stream_to_a_client_that_wants_one_answer(tmp_path):
    """Its own question is then asked whole, and so is one for more choices than the client's."""
    outcomes: list[Outcome] = []

    def script(request: ChatRequest) -> Steps:
        outcome = yield held(request, Hold(1, 30.0), n=2)
        outcomes.append(outcome)
        return Accepted(outcome, choice=1)

    async with (
        FakeBackend(Answer(("a", "b")), Answer(("a", "b"))) as small,
        FakeBackend() as large,
        running(two(small, large), tmp_path) as gateway,
    ):
        follow_script(gateway, script)
        whole = await gateway.chat()
        streamed = await gateway.chat(stream=True)
        sent = [call.request for call in small.calls]
    assert [(request.stream, "stream_options" in request.fields) for request in sent] == [(False, False)] * 2
    assert whole.json()["choices"][0]["message"]["content"] == "b"
    assert text_of(streamed.content) == "b"
    assert [seen(outcome).texts for outcome in outcomes] == [("a", "b"), ("a", "b")]
