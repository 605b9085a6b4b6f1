"""The format of labels: what is read, what is refused, and that what is written reads as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.quality.labels import ALIASES, Faulty, read_row, write_row

REAL = [json.loads(line) for line in (Path(__file__).parent / "data" / "labels.jsonl").read_text().splitlines()]


def again(row: dict[str, Any]) -> dict[str, Any]:
    read = read_row(row)
    return write_row(read.item, read.labels)


@pytest.mark.parametrize("row", REAL, ids=lambda row: row["id"])
def test_real_labels_read_and_write_as_they_are(row: dict[str, Any]):
    assert again(row) == row


names = st.text(min_size=1, max_size=8)
models = st.lists(st.sampled_from(["s", "m", "l", "x/y:z"]), min_size=1, max_size=4, unique=True)
words: st.SearchStrategy[Any] = st.text(max_size=10)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    of = draw(models)

    def by_model(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
        return st.lists(st.sampled_from(of), min_size=1, unique=True).flatmap(
            lambda some: st.fixed_dictionaries(dict.fromkeys(some, values))
        )

    said = st.one_of(
        st.fixed_dictionaries({"prompt": words}),
        st.fixed_dictionaries({"messages": st.just([{"role": "user", "content": "Hi"}])}),
        st.just({}),
    )
    optional: dict[str, st.SearchStrategy[Any]] = {
        "group": names,
        "source": names,
        "input_tokens": by_model(st.integers(0, 10**6)),
        "output_tokens": by_model(st.integers(0, 10**6)),
        "cost_usd": by_model(st.floats(0, 10)),
        "answers": by_model(st.none() | st.text(max_size=5) | st.integers(-9, 9)),
        "tags": st.lists(names, max_size=3) | st.dictionaries(names, names, max_size=2),
        "judge": names,
        "kind": st.sampled_from(["eval", "shadow", "human"]),
        "routing_version": st.integers(0, 99),
        "inclusion_probability": st.floats(0.001, 1),
        "judged_at": st.just("2026-12-01T09:00:00.000000Z"),
        "domain": words,
        "turns": st.lists(words, max_size=2),
    }
    scores = {model: draw(st.floats(0, 1)) for model in of}
    return {"id": draw(names), "scores": scores, **draw(said), **draw(st.fixed_dictionaries({}, optional=optional))}


@given(rows())
def test_what_is_written_is_what_was_read(row: dict[str, Any]):
    assert again(row) == row


@given(rows())
def test_the_same_label_has_the_same_digest_in_whatever_order_it_is_written(row: dict[str, Any]):
    backwards = dict(reversed(row.items())) | {"scores": dict(reversed(row["scores"].items()))}
    one, other = read_row(row), read_row(backwards)
    assert one.item == other.item
    assert {label.digest("i") for label in one.labels} == {label.digest("i") for label in other.labels}


def test_circumstances_may_differ_by_model():
    row = {
        "id": "q",
        "scores": {"s": 0.5, "l": 1},
        "judge": {"s": "alice", "l": "exact"},
        "kind": {"s": "human", "l": "import"},
        "inclusion_probability": {"s": 0.1},
    }
    assert again(row) == row
    assert [(label.judge, label.kind) for label in read_row(row).labels] == [("alice", "human"), ("exact", "import")]


def test_one_object_a_label_is_understood():
    given_row = {"request_id": "q", "model": "s", "score": 1, "in_tokens": 5, "answer": "42", "scorer": "exact"}
    assert again(given_row) == {
        "id": "q",
        "scores": {"s": 1},
        "input_tokens": {"s": 5},
        "answers": {"s": "42"},
        "judge": "exact",
    }


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_every_alias_means_what_it_stands_for(alias: str, name: str):
    wide = {"id": "q", "scores": {"s": 1}}
    flat = {"id": "q", "model_id": "s", "score": 1}
    values: dict[str, Any] = {"id": "q", "model_id": "s", "group": "g", "prompt": "p", "judge": "j"}
    row = flat if name == "model_id" else wide
    value = values.get(name, {"s": 3})
    renamed = {key: each for key, each in row.items() if key != name} | {alias: value}
    assert again(renamed) == again(row | {name: value})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"id": None}, "id: is missing"),
        ({"id": ""}, "id: must be text of 1 to 512 characters, not ''"),
        ({"id": True}, "id: must be text"),
        ({"scores": {}}, "scores: must map models to scores, not {}"),
        ({"scores": [1]}, r"scores: must map models to scores, not \[1\]"),
        ({"scores": {"s": 1.5}}, r"scores\.s: must be a number from 0 to 1, not 1\.5"),
        ({"scores": {"s": -0.1}}, r"scores\.s: must be a number from 0 to 1, not -0\.1"),
        ({"scores": {"s": True}}, r"scores\.s: must be a number from 0 to 1, not True"),
        ({"scores": {"s": None}}, r"scores\.s: must be a number from 0 to 1, not None"),
        ({"scores": {"s": float("nan")}}, r"scores\.s: must be a number from 0 to 1, not nan"),
        ({"scores": {"s": 1}, "score": 1}, "does not go with score or model_id"),
        ({"input_tokens": {"l": 1}}, "input_tokens: names the model 'l', which has no score"),
        ({"input_tokens": 5}, "input_tokens: must map models to values, not 5"),
        ({"input_tokens": {"s": -1}}, r"input_tokens\.s: must be a whole number from 0 up, not -1"),
        ({"input_tokens": {"s": 1.5}}, r"input_tokens\.s: must be a whole number"),
        ({"cost_usd": {"s": -1}}, r"cost_usd\.s: must be dollars from 0 up, not -1"),
        (
            {"in_tokens": {}, "input_tokens": {}},
            "input_tokens: says again what input_tokens says|in_tokens: says again",
        ),
        ({"prompt": "x", "messages": [{}]}, "messages: does not go with prompt"),
        ({"prompt": 5}, "prompt: must be text, not 5"),
        ({"messages": "x"}, "messages: must be a list of messages, not 'x'"),
        ({"tags": "x"}, "tags: must be a list or an object, not 'x'"),
        ({"kind": "guess"}, "kind: must be one of eval, shadow, human, import, not 'guess'"),
        ({"judged_at": "soon"}, "judged_at: must be an ISO time, not 'soon'"),
        ({"judged_at": "0001-01-01T00:00+14:00"}, "judged_at: must be an ISO time, not '0001-01-01T00:00.14:00'"),
        ({"inclusion_probability": 0}, "inclusion_probability: must be a number above 0, at most 1, not 0"),
        ({"routing_version": 1.5}, r"routing_version: must be a whole number from 0 up, not 1\.5"),
    ],
)
def test_a_fault_is_named_with_its_key_and_value(change: dict[str, Any], complaint: str):
    with pytest.raises(Faulty, match=complaint):
        read_row({"id": "q", "scores": {"s": 1}, **change})


@pytest.mark.parametrize("given_row", [5, None, [], "x"])
def test_what_is_no_object_is_refused(given_row: Any):
    with pytest.raises(Faulty, match="must be a JSON object"):
        read_row(given_row)


def test_an_object_without_scores_says_how_to_give_them():
    with pytest.raises(Faulty, match=r"give scores \(a map by model\), or model_id and score"):
        read_row({"id": "q", "score": 1})


@given(
    st.dictionaries(
        st.sampled_from([*ALIASES, "id", "scores", "score", "kind", "tags"]), st.none() | st.integers() | words
    )
)
def test_no_object_makes_it_fail_otherwise(given_row: dict[str, Any]):
    try:
        row = read_row(given_row)
    except Faulty:
        return
    assert row.labels
