"""Fitting checks of single answers: what they tell is fair, and what tells nothing is not used."""

from __future__ import annotations

import dataclasses
import math
import time
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.offline.check_fit import FittedChecks, auc, fit_checks
from llmrouter.offline.labels import Floats, LabelSet, RoleLabels
from llmrouter.offline.train import TrainOptions, train
from llmrouter.routing.artifact import Artefact
from llmrouter.routing.ask import Ask
from llmrouter.routing.checked import CheckedPolicy, CheckTable
from llmrouter.routing.evidence import Evidence, Offers, Prediction
from llmrouter.routing.learned_policy import LearnedPolicy
from llmrouter.routing.policy import policy_of
from llmrouter.types import TokenSignals


def labels(
    count: int = 300, *, told: bool = True, p_true: bool = True, seed: int = 1, question: bool = False
) -> LabelSet:
    """Answers that are good with the odds that their signals show, if `told`, else whatever they show."""
    rng = np.random.default_rng(seed)
    sure = rng.uniform(-2.0, 0.0, count)
    chance = 1 / (1 + np.exp(-(4 * sure + 3))) if told else np.full(count, 0.5)
    quality = (rng.uniform(size=count) < chance).astype(np.float64)
    signals = tuple(TokenSignals(40, each, 2 * each, each) for each in sure.tolist())
    # The beginning says less: it is the whole with noise.
    blurred = np.minimum(sure + rng.normal(0, 0.7, count), 0.0).tolist()
    prefix = tuple(TokenSignals(24, each, 2 * each, each) for each in blurred)
    said = 1 / (1 + np.exp(-(2 * sure + 2 + rng.normal(0, 0.5, count)))) if p_true else np.empty(0)
    share = np.full(count if p_true else 0, 0.25)
    small = RoleLabels(
        quality, (None,) * count, np.full(count, np.nan), np.full(count, np.nan), signals, prefix, said, share
    )
    return LabelSet(
        ids=tuple(f"q{at}" for at in range(count)),
        sources=("s",) * count,
        groups=tuple("one" if question else f"g{at // 2}" for at in range(count)),
        splits=(None,) * count,
        asks=(Ask("?"),) * count,
        inclusion=np.ones(count),
        roles={"small": small},
        models={"s": {"small": "m"}},
    )


@pytest.fixture(scope="module")
def fitted() -> FittedChecks:
    return fit_checks(labels(), seed=0)


def test_signals_that_tell_become_tables_that_tell(fitted):
    assert [(each.check, each.held) for each in fitted.tables] == [
        ("logprobs", False),
        ("logprobs", True),
        ("self_check", False),
    ]
    whole, held = fitted.reports["logprobs"], fitted.reports["logprobs:held"]
    assert 0.5 < held.auc < whole.auc < 1
    assert whole.brier < whole.constant_brier
    assert whole.ece < 0.1
    assert fitted.left_out == {}
    sure = Evidence("logprobs", "small", "text", (0,), ("small",), (9,), signals=TokenSignals(40, -0.05, -0.1, -0.05))
    chance = fitted.tables[0].probability(sure)
    assert chance is not None
    assert chance > 0.8


def test_a_table_reads_back_and_its_levels_are_spread_over_fifteen(fitted):
    for table in fitted.tables:
        assert CheckTable.of(table.table()) == table
        assert len(table.levels) == 15
        assert list(table.levels) == sorted(table.levels)


def test_a_self_check_costs_what_it_took(fitted):
    assert fitted.tables[-1].extra_cost == pytest.approx(0.25)


def test_the_same_labels_give_the_same_tables(fitted):
    assert fit_checks(labels(), seed=0).tables == fitted.tables


def test_what_tells_nothing_has_no_table():
    fitted = fit_checks(labels(300, told=False), seed=0)
    assert fitted.tables == ()
    assert fitted.left_out["logprobs"].startswith("it tells nothing")
    assert fitted.reports["logprobs"].brier >= fitted.reports["logprobs"].constant_brier


@pytest.mark.parametrize(
    ("given_labels", "why"),
    [
        (labels(60), "60 labels have it; at least 75 are needed"),
        (labels(200, question=True), "different questions"),
    ],
)
def test_too_few_labels_give_nothing_and_say_why(given_labels: LabelSet, why: str):
    fitted = fit_checks(given_labels, seed=0)
    assert (fitted.tables, set(fitted.left_out)) == ((), {"logprobs", "logprobs:held", "self_check"})
    assert why in fitted.left_out["self_check"]


def test_answers_of_one_outcome_give_nothing():
    all_bad = labels(200)
    all_bad.roles["small"].quality[:] = 0
    assert "0 of 200 answers are good" in fit_checks(all_bad, seed=0).left_out["logprobs"]


def test_labels_without_signals_give_nothing():
    bare = labels(200, p_true=False).roles["small"]
    plain = RoleLabels(bare.quality, bare.answers, bare.out_chars, bare.cost_usd)
    fitted = fit_checks(dataclasses.replace(labels(200), roles={"small": plain}), seed=0)
    assert fitted.left_out["logprobs"] == "0 labels have it; at least 75 are needed"


@pytest.fixture(scope="module")
def trained() -> Artefact:
    given_labels = labels(200)
    rng = np.random.default_rng(2)
    nothing = np.full(200, np.nan)
    large = RoleLabels((rng.uniform(size=200) < 0.9).astype(float), (None,) * 200, nothing, nothing)
    asks = tuple(Ask(f"What is the {each} of it?") for each in rng.integers(0, 50, 200).tolist())
    pair = dataclasses.replace(given_labels, asks=asks, roles={**given_labels.roles, "large": large})
    options = TrainOptions({"small": 1.0, "large": 10.0}, replicates=20)
    made = train(pair, options, created_at=datetime(2026, 12, 1, tzinfo=UTC), clock=time.process_time)
    return Artefact(made.manifest, made.arrays, "made")


def test_a_trained_artefact_has_the_tables_and_what_was_measured(trained):
    assert [(each["check"], each["held"]) for each in trained.manifest["checks"]] == [
        ("logprobs", False),
        ("logprobs", True),
        ("self_check", False),
    ]
    assert trained.manifest["metrics"]["checks"]["logprobs"]["auc"] > 0.7


def test_its_policy_checks_single_answers(trained):
    offers = Offers(frozenset({"small", "large"}), frozenset({"logprobs"}))
    even = Prediction({"small": 0.5, "large": 0.9})
    points = range(1, len(trained.manifest["policy_parameters"]["points"]))
    moves = [policy_of(trained, point).first(even, offers) for point in points]
    assert {"logprobs"} < {move.check for move in moves} | {"none"}
    assert policy_of(trained, 0).first(even, offers).check == "none"


def test_a_promised_point_is_left_as_it_was_certified(trained):
    parameters = {**trained.manifest["policy_parameters"], "certified": 3}
    promised = dataclasses.replace(
        trained, manifest={**trained.manifest, "policy_parameters": parameters, "guarantee": {"n": 1}}
    )
    assert isinstance(policy_of(promised, 3), LearnedPolicy)
    assert isinstance(policy_of(promised, 4), CheckedPolicy)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30))
def test_auc_is_the_share_of_pairs_in_the_right_order(pairs):
    told: Floats = np.array([float(each) for each, _ in pairs])
    score: Floats = np.array([float(each) for _, each in pairs])
    good, bad = told[score == 1], told[score == 0]
    if not len(good) or not len(bad):
        assert math.isnan(auc(told, score))
        return
    wins = (good[:, None] > bad[None]).mean() + (good[:, None] == bad[None]).mean() / 2
    assert auc(told, score) == pytest.approx(wins)
