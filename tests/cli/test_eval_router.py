"""`llmrouter eval-router` on a router that was trained on a few hundred made-up labels."""

import json
from pathlib import Path

import numpy as np
import pytest

from llmrouter.offline.heads import HeadSettings, train_heads
from llmrouter.offline.label_reader import read_labels
from llmrouter.offline.policy_fit import fit_policy
from llmrouter.offline.roles import Roles
from llmrouter.routing.artifact import write_artefact
from llmrouter.routing.drift import statistics_of
from tests.cli.command import llmrouter, two_models

COSTS = {"small": 1.0, "large": 10.0}
MODELS = ("--models", "s-8b,l-70b")
QUICK = ("--replicates", "40")


def write_labels(path: Path, n: int, seed: int, source: str = "made", better: float = 0.95) -> Path:
    """The small model fails where something must be proved."""
    rng = np.random.default_rng(seed)
    lines = []
    for row in range(n):
        hard = rng.random() < 0.4
        prompt = f"{'prove the theorem' if hard else 'name the capital'} of number {seed}-{row}"
        scores = {"s-8b": int(rng.random() < (0.2 if hard else 0.95)), "l-70b": int(rng.random() < better)}
        lines.append(json.dumps({"id": f"{seed}-{row}", "source": source, "prompt": prompt, "scores": scores}))
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    labels = read_labels([write_labels(folder / "train.jsonl", 300, 1)], Roles.of_models("s-8b,l-70b"))
    heads = train_heads(labels, settings=HeadSettings(folds=2, rank=4, clusters=4))
    predicted = {role: heads.quality[:, at] for at, role in enumerate(heads.roles)}
    policy = fit_policy(labels, predicted, costs=COSTS, policy="route", novelty=heads.novelty)
    manifest = {
        "created_at": "2026-12-01T12:00:00Z",
        "generic": False,
        "policy": "route",
        "roles": {"small": ["s-8b"], "large": ["l-70b"]},
        "costs": COSTS,
        "data": {"sources": {"made": 300}},
        "heads": dict(heads.manifest),
        "calibration": statistics_of(predicted),
        "policy_parameters": dict(policy.parameters),
        "guarantee": None,
        "metrics": {},
    }
    write_artefact(folder / "router", manifest, {**heads.arrays, **policy.arrays})
    return folder / "router"


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_labels(tmp_path_factory.mktemp("labels") / "held.jsonl", 300, 2, "fresh")


def test_json_has_the_figures_of_the_pair_on_top(router, held_out):
    ran = llmrouter("eval-router", router, held_out, *MODELS, *QUICK, "--json")
    assert ran.code == 0
    body = ran.json
    assert body["apgr"] > 0.65
    assert body["cpt50"] < body["cpt80"] < body["cpt95"]
    assert body["ci"]["apgr"][0] < body["apgr"] < body["ci"]["apgr"][1]
    assert (body["n"], body["weak"], body["strong"]) == (300, "small", "large")
    assert body["decision_us"] > 0
    assert body["peers_compared"] == ["random", "length", "rules", "oracle", "policy"]
    assert set(body["slices"]) == {"fresh"}
    assert body["pairs"]["small>large"]["oracle"]["apgr"] > body["apgr"]
    assert set(body["decisions"]["policy"]["shares"]) == {"small", "large"}


def test_models_and_costs_are_the_artefacts_own_where_none_are_given(router, held_out):
    plain = llmrouter("eval-router", router, held_out, *QUICK, "--json").json
    assert plain["costs"] == COSTS
    dearer = llmrouter("eval-router", router, held_out, *QUICK, "--costs", "large=100", "--json").json
    assert dearer["costs"] == {"small": 1.0, "large": 100.0}


def test_text_shows_every_table_on_standard_output(router, held_out):
    ran = llmrouter("eval-router", router, held_out, *MODELS, *QUICK)
    assert ran.code == 0
    for name in ("router", "random", "length", "rules", "oracle", "policy", "fresh"):
        assert f"\n{name}" in ran.out
    assert "small against large" in ran.err
    assert "a decision takes" in ran.err


