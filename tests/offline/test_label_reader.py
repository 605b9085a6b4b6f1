"""Reading labels: formats, groups, merging, and what is told of rows that are not used."""

import gzip
import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmrouter.database import migrate
from llmrouter.errors import UsageError
from llmrouter.offline.label_reader import read_labels
from llmrouter.offline.label_report import LabelReport
from llmrouter.offline.labels import LabelSet
from llmrouter.offline.roles import Roles
from llmrouter.quality.importing import import_labels
from llmrouter.quality.label_store import LabelWriter

ROLES = Roles.of_models("8b,70b,best")


def row(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"q-{number}",
        "prompt": f"What is the capital of country number {number}?",
        "scores": {"8b": 0, "70b": 0.5, "best": 1},
        **more,
    }


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    text = "".join(json.dumps(each) + "\n" for each in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def read(path: Path, roles: Roles = ROLES) -> tuple[LabelSet, LabelReport]:
    told: list[LabelReport] = []
    labels = read_labels([path], roles, tell=told.append)
    return labels, told[0]


def test_rows_become_columns_by_role(tmp_path):
    more = {"answers": {"8b": "7", "70b": 7, "best": None}, "out_chars": {"8b": 12}, "cost": {"best": 0.25}}
    labels, report = read(write(tmp_path / "geo.jsonl.gz", [row(1, split="train", **more), row(2)]))
    assert labels.ids == ("q-1", "q-2")
    assert labels.sources == ("geo", "geo")
    assert labels.splits == ("train", None)
    assert labels.asks[0].text == "What is the capital of country number 1?"
    assert list(labels.roles) == ["small", "large", "frontier"]
    assert labels.roles["large"].quality.tolist() == [0.5, 0.5]
    assert labels.roles["small"].answers == ("7", None)
    assert labels.roles["large"].answers == ("7", None)
    assert labels.roles["frontier"].answers == (None, None)
    assert labels.roles["small"].out_chars[0] == 12
    assert math.isnan(labels.roles["small"].out_chars[1])
    assert labels.roles["frontier"].cost_usd[0] == 0.25
    assert labels.models == {"geo": {"small": "8b", "large": "70b", "frontier": "best"}}
    assert (report.read, report.used, dict(report.left_out)) == (2, 2, {})
    assert report.sources["geo"].roles["large"].mean_score == 0.5


def test_a_role_without_scores_in_a_source_is_nan(tmp_path):
    first = write(tmp_path / "a.jsonl", [row(1, source="a")])
    second = write(tmp_path / "b.jsonl", [row(2, scores={"8b": 1, "best": 0, "other": 1})])
    roles = Roles({"b": {"small": "8b", "frontier": "best", "peer1": "other"}, "a": dict(ROLES.of("a"))})
    labels = read_labels([first, second], roles)
    assert list(labels.roles) == ["small", "large", "frontier", "peer1"]
    assert np.isnan(labels.roles["large"].quality).tolist() == [False, True]
    assert np.isnan(labels.roles["peer1"].quality).tolist() == [True, False]


def test_given_groups_stay_and_others_are_found_by_the_question(tmp_path):
    question = "What is the capital of France?"
    rows = [
        row(1, group="mine"),
        row(2, prompt=f"{question}\nA. Paris\nB. Rome"),
        row(3, prompt=f"{question}\nA. Oslo\nB. Paris"),
        row(4),
    ]
    labels, report = read(write(tmp_path / "geo.jsonl", rows))
    assert labels.groups[0] == "mine"
    assert labels.groups[1] == labels.groups[2] != labels.groups[3]
    assert report.sources["geo"].groups == 3


def test_one_object_a_label_is_put_together(tmp_path):
    prompt = "Which is the largest planet?"
    rows = [
        {"id": "q", "prompt": prompt, "model": "8b", "score": 0, "answer": "Mars"},
        {"id": "q", "model": "best", "score": 1},
        {"id": "q", "model": "another", "score": 1},
    ]
    labels, report = read(write(tmp_path / "x.jsonl", rows), Roles.of_models("8b,best"))
    assert len(labels) == 1
    assert labels.asks[0].text == prompt
    assert labels.roles["small"].answers == ("Mars",)
    assert report.left_out == {"of other models only": 1}


def test_what_is_left_out_is_counted_with_the_reason(tmp_path):
    rows = [
        row(1),
        row(1, scores={"8b": 1, "70b": 1, "best": 1}),
        row(2, scores={"8b": 1, "70b": 1}),
        row(3, scores={"70b": 1}),
        {"id": "q-4", "scores": {"8b": 1, "best": 1}},
        row(5, source="elsewhere"),
    ]
    labels, report = read(write(tmp_path / "x.jsonl", rows), Roles({"x": ROLES.of("x")}))
    assert labels.ids == ("q-1",)
    assert labels.roles["small"].quality.tolist() == [0]
    assert report.read == 6
    assert report.left_out == {
        "the same item again": 1,
        "the source elsewhere has no roles": 1,
        "no score of frontier": 1,
        "no score of small and frontier": 1,
        "no prompt": 1,
    }
    assert "left out: 1 (no prompt)" in report.lines()


@pytest.mark.parametrize("score", [1.5, -0.1, "high", None, True, math.nan])
def test_a_score_that_is_none_names_file_line_and_id(tmp_path, score):
    path = write(tmp_path / "x.jsonl", [row(1), row(2, scores={"8b": score, "70b": 1, "best": 1})])
    with pytest.raises(UsageError) as caught:
        read_labels([path], ROLES)
    message = caught.value.message
    assert f"{path}: line 2" in message
    assert "is not valid JSON" in message if score is math.nan else "(id 'q-2'): scores.8b" in message


def test_few_faulty_objects_of_many_are_left_out_and_told(tmp_path):
    path = write(tmp_path / "x.jsonl", [row(n, scores={"8b": 0, "best": 2 if n == 7 else 1}) for n in range(200)])
    labels, report = read(path, Roles.of_models("8b,best"))
    assert len(labels) == 199
    assert report.left_out == {"faulty": 1}
    assert report.faults == (f"{path}: line 8 (id 'q-7'): scores.best: must be a number from 0 to 1, not 2",)


def test_messages_and_tools_are_read_as_the_gateway_reads_requests(tmp_path):
    def talk(first: str) -> list[dict[str, str]]:
        return [
            {"role": "user", "content": first},
            {"role": "assistant", "content": "Sure."},
            {"role": "user", "content": "Go on."},
        ]

    tools = [{"type": "function", "function": {"name": "book_flight"}}]
    rows = [
        {"id": str(number), "messages": messages, "tools": tools, "scores": {"8b": 0, "best": 1}}
        for number, messages in enumerate([talk("Tell me of bees."), talk("Count to ten."), talk("Count to ten.")])
    ]
    labels, _ = read(write(tmp_path / "x.jsonl", rows), Roles.of_models("8b,best"))
    assert labels.asks[0].text == "Go on."
    assert labels.asks[0].turns == 2
    assert "bees" in labels.asks[0].history
    assert "book_flight" in labels.asks[0].tools
    assert labels.groups[0] != labels.groups[1] == labels.groups[2]


def test_messages_without_a_user_are_no_prompt(tmp_path):
    silent = {"id": "s", "messages": [{"role": "system", "content": "Hi"}], "scores": {"8b": 0, "best": 1}}
    _, report = read(write(tmp_path / "x.jsonl", [row(1), silent]), Roles.of_models("8b,best"))
    assert report.left_out == {"no prompt": 1}


def test_a_model_that_is_nowhere_is_refused_with_the_models_there_are(tmp_path):
    path = write(tmp_path / "x.jsonl", [row(1)])
    with pytest.raises(UsageError, match=r"--models: large: no label is of '70B'; the labels are of 70b, 8b, best"):
        read_labels([path], Roles.of_models("8b,70B"))


def test_a_model_that_a_source_lacks_is_refused_with_the_source(tmp_path):
    path = write(tmp_path / "x.jsonl", [row(1)])
    with pytest.raises(UsageError, match=r"x: frontier: no label is of 'gpt'; the labels are of 70b, 8b, best"):
        read_labels([path], Roles({"x": {"small": "8b", "frontier": "gpt"}}, origin="roles.json"))


def test_no_usable_row_is_an_error_that_says_why(tmp_path):
    path = write(tmp_path / "x.jsonl", [{"id": "q", "scores": {"8b": 1, "best": 1}}])
    with pytest.raises(UsageError, match=r"no usable labels; 1 objects read, 0 rows used; left out: 1 \(no prompt\)"):
        read_labels([path], Roles.of_models("8b,best"))


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file_is_an_error(tmp_path, text):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match="holds no labels"):
        read_labels([path], ROLES)


