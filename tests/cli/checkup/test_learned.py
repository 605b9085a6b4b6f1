"""What learned tiers go by, as `doctor`, `config check` and the start of `serve` see it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import pytest

from llmrouter.cli.checkup.learned import check_learned
from llmrouter.config import load
from llmrouter.errors import ConfigError
from llmrouter.gateway.build import prepare_store
from llmrouter.gateway.publishing import publish_artefact
from llmrouter.gateway.supervisor import Supervisor
from llmrouter.routing.versions import RoutingStore
from llmrouter.shared_store import shared_store, writing
from tests.cli.command import llmrouter
from tests.support import model, pool, tier
from tests.toy_learned import ToyArtefact, toy_learning

__all__ = ["toy_learning"]

pytestmark = pytest.mark.usefixtures("toy_learning")

URL = "http://127.0.0.1:9/v1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "llmrouter.toml"
    parts = [model("s"), model("l"), pool("s", [URL]), pool("l", [URL])]
    path.write_text("\n".join([*parts, tier("auto", small="s", large="l", extra='strategy = "router"')]))
    return path


def published(path: Path, artefact: ToyArtefact) -> None:
    prepare_store(load(path))
    publish_artefact(load(path), cast("Any", artefact), author="me")


def seen(path: Path) -> list[tuple[str, str]]:
    return [(finding.status, finding.message) for finding in check_learned(load(path))]


def test_the_generic_artefact_is_worth_knowing(path: Path):
    ((status, message),) = seen(path)
    assert status == "info"
    assert message.startswith("tiers.auto: goes by the generic artefact")
    assert message.endswith("no guarantee")
    checked = llmrouter("config", "check", "--config", path)
    assert (checked.code, message in checked.err) == (0, True)
    assert not (path.parent / "llmrouter.db").exists()


def test_a_promise_is_fine_and_a_doubt_a_warning(path: Path):
    published(path, ToyArtefact.of(costs={"small": 1, "large": 10}))
    RoutingStore(shared_store(load(path).store)).fall_back(2, "auto", "scores moved")
    (status, message), *others = seen(path)
    assert (status, "at operating point 0: at most 1 point below large" in message) == ("ok", True)
    assert [each for each, _ in others] == ["warning", "warning"]
    told = llmrouter("config", "check", "--config", path, "--json").json
    assert (told["ok"], len(told["notes"])) == (True, 1)
    assert [line.split(": ", 2)[2][:20] for line in told["warnings"]] == [
        "at its safe operatin",
        "a usual call of larg",
    ]


def test_other_models_fail_everywhere_and_keep_serve_from_starting(path: Path):
    published(path, ToyArtefact.of())
    path.write_text(path.read_text().replace('small = "s"', 'small = "l"').replace('large = "l"', 'large = "s"'))
    ((status, message),) = seen(path)
    assert (status, "small is l, and it was trained on s" in message) == ("fail", True)
    checked = llmrouter("config", "check", "--config", path)
    assert (checked.code, "small is l, and it was trained on s" in checked.err) == (2, True)
    with pytest.raises(ConfigError, match="small is l, and it was trained on s"):
        Supervisor._tell_of_learning(load(path))


def test_tampering_fails_the_check_and_does_not_keep_serve_from_starting(path: Path, caplog: pytest.LogCaptureFixture):
    published(path, ToyArtefact.of())
    with writing(shared_store(load(path).store)) as connection:
        connection.execute("DROP TRIGGER artefacts_no_update")
        connection.execute("UPDATE artefacts SET about = '{}'")
    ((status, message),) = seen(path)
    assert (status, "does not bear the signature" in message) == ("fail", True)
    with caplog.at_level(logging.ERROR):
        Supervisor._tell_of_learning(load(path))
    assert "does not bear the signature" in caplog.text


def test_a_start_says_what_learned_tiers_go_by(path: Path, caplog: pytest.LogCaptureFixture):
    published(path, ToyArtefact.of(costs={"small": 1, "large": 10}))
    with caplog.at_level(logging.INFO):
        Supervisor._tell_of_learning(load(path))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]


def test_plain_rules_have_learned_nothing(path: Path):
    path.write_text(path.read_text().replace('strategy = "router"', ""))
    assert seen(path) == []
