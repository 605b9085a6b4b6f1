"""Roles: models of a command line and of a file, by source."""

import json

import pytest

from llmrouter.errors import UsageError
from llmrouter.offline.roles import Roles

FILE = {
    "gsm": {"small": "8b", "large": "70b", "frontier": "best", "peers": ["other-8b", "third-8b"]},
    "mmlu": {"small": "mix", "frontier": "gpt"},
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "roles.json"
    path.write_text(json.dumps(FILE))
    return path


def test_two_models_are_small_and_large_for_every_source():
    assert Roles.of_models("8b, 70b").of("anything") == {"small": "8b", "large": "70b"}


def test_three_models_end_with_the_frontier():
    assert list(Roles.of_models("8b,70b,best").of("x").items())[-1] == ("frontier", "best")


@pytest.mark.parametrize("models", ["", "8b", "8b,", "a,b,c,d", "a,a"])
def test_other_counts_and_repeats_are_refused(models):
    with pytest.raises(UsageError, match="--models"):
        Roles.of_models(models)


def test_peers_are_numbered_in_the_order_of_the_file(file):
    assert Roles.load(file).of("gsm") == {
        "small": "8b",
        "large": "70b",
        "frontier": "best",
        "peer1": "other-8b",
        "peer2": "third-8b",
    }


def test_a_source_that_the_file_does_not_name_is_refused_with_those_it_names(file):
    roles = Roles.load(file)
    assert not roles.knows("bfcl")
    with pytest.raises(UsageError, match=r"roles\.json: says nothing of the source 'bfcl'; it names gsm, mmlu"):
        roles.of("bfcl")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"small": "a", "medium": "b"}, "gsm: medium: is no role"),
        ({"small": "a", "large": 7}, "gsm: large: must be the id of a model, not 7"),
        ({"small": "a"}, "gsm: needs small and at least one of large and frontier"),
        ({"large": "a", "frontier": "b"}, "gsm: needs small"),
        ({"small": "a", "large": "b", "peers": "c"}, "gsm: peers: must be a list"),
        ({"small": "a", "large": "b", "peers": ["a"]}, "gsm: peer1: 'a' is small already"),
        (["a", "b"], "gsm: must be an object"),
    ],
)
def test_a_wrong_file_names_source_key_and_value(tmp_path, source, message):
    path = tmp_path / "roles.json"
    path.write_text(json.dumps({"gsm": source}))
    with pytest.raises(UsageError, match=message):
        Roles.load(path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", "3"])
def test_a_file_without_sources_is_refused(tmp_path, text):
    path = tmp_path / "roles.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"roles\.json"):
        Roles.load(path)


def test_models_beside_a_file_are_for_the_sources_that_it_does_not_name(file):
    roles = Roles.given("x,y", file)
    assert roles.of("mmlu")["small"] == "mix"
    assert roles.of("bfcl") == {"small": "x", "large": "y"}


def test_role_names_beside_a_file_keep_these_roles_and_the_peers(file):
    file.write_text(json.dumps({"gsm": FILE["gsm"]}))
    assert list(Roles.given("small,frontier", file).of("gsm")) == ["small", "frontier", "peer1", "peer2"]


def test_a_source_that_keeps_one_role_only_is_not_known_any_more(file):
    roles = Roles.given("small,large", file)
    assert roles.sources == ("gsm",)
    assert not roles.knows("mmlu")


def test_role_names_that_no_source_has_two_of_are_refused(file):
    file.write_text(json.dumps({"mmlu": FILE["mmlu"]}))
    with pytest.raises(UsageError, match="no source has two of the roles small, large"):
        Roles.given("small,large", file)


def test_neither_models_nor_file_is_refused():
    with pytest.raises(UsageError, match="--models"):
        Roles.given(None, None)
