import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.routing.checked import CheckedPolicy, CheckTable
from llmrouter.routing.confidence import CONFIDENCE_FEATURES, Confidence
from llmrouter.routing.evidence import Evidence, Move, Offers, Prediction
from llmrouter.types import TokenSignals

COSTS = {"small": 0.01, "large": 0.1, "frontier": 1.0}
SURE = TokenSignals(tokens=5, mean_logprob=-0.01, min_logprob=-0.05, first_logprob=-0.01)
UNSURE = TokenSignals(tokens=5, mean_logprob=-2.0, min_logprob=-5.0, first_logprob=-1.5)
WEIGHTS = tuple(4.0 if name == "mean_logprob" else 0.0 for name in CONFIDENCE_FEATURES)
LOGPROBS = CheckTable("logprobs", (0.05, 0.3, 0.7, 0.95, 0.99), 0.0, Confidence(WEIGHTS, 3.0, 500))
SELF_CHECK = CheckTable("self_check", (0.4, 0.5, 0.6), 0.3, weight=0.8, intercept=0.1)


class Inner:
    """Sends everything to one role."""

    def __init__(self, move: Move) -> None:
        self.move = move

    def first(self, prediction: Prediction, offers: Offers) -> Move:
        return self.move

    def following(self, prediction: Prediction, offers: Offers, evidence: Sequence[Evidence]) -> Move:
        return Move("accept", "small", reason="inner")


def policy(move=Move("route", "frontier"), tables=(LOGPROBS,), tradeoff=0.1, **more) -> CheckedPolicy:  # noqa: B008
    return CheckedPolicy(Inner(move), tables, costs=COSTS, tradeoff=tradeoff, **more)


def offers(*checks) -> Offers:
    return Offers(frozenset({"small", "large", "frontier"}), frozenset(checks))


def evidence(check="logprobs", **found) -> Evidence:
    return Evidence(check, "small", "text", (0,), ("small",), (10,), **found)


EVEN = Prediction({"small": 0.7, "large": 0.8, "frontier": 0.9})


def test_a_cheap_answer_is_tried_where_the_check_can_tell_good_from_bad():
    move = policy().first(EVEN, offers("logprobs"))
    assert (move.action, move.role, move.check) == ("check", "small", "logprobs")


def test_nothing_is_tried_without_a_table_or_where_the_check_is_not_offered():
    assert policy(tables=()).first(EVEN, offers("logprobs")).action == "route"
    assert policy().first(EVEN, offers("self_check")).action == "route"


def test_a_small_model_that_is_nearly_always_wrong_is_not_tried():
    hopeless = Prediction({"small": 0.02, "large": 0.8, "frontier": 0.9})
    assert policy(tradeoff=0.0001).first(hopeless, offers("logprobs")).action == "route"


def test_agreement_that_the_inner_policy_wants_is_left_to_it():
    agreement = Move("check", "small", "agreement", peers=2)
    assert policy(agreement).first(EVEN, offers("logprobs", "agreement")) is agreement
    assert policy(agreement).following(EVEN, offers("agreement"), [evidence("agreement")]).reason == "inner"


def test_the_check_that_tells_more_is_chosen():
    move = policy(tables=(LOGPROBS, SELF_CHECK)).first(EVEN, offers("logprobs", "self_check"))
    assert move.check == "logprobs"


def test_a_reason_has_its_figures_behind_a_space_for_metrics_take_its_first_word():
    for signals in (SURE, UNSURE):
        reason = policy().following(EVEN, offers("logprobs"), [evidence(signals=signals)]).reason
        assert reason.partition(" ")[0] == "logprobs"
    assert "< frontier" in reason or "< large" in reason


def test_a_sure_answer_is_accepted_and_an_unsure_one_is_not():
    chosen = policy()
    accepted = chosen.following(EVEN, offers("logprobs"), [evidence(signals=SURE)])
    assert (accepted.action, accepted.role) == ("accept", "small")
    assert accepted.score is not None
    assert accepted.score > 0.9
    assert chosen.following(EVEN, offers("logprobs"), [evidence(signals=UNSURE)]).action == "route"


def test_a_check_that_found_nothing_or_a_broken_format_never_accepts():
    chosen = policy(tables=(LOGPROBS, SELF_CHECK))
    assert chosen.following(EVEN, offers("logprobs"), [evidence()]).action == "route"
    assert chosen.following(EVEN, offers("self_check"), [evidence("self_check")]).action == "route"
    broken = evidence(signals=SURE, faults=("schema",))
    assert chosen.following(EVEN, offers("logprobs"), [broken]).action == "route"


def test_the_best_of_the_other_roles_counts_its_cost():
    dear = policy(tradeoff=0.5).following(EVEN, offers("logprobs"), [evidence(signals=UNSURE)])
    assert dear.role == "large"


@given(st.floats(0.02, 0.98), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9))
def test_information_is_never_worth_less_than_no_information(quality, levels):
    """A free check of a free answer is at least as good as the better of accepting blindly and going on."""
    table = CheckTable("verifier", tuple(levels), 0.0)
    free = CheckedPolicy(Inner(Move("route", "large")), [table], costs={}, tradeoff=0.0)
    seen = Prediction({"small": quality, "large": 0.5})
    assert free._worth("verifier", seen, offers("verifier")) >= max(quality, 0.5) - 1e-3


@pytest.mark.parametrize("table", [LOGPROBS, SELF_CHECK])
def test_a_table_survives_being_written_down(table):
    assert CheckTable.of(table.table()) == table


@pytest.mark.parametrize(
    "change",
    [{"check": "agreement"}, {"levels": []}, {"levels": [2.0]}, {"weight": float("nan")}, {"extra_cost": None}],
)
def test_a_broken_table_is_refused_by_name(change):
    with pytest.raises(ValueError, match="table"):
        CheckTable.of(SELF_CHECK.table() | change)


HELD = dataclasses.replace(LOGPROBS, held=True, confidence=Confidence(WEIGHTS, -9.0, 500))


def test_a_held_back_beginning_has_a_table_of_its_own():
    held = dataclasses.replace(offers("logprobs"), held=True)
    assert policy().first(EVEN, held).action == "route"
    both = policy(tables=(LOGPROBS, HELD))
    assert both.first(EVEN, held).action == "check"
    assert both.following(EVEN, held, [evidence(signals=SURE)]).action == "route"
    assert both.following(EVEN, offers("logprobs"), [evidence(signals=SURE)]).action == "accept"


def test_a_novel_request_is_left_to_the_inner_policy():
    novel = dataclasses.replace(EVEN, novelty=0.999)
    assert policy(novelty_limit=0.995).first(novel, offers("logprobs")).action == "route"
    assert policy(novelty_limit=0.995).first(EVEN, offers("logprobs")).action == "check"


def test_a_margin_keeps_requests_where_they_were():
    assert policy(margin=0.5).first(EVEN, offers("logprobs")).action == "route"
    doubtful = TokenSignals(tokens=5, mean_logprob=-0.18, min_logprob=-0.5, first_logprob=-0.2)
    assert policy().following(EVEN, offers("logprobs"), [evidence(signals=doubtful)]).action == "accept"
    assert policy(margin=0.19).following(EVEN, offers("logprobs"), [evidence(signals=doubtful)]).action == "route"


def test_only_log_probabilities_can_be_held():
    with pytest.raises(ValueError, match="`held` must be false"):
        CheckTable.of(SELF_CHECK.table() | {"held": True})
