"""The cascade plan, driven by hand: a policy that plays a script, and outcomes as a gateway would send them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from llmrouter.routing.cascade import CascadeOptions, CascadePlan
from llmrouter.routing.evidence import Evidence, Move, Offers, Prediction
from llmrouter.types import (
    Accepted,
    ChatRequest,
    Decision,
    Failure,
    Hold,
    Observation,
    Outcome,
    Target,
    TokenSignals,
)
from tests.routing.rig import ALL, candidate

PEERS = (candidate("peer1", "p1"), candidate("peer2", "p2"), candidate("peer3", "p3"))
SIGNALS = TokenSignals(tokens=8, mean_logprob=-0.1, min_logprob=-0.5, first_logprob=-0.2)


class Script:
    """A policy that plays its moves in order and keeps the evidence it was shown."""

    def __init__(self, *moves: Move) -> None:
        self.moves = list(moves)
        self.shown: list[Evidence] = []

    def first(self, prediction: Prediction, offers: Offers) -> Move:
        return self.moves.pop(0)

    def following(self, prediction: Prediction, offers: Offers, evidence: Sequence[Evidence]) -> Move:
        self.shown.append(evidence[-1])
        return self.moves.pop(0)


def request(**changes) -> ChatRequest:
    fields: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "What is 6 times 7?"}]}
    fields |= {"stream": True} if changes.get("stream") else {}
    return ChatRequest(endpoint="chat", model="auto", fields=fields, last_user_text="What is 6 times 7?", **changes)


def cascade(*moves: Move, asked: ChatRequest | None = None, held=False, **changes) -> tuple[CascadePlan, Script]:
    script = Script(*moves)
    prediction = Prediction({"small": 0.6, "large": 0.8, "frontier": 0.9})
    offers = Offers(
        frozenset({"small", "large", "frontier"}),
        frozenset({"agreement", "self_check"}),
        3,
        changes.pop("kind", "number"),
    )
    plan = CascadePlan(
        Decision("cascade", "policy", route="cascade"),
        script,
        prediction,
        offers,
        request=asked or request(),
        chain=ALL,
        peers=changes.pop("peers", PEERS),
        first=script.first(prediction, offers),
        options=CascadeOptions(Hold(24, 0.4), retries=changes.pop("retries", 1)),
        deadline_s=60.0,
        held=held,
        **changes,
    )
    return plan, script


def check(peers=2, **more) -> Move:
    return Move("check", "small", "agreement", peers=peers, reason="check it", **more)


def said(target: Target, *texts: str, finish="stop", signals=(), first_token=None, beside=(), whole=True) -> Outcome:
    seen = Observation(
        texts=texts,
        finish=tuple(finish for _ in texts),
        tool_calls=tuple(() for _ in texts),
        refused=tuple(False for _ in texts),
        signals=signals,
        first_token=first_token or {},
        whole=whole,
    )
    return Outcome(target, status=200, seen=seen, beside=tuple(beside))


def failed(target: Target, failure=Failure.TIMEOUT, beside=()) -> Outcome:
    return Outcome(target, failure=failure, beside=tuple(beside))


def end(steps, outcome: Outcome) -> Accepted | None:
    with pytest.raises(StopIteration) as stopped:
        steps.send(outcome)
    accepted: Accepted | None = stopped.value.value
    return accepted


def refuse_all(steps, target: Target, asked: list[str] | None = None) -> Accepted | None:
    """Fail every further call, and note whom they were to."""
    for _ in range(20):
        if asked is not None:
            asked.append(target.model_id)
        try:
            target = steps.send(failed(target, Failure.REFUSED))
        except StopIteration as stopped:
            accepted: Accepted | None = stopped.value
            return accepted
    raise AssertionError("the plan never ends")


def test_the_small_model_and_its_peers_are_asked_at_once_and_their_agreement_is_shown():
    plan, script = cascade(check(), Move("accept", "small", choice=0, score=0.97, reason="2 of 3 agree"))
    steps = plan.steps()
    lead = next(steps)
    assert (lead.model_id, lead.observe) == ("m8", True)
    assert [each.model_id for each in lead.beside] == ["p1", "p2"]
    assert all(each.observe and each.ask is not None for each in lead.beside)
    outcome = said(lead, "It is 42.", beside=[said(lead.beside[0], "42"), said(lead.beside[1], "The answer is 41")])
    accepted = end(steps, outcome)
    assert accepted == Accepted(outcome, 0, "2 of 3 agree", "agreement 2/3 0.97")
    (evidence,) = script.shown
    assert (evidence.votes, evidence.voters) == ((0, 0, 1), ("small", "peer1", "peer2"))


def test_a_quoted_option_agrees_with_its_letter():
    asked = dataclasses.replace(request(), last_user_text="Which?\nA. a red fox\nB. a blue whale\n")
    plan, script = cascade(check(1), Move("accept", "small"), asked=asked, kind="choice")
    steps = plan.steps()
    lead = next(steps)
    end(steps, said(lead, "A blue whale", beside=[said(lead.beside[0], "B")]))
    assert script.shown[-1].votes == (0, 0)


def test_a_peers_answer_may_be_the_accepted_one():
    plan, _ = cascade(check(), Move("accept", "small", choice=1))
    steps = plan.steps()
    lead = next(steps)
    better = said(lead.beside[0], "42")
    accepted = end(steps, said(lead, "40", beside=[better, said(lead.beside[1], "42")]))
    assert accepted is not None
    assert accepted.outcome is better


def test_more_peers_are_asked_without_asking_anyone_twice():
    plan, script = cascade(check(1), check(3), Move("accept", "small"))
    steps = plan.steps()
    lead = next(steps)
    more = steps.send(said(lead, "40", beside=[said(lead.beside[0], "42")]))
    assert [more.model_id, *(each.model_id for each in more.beside)] == ["p2", "p3"]
    end(steps, said(more, "42", beside=[said(more.beside[0], "42")]))
    assert script.shown[-1].votes == (0, 1, 1, 1)


def test_a_peer_that_fails_is_a_missing_vote():
    plan, script = cascade(check(), Move("accept", "small"))
    steps = plan.steps()
    lead = next(steps)
    end(steps, said(lead, "42", beside=[failed(lead.beside[0]), said(lead.beside[1], "42")]))
    assert script.shown[-1].voters == ("small", "peer2")


def test_disagreement_goes_to_the_large_model_whose_answer_is_judged_too():
    plan, script = cascade(check(), Move("check", "large", "agreement", peers=2), Move("accept", "large", choice=3))
    steps = plan.steps()
    lead = next(steps)
    large = steps.send(said(lead, "40", beside=[said(lead.beside[0], "41"), said(lead.beside[1], "42")]))
    assert (large.model_id, large.beside) == ("m70", ())
    answer = said(large, "42")
    accepted = end(steps, answer)
    assert accepted is not None
    assert accepted.outcome is answer
    assert script.shown[-1].votes == (0, 1, 2, 2)


def test_an_escalation_falls_back_like_any_other_route():
    plan, _ = cascade(check(), Move("route", "large", reason="p 0.4"))
    steps = plan.steps()
    lead = next(steps)
    large = steps.send(said(lead, "40", beside=[said(each, "41") for each in lead.beside]))
    frontier = steps.send(failed(large, Failure.REFUSED))
    assert (frontier.model_id, frontier.reason) == ("hosted", "fallback:refused")
    accepted = end(steps, Outcome(frontier, status=200))
    assert accepted is not None
    assert accepted.outcome.target.model_id == "hosted"


def test_what_is_shown_of_a_check_has_no_score_of_the_model_that_takes_over():
    plan, _ = cascade(check(), Move("route", "frontier", score=0.99, reason="agreement:2/3 0.41 < frontier 0.99"))
    steps = plan.steps()
    lead = next(steps)
    better = steps.send(said(lead, "40", beside=[said(lead.beside[0], "42"), said(lead.beside[1], "42")]))
    accepted = end(steps, Outcome(better, status=200))
    assert accepted is not None
    assert (accepted.check, accepted.reason) == ("agreement 2/3", "agreement:2/3 0.41 < frontier 0.99")


def test_the_best_answer_is_kept_when_every_better_model_fails():
    plan, _ = cascade(check(), Move("route", "frontier"))
    steps = plan.steps()
    lead = next(steps)
    first = said(lead, "40", beside=[said(lead.beside[0], "42"), said(lead.beside[1], "42")])
    target = steps.send(first)
    accepted = refuse_all(steps, target)
    assert accepted is not None
    assert accepted.outcome.seen is not None
    assert accepted.outcome.seen.texts == ("42",)
    assert accepted.reason == "kept:refused"


def test_a_model_that_has_answered_is_not_asked_again_when_better_ones_fail():
    plan, _ = cascade(check(), Move("route", "large"))
    steps = plan.steps()
    lead = next(steps)
    target = steps.send(said(lead, "42", beside=[said(lead.beside[0], "42"), failed(lead.beside[1])]))
    asked: list[str] = []
    accepted = refuse_all(steps, target, asked)
    assert accepted is not None
    assert accepted.outcome.target.model_id == "m8"
    assert asked == ["m70", "hosted"]


def test_a_client_that_is_gone_gets_nothing_kept():
    plan, _ = cascade(check(), Move("route", "frontier"))
    steps = plan.steps()
    lead = next(steps)
    target = steps.send(said(lead, "40"))
    assert end(steps, failed(target, Failure.CANCELLED)) is None


def test_a_small_model_that_fails_is_replaced_by_a_better_one():
    plan, script = cascade(check())
    steps = plan.steps()
    lead = next(steps)
    target = steps.send(failed(lead, Failure.RATE_LIMITED, beside=[said(lead.beside[0], "42")]))
    assert (target.model_id, target.reason) == ("m70", "fallback:rate_limited")
    assert script.shown == []


def test_a_bad_request_ends_it_at_once():
    plan, _ = cascade(check())
    steps = plan.steps()
    assert end(steps, failed(next(steps), Failure.BAD_REQUEST)) is None


def test_an_answer_with_a_format_fault_is_replaced_by_a_better_models():
    plan, _ = cascade(Move("route", "small", reason="easy"))
    steps = plan.steps()
    small = next(steps)
    large = steps.send(said(small, ""))
    assert (large.model_id, large.reason) == ("m70", "check:empty")
    accepted = end(steps, said(large, "42"))
    assert accepted is not None
    assert accepted.check == "format empty"


def test_the_best_models_answer_is_not_examined():
    plan, _ = cascade(Move("route", "frontier"))
    steps = plan.steps()
    assert next(steps).observe is False


def test_self_check_asks_the_small_model_about_its_own_answer():
    plan, script = cascade(Move("check", "small", "self_check"), Move("accept", "small"))
    steps = plan.steps()
    lead = next(steps)
    assert lead.beside == ()
    question = steps.send(said(lead, "It is 42."))
    assert question.model_id == "m8"
    assert question.ask is not None
    assert question.ask.fields["messages"][-2]["content"] == "It is 42."
    accepted = end(steps, said(question, "Yes", first_token={"Yes": -0.1, "No": -2.4}))
    assert script.shown[-1].p_true == pytest.approx(0.909, abs=0.01)
    assert accepted is not None
    assert accepted.outcome.seen is not None
    assert accepted.outcome.seen.texts == ("It is 42.",)


SAMPLES = (candidate("peer1", "m8"), candidate("peer2", "m8"))


def test_further_samples_of_the_small_model_come_from_one_call_beside_its_own_answer():
    """Its own answer stays the one at the client's temperature, as labels have it."""
    plan, script = cascade(check(3), Move("accept", "small", choice=2), peers=(*SAMPLES, PEERS[2]))
    steps = plan.steps()
    lead = next(steps)
    assert lead.ask is not None
    assert "n" not in lead.ask.fields
    together, other = lead.beside
    assert together.ask is not None
    assert (together.model_id, together.ask.n, other.model_id) == ("m8", 2, "p3")
    sampled = said(together, "42", "42")
    accepted = end(steps, said(lead, "41", beside=[sampled, said(other, "42")]))
    assert accepted is not None
    assert (accepted.outcome, accepted.choice) == (sampled, 1)
    assert script.shown[-1].votes == (0, 1, 1, 1)
    assert script.shown[-1].voters == ("small", "peer1", "peer2", "peer3")