def test_a_missing_file_is_an_error():
    with pytest.raises(UsageError, match=r"nowhere\.jsonl: no such file"):
        read_labels([Path("nowhere.jsonl")], ROLES)


def test_the_smallest_inclusion_probability_of_a_row_counts(tmp_path):
    rows = [row(1, inclusion_probability=0.5), row(2, inclusion_probability={"8b": 0.25, "best": 0.75}), row(3)]
    assert read(write(tmp_path / "x.jsonl", rows))[0].inclusion.tolist() == [0.5, 0.25, 1]


def test_a_store_gives_its_latest_labels(tmp_path):
    store = tmp_path / "llmrouter.db"
    migrate(store)
    now = datetime(2026, 12, 1, tzinfo=UTC)
    with LabelWriter.of(store) as writer:
        objects = [("line 1", row(1)), ("line 2", row(2, source="geo", group="g"))]
        import_labels(objects, writer, now=lambda: now, on_refused=lambda *_: None)
        again = [("line 1", row(1, scores={"8b": 1}))]
        import_labels(again, writer, now=lambda: now, on_refused=lambda *_: None)
    for given in (store, Path(f"ledger:{store}")):
        labels, _ = read(given)
        assert labels.ids == ("q-1", "q-2")
        assert labels.sources == ("llmrouter", "geo")
        assert labels.roles["small"].quality.tolist() == [1, 0]


