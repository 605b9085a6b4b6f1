"""Why a learned tier sends a request where it does, in the words of `rules explain`."""

import pytest

from llmrouter.protocols import PlanInput
from llmrouter.routing.ask import Ask
from llmrouter.routing.evidence import Move, Prediction
from llmrouter.routing.explain import Explanation
from llmrouter.routing.explain_learned import explain_learned
from llmrouter.routing.learned import LearnedStrategy
from tests.routing.rig import ALL, candidate, given, rule
from tests.routing.test_learned import WITH_PEER, asked, learned


class Telling:
    """Predicts the same of everything, and says why."""

    def predict(self, ask: Ask) -> Prediction:
        return Prediction({"small": 0.61239, "large": 0.8, "frontier": 0.9}, novelty=0.25)

    def explain(self, ask: Ask) -> list[str]:
        return [f"the word {ask.text.split()[0]!r}: small -0.20"]


def explained(strategy: LearnedStrategy, request: PlanInput) -> Explanation:
    strategy.predictor = Telling()  # type: ignore[assignment]
    return explain_learned(strategy, request)


def test_a_direct_route_is_told_with_what_was_predicted_and_why():
    found = explained(learned(Move("route", "large", score=0.8, reason="predicted:large")), given(asked(), ALL))
    assert (found.role, found.model_id, found.reason, found.rule_id) == ("large", "m70", "predicted:large", None)
    assert [link.model_id for link in found.chain] == ["m70", "hosted", "m8"], "the lesser one comes last"
    assert found.learned is not None
    assert found.learned.quality == {"small": 0.6124, "large": 0.8, "frontier": 0.9}
    assert (found.learned.novelty, found.learned.check, found.learned.action) == (0.25, "none", "route")
    assert found.learned.because == ("the word 'What': small -0.20",)
    assert found.to_dict()["learned"]["score"] == 0.8


def test_a_check_is_told_with_the_model_that_is_asked_first():
    move = Move("check", "small", check="agreement", peers=1, score=0.7, reason="check:agreement")
    found = explained(learned(move), given(asked(), WITH_PEER))
    assert (found.role, found.model_id) == ("small", "m8")
    assert found.learned is not None
    assert (found.learned.check, found.learned.peers, found.learned.sees) == ("agreement", 1, "whole answers")
    assert "agreement" in found.learned.checks
    assert found.max_attempts > 2


def test_of_a_long_stream_only_the_beginning_is_seen():
    found = explained(learned(Move("route", "small", score=0.6)), given(asked(stream=True), WITH_PEER))
    assert found.learned is not None
    assert (found.learned.sees, found.learned.checks) == ("the beginning of a stream", ("logprobs",))


@pytest.mark.parametrize(
    ("strategy", "request_", "reason"),
    [
        (learned(Move("route", "large"), rule("cheap", "small")), given(asked(), ALL), "rule:cheap"),
        (learned(Move("route", "large")), given(asked(), [candidate("small")]), "default:small"),
        (learned(Move("route", "large")), given(asked(role="frontier"), ALL), "override:frontier"),
    ],
)
def test_where_the_policy_does_not_decide_nothing_is_told_of_it(
    strategy: LearnedStrategy, request_: PlanInput, reason: str
):
    found = explained(strategy, request_)
    assert (found.learned, found.reason) == (None, reason)
    assert found.chain[0].role == found.role
