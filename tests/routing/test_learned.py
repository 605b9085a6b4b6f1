"""The learned strategies: what wins over the policy, what is offered to it, what conversations and tenants may do."""

import dataclasses
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest

from llmrouter.routing.ask import Ask
from llmrouter.routing.cascade import CascadeOptions, CascadePlan
from llmrouter.routing.conversations import ConversationMemory
from llmrouter.routing.escalation import EscalationShare
from llmrouter.routing.evidence import Evidence, Move, Offers, Prediction
from llmrouter.routing.learned import LearnedOptions, LearnedStrategy
from llmrouter.routing.plan import FallbackPlan
from llmrouter.routing.strategy import RulesStrategy
from llmrouter.types import Accepted, ChatRequest, Hold, Observation, Outcome, Price
from tests.routing.rig import ALL, auto, candidate, given, rule, rules

WITH_PEER = (*ALL, candidate("peer1", "spare"))
EVERY_CHECK = frozenset({"agreement", "self_check", "logprobs", "verifier"})
PRICES = {"m8": 0.1, "m70": 1.0, "hosted": 10.0, "spare": 0.1}


class Foreseen:
    """Predicts the same of everything."""

    def predict(self, ask: Ask) -> Prediction:
        return Prediction({"small": 0.6, "large": 0.8, "frontier": 0.9})


class Decided:
    """A policy that always makes the same first move and accepts what comes."""

    def __init__(self, move: Move) -> None:
        self.move = move
        self.offers: list[Offers] = []

    def first(self, prediction: Prediction, offers: Offers) -> Move:
        self.offers.append(offers)
        return self.move

    def following(self, prediction: Prediction, offers: Offers, evidence: Sequence[Evidence]) -> Move:
        return Move("accept", "small")


def price(model_id: str, input_tokens: int) -> Price:
    rate = Decimal(str(PRICES[model_id]))
    return Price("p", input_usd_per_mtok=rate, cached_usd_per_mtok=rate / 10, output_usd_per_mtok=rate)


def learned(move: Move = Move("route", "large"), *given_rules, able=("logprobs", "n"), **options) -> LearnedStrategy:  # noqa: B008
    chosen: dict[str, Any] = {"checks": EVERY_CHECK, "cascade": CascadeOptions(Hold(24, 0.4), verifier="v")} | options
    return LearnedStrategy(
        RulesStrategy("auto", auto(), rules(*given_rules)),
        Foreseen(),  # type: ignore[arg-type]
        Decided(move),
        LearnedOptions(**chosen),
        capabilities={model: frozenset(able) for model in PRICES},
        price=price,
        conversations=ConversationMemory(),
        share=EscalationShare(1.0),
    )


def asked(text: str = "What is 6 times 7?", *, earlier: Sequence[str] = (), **changes: Any) -> ChatRequest:
    messages: list[dict[str, str]] = []
    for each in earlier:
        messages += [{"role": "user", "content": each}, {"role": "assistant", "content": "well"}]
    messages.append({"role": "user", "content": text})
    fields: dict[str, Any] = {"model": "auto", "messages": messages}
    size = sum(len(each["content"]) for each in messages)
    return ChatRequest(
        endpoint="chat", model="auto", fields=fields, last_user_text=text, text_bytes=size, conversation="c", **changes
    )


def offered(request: ChatRequest, candidates: Any = WITH_PEER, **changes: Any) -> Offers:
    strategy = learned(**changes)
    return strategy.consider(given(request, candidates)).offers


def end(plan: CascadePlan) -> None:
    """Let the first target answer well."""
    steps = plan.steps()
    target = next(steps)
    with pytest.raises(StopIteration) as stopped:
        steps.send(Outcome(target, status=200))
    assert isinstance(stopped.value.value, Accepted)


def test_the_policys_move_is_the_plan_and_the_decision_tells_it():
    plan = learned(Move("route", "large", score=0.8, reason="predicted:large")).plan(given(asked()))
    assert isinstance(plan, CascadePlan)
    assert next(plan.steps()).model_id == "m70"
    assert (plan.decision.strategy, plan.decision.route, plan.decision.score) == ("cascade", "large", 0.8)
    assert plan.decision.reason == "predicted:large"


def test_a_tier_without_checks_is_called_router():
    assert learned(checks=frozenset()).plan(given(asked())).decision.strategy == "router"


def test_a_rule_that_matches_wins_over_the_policy():
    plan = learned(Move("route", "large"), rule("cheap", "small")).plan(given(asked()))
    assert isinstance(plan, FallbackPlan)
    assert plan.decision.reason == "rule:cheap"


def test_a_wish_of_the_request_wins_over_everything():
    plan = learned(Move("route", "large"), rule("cheap", "small")).plan(given(asked(role="frontier")))
    assert plan.decision.reason == "override:frontier"


def test_what_only_one_model_can_take_is_not_weighed():
    assert learned().plan(given(asked(), ALL[2:])).decision.reason == "capable:frontier"