def test_rules_and_other_routers_are_compared_in_the_same_run(router, held_out, tmp_path):
    decisions = tmp_path / "nadir.csv"
    ids = [json.loads(line)["id"] for line in held_out.read_text().splitlines()]
    decisions.write_text("id,model\n" + "".join(f"{item},l-70b\n" for item in ids[:200]) + "nobody,s-8b\n")
    scored = tmp_path / "scored.csv"
    scored.write_text("id,score\n" + "".join(f"{item},{len(item)}\n" for item in ids))
    rule = '[[routing.rules]]\nrule_id = "p"\nmatch = { regex = "prove" }\ntier_role = "large"\n'
    others = ("--external", f"nadir={decisions}", "--external", f"scored={scored}")
    config = ("--rules", "--config", str(two_models(tmp_path, rule)))
    ran = llmrouter("eval-router", router, held_out, *MODELS, *QUICK, *others, *config, "--json")
    assert ran.code == 0
    assert ran.json["peers_compared"][-4:] == ["scored", "policy", "nadir", "configured rules"]
    assert ran.json["decisions"]["nadir"]["n"] == 200
    assert ran.json["decisions"]["nadir"]["cost_saving"] == 0.0
    assert ran.json["decisions"]["configured rules"]["quality_delta"] > -10
    assert "nadir says nothing of 100 of 300 labels" in ran.err
    assert "1 lines whose id no label has" in ran.err


def test_labels_that_may_have_been_trained_on_are_warned_of(router, tmp_path):
    ran = llmrouter("eval-router", router, write_labels(tmp_path / "again.jsonl", 60, 1), *MODELS, *QUICK, "--json")
    assert "trained on labels of made" in ran.err


def test_a_report_is_written_beside(router, held_out, tmp_path):
    page = tmp_path / "router.html"
    assert llmrouter("eval-router", router, held_out, *MODELS, *QUICK, "--report", page).code == 0
    assert "<svg" in page.read_text()


def test_a_better_model_that_is_not_better_is_no_evidence(router, tmp_path):
    """Figures that cannot be are null, and the reason is told; the rest is printed as usual."""
    worse = write_labels(tmp_path / "worse.jsonl", 80, 3, better=0.1)
    ran = llmrouter("eval-router", router, worse, *MODELS, *QUICK, "--json")
    assert ran.code == 5
    assert ran.json["apgr"] is None
    assert "no gap to recover" in ran.json["reason"]
    assert "not better here" in ran.err


def test_weights_say_what_each_source_counts_for(router, held_out, tmp_path):
    other = write_labels(tmp_path / "other.jsonl", 100, 4, "other")
    ran = llmrouter("eval-router", router, held_out, other, *MODELS, *QUICK, "--weights", "other=1", "--json")
    alone = llmrouter("eval-router", router, other, *MODELS, *QUICK, "--json")
    assert ran.json["apgr"] == pytest.approx(alone.json["apgr"])


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["--external", "nadir"], "give NAME=FILE"),
        (["--external", "nadir=none.csv"], "none.csv: cannot be read"),
        (["--costs", "small=0"], "--costs: 'small=0'"),
        (["--weights", "made=x"], "--weights: 'made=x'"),
        (["--weights", "nobody=1"], "--weights names nobody"),
        (["--models", "s-8b,unknown"], "unknown"),
        (["--report", "router.pdf"], ".html or .png"),
        (["--rules", "--config", "none.toml"], "none.toml"),
    ],
)
def test_wrong_use_is_told_in_one_line(router, held_out, extra, says):
    models = () if "--models" in extra else MODELS
    ran = llmrouter("eval-router", router, held_out, *models, *QUICK, *extra)
    assert ran.code == 2
    assert says in ran.err
    assert ran.err.count("error: ") == 1
    assert "Traceback" not in ran.err


def test_a_folder_that_is_no_router_is_told(held_out, tmp_path):
    ran = llmrouter("eval-router", tmp_path / "none", held_out, *MODELS)
    assert ran.code == 2
    assert "no such folder" in ran.err
