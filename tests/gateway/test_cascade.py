"""The cascade plan through the gateway, with scripted engines: what simulations replay is what is served."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from llmrouter.protocols import PlanInput
from llmrouter.routing.cascade import CascadeOptions, CascadePlan
from llmrouter.routing.evidence import Check, Evidence, Move, Offers, Prediction
from llmrouter.testing import Answer, FakeBackend, Hang, Step, fold_chunks, parse_sse, usage
from llmrouter.types import Decision, Hold
from tests.gateway.rig import PATIENT
from tests.support import Running, model, pool, running, tier

WORDS = " ".join(f"w{position}" for position in range(30))


class Threshold:
    """Accepts what most voters, the first tokens, or the model itself find right; else the large model answers."""

    def __init__(self, check: Check, *, peers: int = 0) -> None:
        self._move = Move("check", "small", check, peers=peers, score=0.5, reason="policy")

    def first(self, prediction: Prediction, offers: Offers) -> Move:
        return self._move

    def following(self, prediction: Prediction, offers: Offers, evidence: Sequence[Evidence]) -> Move:
        newest = evidence[-1]
        if self._sure(newest):
            most = max(newest.votes, key=lambda vote: (vote >= 0, newest.votes.count(vote)))
            choice = newest.votes.index(most)
            return Move("accept", "small", choice=choice, score=0.9, reason=f"{newest.check}:accepted")
        return Move("route", "large", score=0.3, reason=f"check:{newest.check}")

    def _sure(self, newest: Evidence) -> bool:
        if newest.check == "agreement":
            return max(newest.votes.count(vote) for vote in newest.votes if vote >= 0) >= 2
        if newest.check == "self_check":
            return newest.p_true is not None and newest.p_true > 0.5
        return newest.signals is not None and newest.signals.mean_logprob > -0.5


class Cascades:
    """A strategy that makes a cascade plan of every request."""

    def __init__(self, policy: Threshold, peers: Sequence[str] = ("p",), *, held: bool = False) -> None:
        self._policy = policy
        self._peers = peers
        self._held = held

    def plan(self, given: PlanInput) -> CascadePlan:
        prediction = Prediction({"small": 0.5, "large": 0.9})
        checks: frozenset[Check] = frozenset({"agreement", "self_check", "logprobs"})
        offers = Offers(frozenset({"small", "large"}), checks, peers=len(self._peers), kind="number")
        move = self._policy.first(prediction, offers)
        return CascadePlan(
            Decision("cascade", move.reason, route="cascade", score=move.score),
            self._policy,
            prediction,
            offers,
            request=given.request,
            chain=given.candidates,
            peers=[
                dataclasses.replace(given.candidates[0], model_id=model_id, role=f"peer{number}")
                for number, model_id in enumerate(self._peers, start=1)
            ],
            first=move,
            options=CascadeOptions(Hold(6, 30.0), retries=0, max_wait_s=0),
            deadline_s=given.deadline_s,
            held=self._held,
        )


@contextlib.asynccontextmanager
async def cascading(
    tmp_path: Path, policy: Threshold, *, small: Sequence[Step], large: Sequence[Step] = (), peer: Sequence[Step] = ()
) -> AsyncIterator[tuple[Running, FakeBackend, FakeBackend, FakeBackend]]:
    """A gateway whose tier has a small and a large model and a peer; a stream is held back, all else comes whole."""
    async with FakeBackend(*small) as s, FakeBackend(*large) as b, FakeBackend(*peer) as p:
        models = model("s") + model("l", usd_in="10", usd_out="20") + model("p")
        pools = pool("s", [s.url], extra=PATIENT) + pool("l", [b.url], extra=PATIENT) + pool("p", [p.url])
        auto = tier("auto", small="s", large="l")
        async with running(models + pools + auto, tmp_path) as gateway:
            gateway.assembly.state.tiers["auto"].strategy = Cascades(policy)
            yield gateway, s, b, p


def content(body: bytes) -> str:
    text: str = fold_chunks(parse_sse(body))["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize("stream", [False, True])
async def test_samples_that_agree_are_accepted(tmp_path, stream):
    samples = Answer(("It is 42.", "The answer is 41."), usage=usage(20, 9))
    policy = Threshold("agreement", peers=2)
    async with cascading(tmp_path, policy, small=[samples, samples]) as (gateway, small, large, peer):
        gateway.assembly.state.tiers["auto"].strategy = Cascades(policy, peers=("s", "s"))
        reply = await gateway.chat("6 * 7?", stream=stream, max_tokens=20)
        (entry,) = gateway.books()
    assert (len(small.calls), large.calls, peer.calls) == (2, [], [])
    assert sorted(call.request.n for call in small.calls) == [1, 2]
    text = content(reply.content) if stream else reply.json()["choices"][0]["message"]["content"]
    assert text == "It is 42."
    assert reply.headers["x-llmrouter-check"].startswith("agreement 2/3")
    assert (entry.reason, entry.route, entry.score) == ("agreement:accepted", "cascade", 0.5)
    assert entry.usage.output_tokens == 18


@pytest.mark.parametrize("stream", [False, True])
async def test_a_peer_that_disagrees_makes_the_better_model_answer(tmp_path, stream):
    policy = Threshold("agreement", peers=1)
    async with cascading(tmp_path, policy, small=[Answer("41")], peer=[Answer("43")], large=[Answer("It is 42")]) as (
        gateway,
        small,
        large,
        peer,
    ):
        reply = await gateway.chat("6 * 7?", stream=stream, max_tokens=20)
        (entry,) = gateway.books()
    assert [call.request.stream for call in (*small.calls, *peer.calls, *large.calls)] == [False, False, stream]
    text = content(reply.content) if stream else reply.json()["choices"][0]["message"]["content"]
    assert text == "It is 42"
    assert [(a.role, a.outcome, a.committed) for a in entry.attempts] == [
        ("small", "ok", False),
        ("peer1", "ok", False),
        ("large", "ok", True),
    ]
    assert entry.reason == "check:agreement"


@pytest.mark.parametrize(("yes", "text"), [("Yes", "mine"), ("No", "theirs")])
async def test_a_model_that_doubts_its_answer_is_replaced(tmp_path, yes, text):
    policy = Threshold("self_check")
    async with cascading(
        tmp_path, policy, small=[Answer("mine"), Answer(yes, logprobs=(-0.01,))], large=[Answer("theirs")]
    ) as (gateway, small, *_):
        reply = await gateway.chat("Who?")
    assert reply.json()["choices"][0]["message"]["content"] == text
    question = small.calls[1].request
    assert (question.output_cap, question.top_logprobs) == (1, 20)
    assert question.fields["messages"][-2] == {"role": "assistant", "content": "mine"}
    assert reply.headers["x-llmrouter-check"].startswith("self_check")


@pytest.mark.parametrize(("logprob", "given"), [(-0.1, "s"), (-2.0, "l")])
async def test_a_held_stream_is_committed_or_cancelled_by_its_first_tokens(tmp_path, logprob, given):
    sure = Answer(WORDS, logprobs=(logprob,))
    policy = Threshold("logprobs")
    step = sure if given == "s" else Hang(sure, after=10)
    async with cascading(tmp_path, policy, small=[step], large=[Answer("theirs")]) as (gateway, small, *_):
        gateway.assembly.state.tiers["auto"].strategy = Cascades(policy, held=True)
        reply = await gateway.chat("Tell me", stream=True)
        (entry,) = gateway.books()
        if given == "l":
            await small.calls[0].disconnected.wait(1.0)
    assert content(reply.content) == (WORDS if given == "s" else "theirs")
    assert b"logprob" not in reply.content.replace(b'"logprobs":null', b"")
    assert (entry.model_id, entry.checks.partition(" ")[0]) == (given, "logprobs")
