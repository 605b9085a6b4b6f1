"""`llmrouter rules publish-artefact`, and what the other commands tell of artefacts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmrouter.config import load
from llmrouter.gateway.build import prepare_store
from llmrouter.routing.versions import RoutingStore
from llmrouter.shared_store import shared_store
from tests.cli.command import Ran, llmrouter
from tests.support import model, pool, tier
from tests.toy_learned import ToyArtefact, toy_learning, write_toy

__all__ = ["toy_learning"]

pytestmark = pytest.mark.usefixtures("toy_learning")

URL = "http://127.0.0.1:9/v1"
MINE = ToyArtefact.of(note="mine")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "llmrouter.toml"
    parts = [model("s"), model("l"), pool("s", [URL]), pool("l", [URL])]
    path.write_text("\n".join([*parts, tier("auto", small="s", large="l", extra='strategy = "router"')]))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_toy(tmp_path / "router", MINE)


def publish(config: Path, source: Path | str, *arguments: str) -> Ran:
    return llmrouter("rules", "publish-artefact", source, *arguments, "--config", config)


def versions(config: Path) -> RoutingStore:
    return RoutingStore(shared_store(load(config).store))


def test_a_folder_becomes_the_next_version(config: Path, folder: Path):
    done = publish(config, folder, "--note", "first one", "--point", "1")
    assert (done.code, done.out) == (0, "")
    assert (
        f"published version 2 with the published artefact {MINE.digest[:12]}: at most 1 point below large with 95%"
        in done.err
    )
    current = versions(config).current()
    assert (current.artefact_digest, current.point, current.note) == (MINE.digest, 1, "first one")
    assert current.author.startswith("cli:")


def test_as_json_it_tells_version_digest_and_promise(config: Path, folder: Path):
    told = publish(config, folder, "--json").json
    assert (told["version"], told["digest"], told["dry_run"]) == (2, MINE.digest, False)
    assert told["artefact"] == {"digest": MINE.digest, "point": None}
    assert told["promise"] == "at most 1 point below large with 95% confidence"


def test_a_dry_run_changes_nothing_and_makes_no_store(config: Path, folder: Path):
    done = publish(config, folder, "--dry-run")
    assert (done.code, "would publish" in done.err) == (0, True)
    assert not (config.parent / "llmrouter.db").exists()


def test_the_generic_one_can_be_published_again_at_another_point(config: Path, folder: Path):
    publish(config, folder)
    done = publish(config, "generic", "--point", "0")
    assert "published version 3 with the generic artefact" in done.err
    assert done.err.rstrip().endswith("no guarantee")
    current = versions(config).current()
    assert (current.artefact_digest, current.point) == (None, 0)


def test_one_for_other_models_is_refused(config: Path, tmp_path: Path):
    other = write_toy(tmp_path / "other", ToyArtefact.of(roles={"small": ["x"], "large": ["l"]}))
    for arguments in ((), ("--dry-run",)):
        done = publish(config, other, *arguments)
        assert done.code == 2
        assert "small is s, and it was trained on x" in done.err


def test_costs_that_have_moved_are_warned_of(config: Path, tmp_path: Path):
    done = publish(config, write_toy(tmp_path / "other", ToyArtefact.of(costs={"small": 1, "large": 10})))
    assert done.code == 0
    assert "tiers.auto: a usual call of large (l) costs 1 times one of small (s), and the artefact" in done.err


def test_a_base_version_that_is_no_longer_in_force_is_refused(config: Path, folder: Path):
    publish(config, folder)
    done = publish(config, folder, "--base-version", "1")
    assert done.code != 0
    assert "the current routing version is 2, not 1" in done.err


def test_one_that_no_tier_goes_by_is_published_with_a_warning(config: Path, folder: Path):
    config.write_text(config.read_text().replace('strategy = "router"', ""))
    done = publish(config, folder)
    assert done.code == 0
    assert "no tier goes by it" in done.err


def test_list_tells_what_learned_tiers_go_by(config: Path, folder: Path):
    prepare_store(load(config))
    assert "learned tiers go by the generic artefact, which promises nothing" in listed(config).err
    publish(config, folder, "--point", "0")
    assert (
        f"learned tiers go by the artefact {MINE.digest[:12]}, operating point 0, trained for small = s, large = l: at "
        "most 1 point" in listed(config).err
    )
    versions(config).fall_back(2, "auto", "scores moved")
    assert "tier auto is at its safe operating point since" in listed(config).err
    history = listed(config, "--history").out
    assert [line.split()[-2:] for line in history.splitlines()[1:2]] == [["at", "0"]]
    shown = listed(config, "--json").json
    assert shown["artefact_about"]["roles"] == {"small": ["s"], "large": ["l"]}
    assert [each["tier"] for each in shown["fallbacks"]] == ["auto"]


def listed(config: Path, *arguments: str) -> Ran:
    return llmrouter("rules", "list", *arguments, "--config", config)


def test_an_exported_version_brings_its_artefact_along(config: Path, folder: Path, tmp_path: Path):
    publish(config, folder, "--point", "0")
    exported = listed(config, "--json").json
    publish(config, "generic")
    file = tmp_path / "rules.json"
    file.write_text(json.dumps(exported))
    assert "current routing version is 3" in applied(config, file).err
    done = applied(config, file, "--base-version", "3")
    assert done.code == 0, done.err
    current = versions(config).current()
    assert (current.version, current.artefact_digest, current.point) == (4, MINE.digest, 0)


def applied(config: Path, file: Path, *arguments: str) -> Ran:
    return llmrouter("rules", "apply", file, *arguments, "--config", config)


@pytest.mark.parametrize(
    ("learned", "says"),
    [
        ({"digest": "f" * 64}, "the store has no artefact 'ffff"),
        ({"digest": 7}, "artefact.digest must be text, or null"),
        ({"digest": None, "point": "3"}, "artefact: point must be a whole number"),
        ({"digset": None}, "artefact must be"),
        ({"digest": None, "point": 9}, "has no operating point 9"),
    ],
)
def test_a_file_with_an_artefact_that_cannot_be_used_is_refused(
    config: Path, tmp_path: Path, learned: object, says: str
):
    prepare_store(load(config))
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"rules": [], "artefact": learned}))
    for arguments in ((), ("--dry-run",)):
        done = applied(config, file, *arguments)
        assert done.code != 0
        assert says in done.err


def test_a_rollback_brings_the_artefact_back_and_says_so(config: Path, folder: Path):
    publish(config, folder)
    publish(config, "generic")
    done = llmrouter("rules", "rollback", "2", "--config", config)
    assert f"and the artefact {MINE.digest[:12]} of version 2" in done.err
    assert versions(config).current().artefact_digest == MINE.digest


def test_a_rollback_to_an_artefact_for_other_models_is_refused(config: Path, folder: Path):
    publish(config, folder)
    publish(config, "generic")
    config.write_text(config.read_text().replace('small = "s"', 'small = "l"').replace('large = "l"', 'large = "s"'))
    done = llmrouter("rules", "rollback", "2", "--config", config)
    assert done.code == 2
    assert "small is l, and it was trained on s" in done.err


def test_show_and_diff_tell_the_artefact_and_its_point(config: Path, folder: Path):
    publish(config, folder, "--point", "0")
    publish(config, folder)
    told = llmrouter("rules", "diff", "1", "2", "--config", config).out
    assert f"learned tiers went by generic, and go by {MINE.digest[:12]} at 0" in told
    as_json = llmrouter("rules", "diff", "2", "--json", "--config", config).json
    assert as_json["artefact"] == {
        "old": {"digest": MINE.digest, "point": 0},
        "new": {"digest": MINE.digest, "point": None},
    }
    assert "operating point 0, trained for" in llmrouter("rules", "show", "2", "--config", config).err
