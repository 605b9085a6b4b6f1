"""Labels replayed through the plans that serve: what is saved, what it costs in quality, and how sure that is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llmrouter.errors import UsageError
from llmrouter.offline.labels import LabelSet
from llmrouter.offline.policy_fit import fit_policy
from llmrouter.offline.replay import Replays
from llmrouter.offline.simulate import Simulation, as_json, simulate
from llmrouter.offline.simulation_plot import draw
from llmrouter.routing.evidence import Evidence, Move, Offers, Prediction
from tests.offline.policy_labels import COSTS, made_labels, made_predictions, predictions_of

LABELS = made_labels(160)
FITTED = fit_policy(LABELS, made_predictions(LABELS), costs=COSTS)
ARTEFACT = SimpleNamespace(manifest={"policy_parameters": FITTED.parameters}, arrays=FITTED.arrays)


def predict(labels: LabelSet) -> list[Prediction]:
    return predictions_of(made_predictions(labels))


def simulated(labels: LabelSet = LABELS, **changed: Any) -> Simulation:
    return simulate(ARTEFACT, labels, predict, **{"costs": COSTS, "replicates": 100, **changed})


class Scripted:
    """A policy that does what it is told, one move after another."""

    def __init__(self, *moves: Move) -> None:
        self.moves = list(moves)
        self.seen: list[Evidence] = []

    def first(self, prediction: Prediction, offers: Offers) -> Move:
        return self.moves.pop(0)

    def following(self, prediction: Prediction, offers: Offers, evidence: Any) -> Move:
        self.seen = list(evidence)
        return self.moves.pop(0)


def test_every_call_of_a_replay_is_counted_and_the_lengths_are_those_of_the_whole_answers():
    replays = Replays(LABELS)
    row = next(row for row in range(len(LABELS)) if replays.peers[row] == 3)
    script = Scripted(
        Move("check", "small", "agreement", peers=1),
        Move("check", "small", "agreement", peers=3),
        Move("check", "large"),
        Move("accept", "large", choice=2),
    )
    done = replays.run(row, script, Prediction({}))
    assert done.calls == ("small", "peer1", "peer2", "peer3", "large")
    assert done.role == "peer2"
    newest = script.seen[-1]
    assert newest.voters == done.calls
    assert newest.characters == tuple(replays.characters(role, row) for role in done.calls)
    assert newest.votes == replays.evidence(row, done.calls).votes


def test_a_check_and_the_reference_after_it_cost_all_their_calls():
    replays = Replays(LABELS)
    row = next(row for row in range(len(LABELS)) if replays.peers[row] == 3)
    script = Scripted(Move("check", "small", "agreement", peers=2), Move("route", "frontier"))
    assert replays.run(row, script, Prediction({})).calls == ("small", "peer1", "peer2", "frontier")


def test_answers_that_nobody_published_are_not_compared():
    replays = Replays(LABELS)
    for row, source in enumerate(LABELS.sources):
        offers = replays.offers(row)
        assert (offers.peers, offers.checks) == ((0, frozenset()) if source == "chat" else (3, {"agreement"}))


def test_the_replayed_point_lies_on_the_curve_of_all_points():
    found = simulated(point=15)
    assert found.point.cost_saving == pytest.approx(found.curve[15].cost_saving)
    assert found.point.quality_delta == pytest.approx(found.curve[15].quality_delta)
    assert found.point.shares == pytest.approx({r: s for r, s in found.curve[15].shares.items() if s})
    assert found.extra_calls == pytest.approx(sum(found.calls.values()) - 1)
    cost = sum(calls * COSTS.get(role, 1.0) for role, calls in found.calls.items())
    assert found.point.cost_saving == pytest.approx(1 - cost / 100)


def test_always_the_reference_saves_and_loses_nothing():
    found = simulated(point=0)
    assert (found.point.cost_saving, found.point.quality_delta, found.extra_calls) == (0, 0, 0)
    assert found.point.shares == {"frontier": 1.0}


def test_a_source_without_weight_counts_nothing_and_is_told():
    found = simulated(weights={"sums": 2.0}, point=15)
    assert list(found.slices) == ["sums"]
    assert found.unweighted == {"chat": LABELS.sources.count("chat")}
    assert found.slices["sums"].point.cost_saving == pytest.approx(found.point.cost_saving)


def test_rows_that_were_rarely_chosen_for_labelling_count_for_more():
    inclusion = np.where(np.arange(len(LABELS)) < 20, 0.01, 1.0)
    changed = LabelSet(
        **{name: getattr(LABELS, name) for name in LABELS.__dataclass_fields__ if name != "inclusion"},
        inclusion=inclusion,
    )
    first = simulated(LABELS.take(np.arange(20)), point=15)
    assert simulated(changed, point=15).point.cost_saving == pytest.approx(first.point.cost_saving, abs=0.06)


def test_the_figures_have_intervals_and_are_plain_json():
    told = as_json(simulated())
    low, high = told["cost_saving_ci"]
    assert low <= told["cost_saving"] <= high
    assert set(told) >= {"cost_saving", "quality_delta", "quality_delta_ci", "shares", "extra_calls", "slices", "curve"}
    assert len(told["curve"]) == len(FITTED.parameters["points"])


def test_other_costs_change_what_the_same_decisions_cost():
    cheap, dear = simulated(point=15), simulated(point=15, costs={**COSTS, "peer1": 50.0})
    assert dear.point.cost_saving < cheap.point.cost_saving
    assert dear.point.quality_delta == cheap.point.quality_delta


def test_wrong_use_is_told_in_one_sentence():
    with pytest.raises(UsageError, match="--point 99: there are the operating points 0 to"):
        simulated(point=99)
    with pytest.raises(UsageError, match="--costs must give frontier"):
        simulated(costs={"small": 1.0, "large": 10.0})
    with pytest.raises(UsageError, match="--weights names sumz"):
        simulated(weights={"sumz": 1.0})


@pytest.mark.parametrize("name", ["saving.html", "saving.png"])
def test_all_points_are_drawn(tmp_path, name):
    if name.endswith("png"):
        pytest.importorskip("matplotlib")
    draw(tmp_path / name, simulated())
    assert (tmp_path / name).stat().st_size > 1000


def test_a_plot_of_another_kind_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"\.html or \.png"):
        draw(tmp_path / "saving.gif", simulated())