def test_other_endpoints_go_by_the_rules():
    request = dataclasses.replace(asked(), endpoint="embeddings")
    assert learned().plan(given(request)).decision.strategy == "rules"


def test_whole_answers_may_be_checked_in_every_way():
    assert offered(asked()).checks == EVERY_CHECK
    assert offered(asked()).peers == 1


def test_a_stream_is_judged_by_its_beginning_unless_it_is_short():
    assert offered(asked(stream=True)).checks == {"logprobs"}
    assert offered(asked(stream=True, max_output_tokens=16)).checks == EVERY_CHECK


def test_without_logprobs_nothing_that_needs_them_is_offered():
    assert offered(asked(), able=()).checks == {"agreement", "verifier"}
    assert offered(asked(stream=True), able=()).checks == set()


def test_without_a_verifier_none_is_offered():
    without = CascadeOptions(Hold(24, 0.4))
    assert offered(asked(), cascade=without).checks == EVERY_CHECK - {"verifier"}


def test_a_client_that_wants_several_choices_gets_no_checks():
    assert offered(asked(n=2)).checks == set()


def test_without_anyone_to_agree_with_there_is_no_agreement():
    assert "agreement" not in offered(asked(), ALL).checks


def test_further_samples_take_the_places_of_missing_peers():
    assert offered(asked(), ALL, samples=3).peers == 2
    assert offered(asked(), samples=3).peers == 2
    plan = learned(Move("check", "small", "agreement", peers=2), samples=3).plan(given(asked(), ALL))
    (together,) = next(plan.steps()).beside
    assert together.ask is not None
    assert (together.model_id, together.ask.n) == ("m8", 2)


def test_a_request_that_the_small_model_cannot_take_is_not_checked():
    assert offered(asked(), ALL[1:]).checks == set()


def test_a_conversation_stays_where_it_is_while_its_cache_is_worth_more():
    """The large model has the long history in its cache; the small one would read it anew, and saves less than that."""
    strategy = learned(Move("route", "large"))
    history = ["x" * 4000]
    end(strategy.plan(given(asked(earlier=history), big())))  # type: ignore[arg-type]
    strategy.policy = Decided(Move("route", "small", reason="predicted:small"))
    PRICES["m8"] = 0.9
    try:
        plan = strategy.plan(given(asked(earlier=history), big()))
    finally:
        PRICES["m8"] = 0.1
    assert plan.decision.reason == "sticky:large"


def test_a_conversation_changes_to_a_model_that_is_much_cheaper():
    strategy = learned(Move("route", "large"))
    end(strategy.plan(given(asked(earlier=["x" * 4000]), big())))  # type: ignore[arg-type]
    strategy.policy = Decided(Move("route", "small", reason="predicted:small"))
    assert strategy.plan(given(asked(earlier=["x" * 4000]), big())).decision.reason == "predicted:small"


def test_a_conversation_may_always_go_to_a_better_model():
    strategy = learned(Move("route", "small"))
    end(strategy.plan(given(asked(earlier=["hi"]))))  # type: ignore[arg-type]
    strategy.policy = Decided(Move("route", "frontier", reason="predicted:frontier"))
    assert strategy.plan(given(asked(earlier=["hi"]))).decision.reason == "predicted:frontier"


def test_a_peers_answer_does_not_tie_a_conversation_to_the_peer():
    strategy = learned(Move("check", "small", "agreement", peers=1))
    strategy.policy.following = lambda *_: Move("accept", "small", choice=1)  # type: ignore[method-assign]
    steps = strategy.plan(given(asked(earlier=["hi"]), WITH_PEER)).steps()
    lead = next(steps)
    seen = Observation(("41",), ("stop",))
    with pytest.raises(StopIteration) as stopped:
        steps.send(Outcome(lead, status=200, seen=seen, beside=(Outcome(lead.beside[0], status=200, seen=seen),)))
    assert stopped.value.value.outcome.target.role == "peer1"
    strategy.policy = Decided(Move("route", "large", reason="predicted:large"))
    assert strategy.plan(given(asked(earlier=["hi"]), WITH_PEER)).decision.reason == "predicted:large"


def test_a_first_turn_is_decided_by_itself():
    strategy = learned(Move("route", "large"))
    end(strategy.plan(given(asked())))  # type: ignore[arg-type]
    strategy.policy = Decided(Move("route", "small", reason="predicted:small"))
    assert strategy.plan(given(asked())).decision.reason == "predicted:small"


def test_a_tenant_that_has_used_up_its_escalations_gets_the_small_model():
    strategy = learned(Move("route", "frontier", reason="predicted:frontier"))
    strategy._share = EscalationShare(0.01, burst=2)
    reasons = [strategy.plan(given(asked())).decision.reason for _ in range(4)]
    assert reasons == ["predicted:frontier"] * 2 + ["capped:escalation_share"] * 2


def big() -> tuple[Any, ...]:
    return tuple(dataclasses.replace(each, input_tokens=2000, output_tokens=20) for each in ALL)
