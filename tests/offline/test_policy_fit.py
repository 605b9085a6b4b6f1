"""The learned policy: fitted, walked through for many rows, and replayed row by row through the plan that serves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llmrouter.errors import UsageError
from llmrouter.offline.policy_fit import FittedPolicy, fit_policy
from llmrouter.offline.policy_rows import PolicyRows
from llmrouter.offline.policy_tables import standings_of, tables_of
from llmrouter.offline.policy_walk import walk
from llmrouter.offline.replay import Replays
from llmrouter.routing.learned_policy import LearnedPolicy
from tests.offline.policy_labels import COSTS, made_labels, made_predictions, predictions_of

LABELS = made_labels()
PREDICTED = made_predictions(LABELS)


def fitted(policy: str = "auto", **changed: Any) -> FittedPolicy:
    labels = changed.pop("labels", LABELS)
    return fit_policy(labels, made_predictions(labels), policy=policy, costs=changed.pop("costs", COSTS), **changed)


@pytest.fixture(scope="module")
def auto() -> FittedPolicy:
    return fitted()


def policy_of(made: FittedPolicy, point: int | None = None) -> LearnedPolicy:
    artefact = SimpleNamespace(manifest={"policy_parameters": made.parameters}, arrays=made.arrays)
    return LearnedPolicy.of(artefact, point)


def rows_of(made: FittedPolicy, labels: Any, predictions: Any) -> PolicyRows:
    parameters = made.parameters
    return PolicyRows.of(
        Replays(labels),
        [each.quality for each in predictions],
        roles=tuple(parameters["roles"]),
        prompt_roles=tuple(parameters["prompt_roles"]),
        kinds=tuple(parameters["kinds"]),
        compared=tuple(parameters["compared_kinds"]),
        most_peers=parameters["peers"],
    )


@pytest.mark.parametrize(
    ("kind", "roles"),
    [
        ("auto", ("small", "large", "frontier", "peer1", "peer2", "peer3")),
        ("cascade", ("small", "large", "frontier", "peer1", "peer2", "peer3")),
        ("auto", ("small", "large", "peer1", "peer2")),
        ("cascade", ("small", "frontier", "peer1")),
        ("route", ("small", "large", "frontier")),
        ("auto", ("small", "large")),
    ],
)
def test_the_plan_that_serves_does_what_was_computed_for_many_rows_at_once(kind, roles):
    labels = made_labels(140, roles=roles)
    made = fitted(kind, labels=labels)
    novelty = np.where(np.arange(len(labels)) % 17 == 0, 0.999, 0.5)
    predictions = predictions_of(made_predictions(labels), novelty)
    replays, rows = Replays(labels), rows_of(made, labels, predictions)
    tables, values = tables_of(made.parameters, made.arrays)
    everything = np.ones(len(rows), dtype=bool)
    points = [(each["margin"], each["tradeoff"]) for each in made.parameters["points"]]
    walked = walk(
        rows,
        standings_of(rows, tables, everything),
        values,
        points,
        made.parameters["costs"],
        everything,
        kind,
        novelty > made.parameters["novelty_limit"],
    )
    for point in (0, 2, len(points) // 2, len(points) - 1):
        policy = policy_of(made, point)
        for row, prediction in enumerate(predictions):
            done = replays.run(row, policy, prediction)
            assert done.role == rows.givers[walked.role[point, row]]
            called = {role for role, calls in walked.calls.items() if calls[point, row]}
            assert sorted(done.calls) == sorted(called)
            assert replays.quality(done.role, row) == walked.quality[point, row]


def test_the_sequence_begins_with_the_reference_and_gets_cheaper(auto):
    assert np.array_equal(auto.spending.quality[0], auto.reference_quality)
    assert np.array_equal(auto.spending.cost[0], auto.reference_cost)
    costs = auto.spending.cost.mean(axis=1)
    assert costs[-1] < 0.1 * costs[0]
    assert np.all(np.diff(costs[6:]) < 2.0)


def test_agreement_saves_more_than_the_prompt_alone_at_the_same_loss(auto):
    def saving(made: FittedPolicy, loss: float) -> float:
        return max(float(each["cost_saving"]) for each in made.parameters["points"] if each["loss"] <= loss)

    assert saving(auto, 2.0) > saving(fitted("route"), 2.0) + 0.1


def test_the_chosen_point_keeps_the_loss_below_the_limit_with_some_room(auto):
    chosen = auto.parameters["points"][auto.parameters["chosen"]]
    assert chosen["loss"] <= 1.0
    loose = fitted(max_quality_loss=20.0).parameters
    assert loose["chosen"] > auto.parameters["chosen"]


def test_the_same_labels_and_seed_give_the_same_arrays(auto):
    again = fitted()
    assert auto.parameters == again.parameters
    assert all(np.array_equal(auto.arrays[name], again.arrays[name]) for name in auto.arrays)


def test_a_fold_is_decided_without_its_own_labels():
    """Turning one group's labels round changes nothing that its own rows are decided by."""
    first = fitted()
    column = LABELS.roles["frontier"]
    quality = column.quality.copy()
    quality[:2] = 1.0 - quality[:2]
    changed = made_labels()
    changed.roles["frontier"].quality[:] = quality
    second = fit_policy(changed, PREDICTED, costs=COSTS)
    assert np.array_equal(first.spending.cost[:, :2], second.spending.cost[:, :2])


def test_rows_without_answers_are_routed_directly(auto):
    silent = np.array([source == "chat" for source in LABELS.sources])
    assert set(np.unique(auto.spending.cost[:, silent])) <= {1.0, 10.0, 100.0}


def test_a_mix_of_sources_is_what_the_figures_stand_for():
    made = fitted(weights={"sums": 1.0})
    sums = np.array([source == "sums" for source in LABELS.sources])
    chosen = made.parameters["points"][10]
    assert chosen["loss"] == pytest.approx(
        100 * float((made.reference_quality - made.spending.quality[10])[sums].mean())
    )


def test_a_hundred_rows_are_enough_to_fit():
    made = fitted(labels=made_labels(100))
    assert all(np.isfinite(array).all() for array in made.arrays.values())


def test_wrong_use_is_told_in_one_sentence():
    with pytest.raises(UsageError, match="--costs must give large"):
        fitted(costs={"small": 1.0, "frontier": 100.0})
    with pytest.raises(UsageError, match="no predictions of the role frontier"):
        fit_policy(LABELS, {"small": PREDICTED["small"], "large": PREDICTED["large"]}, costs=COSTS)
    with pytest.raises(UsageError, match="different questions"):
        fitted(labels=made_labels(6))