def test_samples_are_asked_side_by_side_where_the_engine_gives_one_choice_a_call():
    plan, script = cascade(check(2), Move("accept", "small"), peers=SAMPLES, at_once=False)
    steps = plan.steps()
    lead = next(steps)
    assert [each.model_id for each in lead.beside] == ["m8", "m8"]
    assert lead.ask is not None
    assert "n" not in lead.ask.fields
    end(steps, said(lead, "41", beside=[said(each, "42") for each in lead.beside]))
    assert script.shown[-1].voters == ("small", "peer1", "peer2")
    assert script.shown[-1].votes == (0, 1, 1)


def test_an_engine_that_gives_more_choices_than_asked_has_one_vote():
    plan, script = cascade(check(0), Move("accept", "small"))
    steps = plan.steps()
    end(steps, said(next(steps), "41", "42"))
    assert script.shown[-1].votes == (0,)


def test_a_stream_is_held_back_and_committed_when_its_beginning_is_good():
    plan, script = cascade(
        Move("check", "small", "logprobs"), Move("accept", "small", score=0.9), asked=request(stream=True), held=True
    )
    steps = plan.steps()
    lead = next(steps)
    assert lead.hold == Hold(24, 0.4)
    assert lead.ask is not None
    assert lead.ask.stream
    assert lead.ask.fields["logprobs"] is True
    outcome = said(lead, "It is", finish=None, signals=(SIGNALS,), whole=False)
    accepted = end(steps, outcome)
    assert accepted is not None
    assert accepted.outcome is outcome
    assert script.shown[-1].signals == SIGNALS