def test_what_is_no_store_is_refused_as_one(tmp_path):
    path = write(tmp_path / "x.jsonl", [row(1)])
    with pytest.raises(UsageError, match="is no store"):
        read_labels([Path(f"ledger:{path}")], ROLES)
    with pytest.raises(UsageError, match="no such store"):
        read_labels([Path("ledger:nowhere.db")], ROLES)


def test_a_folder_stands_for_the_files_in_it(tmp_path):
    write(tmp_path / "b.jsonl.gz", [row(2)])
    write(tmp_path / "a.jsonl", [row(1)])
    (tmp_path / "README.md").write_text("not labels")
    labels, _ = read(tmp_path)
    assert labels.sources == ("a", "b")


def test_a_folder_without_labels_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds no labels"):
        read_labels([tmp_path], ROLES)


def test_parquet_and_saved_data_sets_read_as_jsonl_does(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [row(1, answers={"8b": "7"}, split=None), row(2, split="dev"), row(3, scores={"8b": 1, "best": 1})]
    expected, _ = read(write(tmp_path / "x.jsonl", rows))
    table = datasets.Dataset.from_list([{**each, "source": "x"} for each in rows])
    table.to_parquet(tmp_path / "x.parquet")
    table.save_to_disk(tmp_path / "saved")
    for path in (tmp_path / "x.parquet", tmp_path / "saved"):
        labels, report = read(path)
        assert labels.ids == expected.ids
        assert labels.splits == expected.splits
        assert labels.asks == expected.asks
        assert labels.roles["small"].answers == expected.roles["small"].answers
        np.testing.assert_array_equal(labels.roles["large"].quality, expected.roles["large"].quality)
        assert dict(report.left_out) == {}


def test_a_file_that_is_no_parquet_is_refused(tmp_path):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"not parquet")
    with pytest.raises(UsageError, match=r"x\.parquet: cannot be read after row 0"):
        read_labels([path], ROLES)


