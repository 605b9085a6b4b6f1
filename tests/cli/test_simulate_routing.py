"""`llmrouter simulate-routing` with a router that was really trained."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from llmrouter.cli.simulate_routing import simulate_routing
from llmrouter.errors import RouterError
from llmrouter.offline.heads import HeadSettings, train_heads
from llmrouter.offline.label_reader import read_labels
from llmrouter.offline.policy_fit import fit_policy
from llmrouter.offline.roles import Roles
from llmrouter.routing.artifact import write_artefact
from tests.offline.policy_labels import COSTS, made_labels

_COSTS = "small=1,large=10,frontier=100"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labels, roles and a router trained on them."""
    made = tmp_path_factory.mktemp("trained")
    labels = made_labels(150)
    with gzip.open(made / "labels.jsonl.gz", "wt") as out:
        for row, name in enumerate(labels.ids):
            models = {role: f"{role}-model" for role in labels.roles}
            answers = {model: labels.roles[role].answers[row] for role, model in models.items() if role != "frontier"}
            item: dict[str, Any] = {
                "id": name,
                "source": labels.sources[row],
                "prompt": labels.asks[row].text,
                "scores": {model: labels.roles[role].quality[row] for role, model in models.items()},
            }
            out.write(json.dumps(item if labels.sources[row] == "chat" else {**item, "answers": answers}) + "\n")
    roles = {
        source: {
            **{role: f"{role}-model" for role in COSTS},
            "peers": ["peer1-model", "peer2-model", "peer3-model"],
        }
        for source in ("sums", "chat")
    }
    (made / "roles.json").write_text(json.dumps(roles))
    read = read_labels([made / "labels.jsonl.gz"], Roles.load(made / "roles.json"))
    heads = train_heads(read, settings=HeadSettings(trees_from=10_000))
    predicted = {role: heads.quality[:, at] for at, role in enumerate(heads.roles)}
    policy = fit_policy(read, predicted, costs=COSTS)
    manifest = {
        "generic": False,
        "policy": "auto",
        "roles": {role: [f"{role}-model"] for role in COSTS},
        "costs": COSTS,
        "data": {"sources": {"sums": 100}},
        "heads": heads.manifest,
        "calibration": {},
        "policy_parameters": policy.parameters,
        "guarantee": None,
        "metrics": {},
    }
    write_artefact(made / "router", manifest, {**heads.arrays, **policy.arrays})
    return made


def run(folder: Path, *arguments: str, roles: bool = True) -> Any:
    app = typer.Typer()
    app.command()(simulate_routing)
    given = [str(folder / "router"), str(folder / "labels.jsonl.gz"), "--replicates", "50", *arguments]
    return CliRunner().invoke(app, [*given, "--roles", str(folder / "roles.json")] if roles else given)


def test_figures_come_as_json_on_standard_output_alone(folder):
    ran = run(folder, "--costs", _COSTS, "--weights", "sums=1", "--point", "14", "--json")
    told = json.loads(ran.stdout)
    assert ran.exit_code == 0
    assert told["point"] == 14
    assert 0 < told["cost_saving"] < 1
    assert told["quality_delta_ci"][0] <= told["quality_delta"] <= told["quality_delta_ci"][1]
    assert told["slices"].keys() == {"sums"}
    assert told["cost_saving"] == pytest.approx(told["curve"][14]["cost_saving"])
    assert "chat: " in ran.stderr
    assert "it looks better here than it is" in ran.stderr


def test_people_get_a_table_and_whether_it_is_certified(folder):
    ran = run(folder)
    assert ran.exit_code == 0
    assert ran.stdout.splitlines()[0].split("  ")[0] == "SOURCE"
    assert "not certified; against always frontier" in ran.stderr


def test_a_plot_is_written(folder, tmp_path):
    assert run(folder, "--plot", str(tmp_path / "saving.html")).exit_code == 0
    assert "<svg" in (tmp_path / "saving.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--point", "77"], "operating points 0 to"),
        (["--costs", "small=no"], "--costs: 'small=no' is not"),
        (["--weights", "sumz=1"], "--weights names sumz"),
    ],
)
def test_wrong_use_is_told_in_one_sentence(folder, arguments, said):
    ran = run(folder, *arguments)
    assert isinstance(ran.exception, RouterError)
    assert said in ran.exception.message