def test_a_stream_that_was_left_behind_is_never_kept():
    plan, _ = cascade(
        Move("check", "small", "logprobs"), Move("route", "frontier"), asked=request(stream=True), held=True
    )
    steps = plan.steps()
    lead = next(steps)
    target = steps.send(said(lead, "It is", finish=None, whole=False))
    assert target.ask is None
    assert refuse_all(steps, target) is None


def test_a_short_stream_is_asked_whole():
    plan, _ = cascade(check(), asked=request(stream=True, include_usage=True, max_output_tokens=8))
    lead = next(plan.steps())
    assert lead.ask is not None
    assert not lead.ask.stream
    assert "stream" not in lead.ask.fields


def test_a_tenant_without_escalations_left_keeps_the_best_answer_there_is():
    plan, _ = cascade(check(), Move("route", "frontier"), may_escalate=lambda: False)
    steps = plan.steps()
    lead = next(steps)
    accepted = end(steps, said(lead, "40", beside=[said(lead.beside[0], "42"), said(lead.beside[1], "42")]))
    assert accepted is not None
    assert accepted.reason == "capped:escalation_share"
    assert accepted.outcome.seen is not None
    assert accepted.outcome.seen.texts == ("42",)


def test_a_policy_that_goes_round_in_circles_ends_at_its_best_answer():
    plan, _ = cascade(*(check(1) for _ in range(40)))
    steps = plan.steps()
    lead = next(steps)
    accepted = end(steps, said(lead, "42", beside=[said(lead.beside[0], "42")]))
    assert accepted is not None
    assert accepted.reason == "undecided"