def test_splits_of_a_saved_data_set_are_those_of_its_rows(tmp_path):
    datasets = pytest.importorskip("datasets")
    parts = {"train": datasets.Dataset.from_list([row(1)]), "dev": datasets.Dataset.from_list([row(2)])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    assert read(tmp_path / "saved")[0].splits == ("train", "dev")


def test_progress_is_told_by_file(tmp_path):
    path = write(tmp_path / "x.jsonl", [row(n) for n in range(1001)])
    told = []
    read_labels([path], ROLES, progress=lambda file, count: told.append((file, count)))
    assert told == [(str(path), 500), (str(path), 1000), (str(path), 1001)]


SURE = {"tokens": 3, "mean_logprob": -0.1, "min_logprob": -0.2, "first_logprob": -0.1}


def test_what_checks_showed_becomes_columns(tmp_path):
    more = {
        "signals": {"8b": {**SURE, "tokens": 30}},
        "prefix_signals": {"8b": SURE},
        "p_true": {"8b": 0.75},
        "input_tokens": {"8b": 40},
        "output_tokens": {"8b": 10},
        "self_check_input_tokens": {"8b": 19},
        "self_check_output_tokens": {"8b": 1},
    }
    labels, _ = read(write(tmp_path / "a.jsonl", [row(1, **more), row(2)]))
    small = labels.roles["small"]
    assert [each and each.tokens for each in small.signals] == [30, None]
    assert [each and each.tokens for each in small.prefix_signals] == [3, None]
    assert small.p_true[0] == 0.75
    assert small.self_check_share[0] == 0.4
    assert np.isnan(small.p_true[1])
    assert len(labels.roles["large"].p_true) == 0
    turned = labels.take(np.array([1, 0])).roles["small"]
    assert turned.signals == small.signals[::-1]
    assert turned.p_true[1] == 0.75


def test_samples_of_the_small_model_take_the_places_of_missing_peers(tmp_path):
    more = {"samples": {"8b": ["7", None, "8"]}, "sample_scores": {"8b": [1, 0, 0]}, "sample_chars": {"8b": [5, 6, 7]}}
    rows = [row(1, **more, samples_cost_usd={"8b": 0.3}), row(2)]
    labels, report = read(write(tmp_path / "a.jsonl", rows))
    assert labels.models["a"] == {"small": "8b", "large": "70b", "frontier": "best"} | dict.fromkeys(
        ("peer1", "peer2", "peer3"), "8b"
    )
    peer = labels.roles["peer1"]
    assert (peer.quality[0], peer.answers, peer.out_chars[0]) == (1, ("7", None), 5)
    assert peer.cost_usd[0] == pytest.approx(0.1)
    assert np.isnan(peer.quality[1])
    assert report.sources["a"].roles["peer3"].labels == 1


def test_samples_of_a_source_with_peers_are_left(tmp_path):
    roles = Roles({"a": {"small": "8b", "large": "70b", "peer1": "best"}})
    more = {"samples": {"8b": ["7"]}, "sample_scores": {"8b": [1]}}
    labels, _ = read(write(tmp_path / "a.jsonl", [row(1, **more)]), roles)
    assert labels.roles["peer1"].quality.tolist() == [1]
    assert "peer2" not in labels.roles


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"p_true": {"8b": 1.5}}, "p_true: must be a number from 0 to 1"),
        ({"signals": {"8b": {"tokens": 3}}}, "signals: `signals.mean_logprob` must be a number"),
        ({"samples": {"8b": ["7", "8"]}, "sample_scores": {"8b": [1]}}, "sample_scores: must be a list of 2 scores"),
        ({"samples": {"8b": ["7"]}, "sample_scores": {"8b": [math.inf]}}, "sample_scores: must be a number from 0"),
    ],
)
def test_faulty_checks_are_told_with_their_line(tmp_path, more, told):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row(1)) + "\n" + json.dumps(row(2, **more)).replace("Infinity", "7") + "\n")
    with pytest.raises(UsageError, match=rf"a\.jsonl: line 2 \(id 'q-2'\): {told}"):
        read(path)


def test_keys_of_other_rows_that_are_called_the_same_are_passed_over(tmp_path):
    labels, _ = read(write(tmp_path / "a.jsonl", [row(1, signals="smoke", samples=5, p_true={"else": "x"})]))
    assert labels.roles["small"].signals == ()
