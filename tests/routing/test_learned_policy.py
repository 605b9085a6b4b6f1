"""The learned policy, one request at a time."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llmrouter.errors import ArtefactError
from llmrouter.offline.policy_fit import fit_policy
from llmrouter.routing.evidence import Evidence, Offers, Prediction
from llmrouter.routing.learned_policy import LearnedPolicy, ladder
from tests.offline.policy_labels import COSTS, made_labels, made_predictions

_LABELS = made_labels()
_FITTED = fit_policy(_LABELS, made_predictions(_LABELS), costs=COSTS)
_LAST = len(_FITTED.parameters["points"]) - 1
_MIDDLE = 14
OFFERS = Offers(frozenset({"small", "large", "frontier"}), frozenset({"agreement"}), peers=3, kind="number")


def artefact(**changed: Any) -> Any:
    return SimpleNamespace(manifest={"policy_parameters": {**_FITTED.parameters, **changed}}, arrays=_FITTED.arrays)


def policy(point: int | None = _MIDDLE, **changed: Any) -> LearnedPolicy:
    return LearnedPolicy.of(artefact(**changed), point)


def promise(small: float = 0.6, novelty: float = 0.5) -> Prediction:
    return Prediction(
        {
            "small": small,
            "large": small + 0.1,
            "frontier": small + 0.2,
            "peer1": small,
            "peer2": small,
            "peer3": small - 0.1,
        },
        novelty,
    )


def evidence(votes: tuple[int, ...], *, large: bool = False) -> Evidence:
    voters = ("small", *(f"peer{number}" for number in range(1, len(votes) - large)), *(("large",) if large else ()))
    return Evidence(
        "none" if large else "agreement",
        "large" if large else "small",
        "number",
        votes,
        voters,
        characters=(300,) * len(votes),
    )


def test_the_first_point_always_calls_the_reference():
    move = policy(0).first(promise(0.7), OFFERS)
    assert (move.action, move.role) == ("route", "frontier")


def test_the_last_point_never_calls_the_reference_first():
    assert policy(_LAST).first(promise(), OFFERS).role == "small"


def test_an_ask_unlike_all_that_was_learned_from_takes_the_safe_route():
    move = policy(_LAST).first(promise(novelty=0.999), OFFERS)
    assert (move.action, move.role) == ("route", "frontier")
    assert move.reason == "novel:frontier 0.999 > 0.995"


def test_answers_that_all_agree_are_accepted_and_a_scattered_vote_is_not():
    agreed = policy().following(promise(), OFFERS, [evidence((0, 0, 0, 0))])
    scattered = policy().following(promise(), OFFERS, [evidence((0, 1, 2, 3))])
    assert (agreed.action, agreed.choice) == ("accept", 0)
    assert agreed.reason.startswith("agreement:4/4 ")
    assert scattered.action != "accept"
    assert agreed.score is not None
    assert agreed.score > 0.8


def test_the_majority_is_accepted_where_the_small_model_is_alone_against_it():
    move = policy(_LAST).following(promise(), OFFERS, [evidence((0, 1, 1, 1))])
    assert (move.action, move.choice) == ("accept", 1)


def test_the_large_models_answer_is_given_where_it_agrees_with_the_others():
    move = policy(_LAST).following(promise(), OFFERS, [evidence((0, 0)), evidence((0, 0, 0), large=True)])
    assert (move.action, move.choice) == ("accept", 2)


def test_a_peer_that_gave_nothing_is_not_counted_as_one_that_disagrees():
    late = replace(evidence((0, 0, 0)), voters=("small", "peer1", "peer3"))
    move = policy(_LAST).following(promise(), OFFERS, [late])
    assert (move.action, move.reason.partition(" ")[0]) == ("accept", "agreement:3/3")


def test_no_peers_are_asked_twice():
    """A peer that failed is a vote that is missing, not one to wait for."""
    missing = replace(evidence((0, 1)), voters=("small", "peer1"))
    for point in range(_LAST + 1):
        if point:
            move = policy(point).following(promise(), OFFERS, [missing, missing])
            assert not (move.action == "check" and move.check == "agreement")


@pytest.mark.parametrize("point", [1, _MIDDLE, _LAST])
@pytest.mark.parametrize(
    "roles", [{"small"}, {"large"}, {"small", "large"}, {"small", "frontier"}, {"large", "frontier"}]
)
@pytest.mark.parametrize("peers", [0, 1, 2, 3, 7])
def test_only_what_is_offered_is_asked_for(point, roles, peers):
    offers = Offers(frozenset(roles), frozenset({"agreement"} if peers else ()), peers=peers, kind="number")
    move = policy(point).first(promise(), offers)
    assert move.role in roles
    assert move.peers <= min(peers, 3)
    if move.action == "check":
        votes = (0, *range(1, move.peers + 1))
        after = policy(point).following(promise(), offers, [evidence(votes)])
        assert after.action == "accept" or after.role in roles


@pytest.mark.parametrize("kind", ["text", "code"])
def test_answers_of_a_kind_that_was_never_compared_are_not_compared(kind):
    move = policy(policy="cascade").first(promise(), replace(OFFERS, kind=kind))
    assert move.action == "route"


def test_without_any_usable_answer_something_better_is_asked():
    move = policy().following(promise(), OFFERS, [evidence((-1, -1, -1, -1))])
    assert move.action in ("route", "check")
    assert move.role != "small"


def test_reasons_are_short_and_of_plain_characters():
    moves = [policy(point).first(promise(0.3), OFFERS) for point in range(_LAST + 1)]
    moves += [policy(point).following(promise(0.3), OFFERS, [evidence((0, 1, 0, 1))]) for point in range(1, _LAST + 1)]
    for move in moves:
        assert re.fullmatch(r"[A-Za-z0-9.:/%>_ <+-]{1,60}", move.reason)


def test_a_role_that_nothing_was_predicted_of_is_no_failure():
    move = policy().first(Prediction({"small": 0.9}), OFFERS)
    assert move.role in OFFERS.roles


def test_fewer_peers_than_in_training_have_a_ladder_of_their_own():
    assert [ladder(peers) for peers in (0, 1, 2, 3)] == [(), (1,), (1, 2), (1, 3)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version 2, this llmrouter reads 1"),
        ({"kinds": ["json", "number"]}, "has the shape"),
        ({"stages": []}, "not whole"),
        ({"reference": "small"}, "the reference is small"),
        ({"values": ["first_to_9_of_9"]}, "not whole"),
    ],
)
def test_a_policy_whose_parts_do_not_fit_is_refused(change, said):
    with pytest.raises(ArtefactError, match=said):
        LearnedPolicy.of(artefact(**change))


def test_a_point_that_is_not_there_is_refused():
    with pytest.raises(ArtefactError, match=f"operating points 0 to {_LAST}, not 99"):
        policy(99)


def test_a_decision_takes_well_below_a_millisecond():
    chosen, given = policy(), evidence((0, 1, 0, 2))
    times = []
    for _ in range(200):
        begun = time.thread_time()
        chosen.first(promise(), OFFERS)
        chosen.following(promise(), OFFERS, [given])
        times.append(time.thread_time() - begun)
    assert np.median(times) < 0.001