def test_the_role_that_answered_is_told():
    roles: list[str] = []
    plan, _ = cascade(Move("route", "large"), ended=roles.append)
    steps = plan.steps()
    end(steps, said(next(steps), "42"))
    assert roles == ["large"]


def test_the_bound_covers_every_call_of_every_path():
    plan, _ = cascade(check())
    bound = plan.bound()
    calls = {each.model_id: 0 for each in bound.calls}
    for each in bound.calls:
        calls[each.model_id] += each.calls
    assert calls["p1"] == calls["p2"] == calls["p3"] == 1
    assert calls["m8"] >= 2 + 2  # its answer, the self-check, and one call with one retry
    assert calls["m70"] >= 1 + 2
    assert calls["hosted"] >= 2


def test_a_direct_route_reserves_no_checks():
    plan, _ = cascade(Move("route", "frontier"))
    assert all(each.model_id in ("m8", "m70", "hosted") for each in plan.bound().calls)


def test_peers_that_are_asked_later_have_a_pace_to_keep():
    plan, _ = cascade(check(1), check(2), Move("accept", "small"))
    steps = plan.steps()
    lead = next(steps)
    assert not lead.paced
    later = steps.send(said(lead, "42", beside=[said(lead.beside[0], "42")]))
    assert (later.model_id, later.beside, later.paced, later.linger_s) == ("p2", (), True, 1.0)


@pytest.mark.parametrize(("retries", "calls"), [(0, 1), (1, 2), (2, 3)])
def test_a_small_model_that_fails_is_asked_as_often_as_the_tier_says(retries, calls):
    plan, _ = cascade(check(1), retries=retries)
    steps = plan.steps()
    asked = [target := next(steps)]
    while target.model_id == "m8":
        target = steps.send(failed(target, Failure.SERVER, beside=[failed(each) for each in target.beside]))
        asked.append(target)
    assert [each.model_id for each in asked] == ["m8"] * calls + ["m70"]
    assert asked[-1].reason == "fallback:server_error"
    assert all(each.reason == "retry:server_error" for each in asked[1:-1])
