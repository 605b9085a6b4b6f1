"""Labels in the store: in once, judged again as one more, never changed, out as they came."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from llmrouter.database import migrate, open_database, reading, writing
from llmrouter.errors import InternalError
from llmrouter.quality.importing import Imported, import_labels
from llmrouter.quality.label_files import read_objects, write_objects
from llmrouter.quality.label_store import LabelFilter, LabelWriter, label_stats, list_labels, rows_of
from tests.quality.test_labels import REAL, rows

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
Q = {"id": "q", "prompt": "1+1?", "scores": {"s": 0, "l": 1}}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    migrate(path)
    return path


def taken(
    store: Path, objects: Iterable[Any], *, dry_run: bool = False, now: datetime = NOW, **unsaid: Any
) -> tuple[Imported, list[str]]:
    refused: list[str] = []
    numbered = ((f"line {number}", each) for number, each in enumerate(objects, 1))
    with LabelWriter.of(store, dry_run=dry_run) as writer:
        done = import_labels(
            numbered,
            writer,
            now=lambda: now,
            on_refused=lambda at, why: refused.append(f"{at}: {why}"),
            **unsaid,
        )
    return done, refused


def out(store: Path, **wanted: Any) -> list[dict[str, Any]]:
    return list(rows_of(store, LabelFilter(**wanted)))


def test_what_comes_in_goes_out_as_it_was(store: Path):
    done, refused = taken(store, REAL)
    assert (done.objects, done.new, done.known, refused) == (9, 22, 0, [])
    assert out(store) == REAL


def test_what_was_exported_is_known_when_it_is_imported(store: Path, tmp_path: Path):
    taken(store, [*REAL, {**Q, "judge": {"s": "a", "l": "b"}, "kind": "human", "inclusion_probability": 0.1}])
    first, second = tmp_path / "1.jsonl.gz", tmp_path / "2.jsonl.gz"
    write_objects(first, rows_of(store, LabelFilter()))
    done, _ = taken(store, [each for _, each in read_objects(first)])
    assert (done.new, done.known, done.refused) == (0, 24, 0)
    write_objects(second, rows_of(store, LabelFilter()))
    assert first.read_bytes() == second.read_bytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(rows())
def test_any_row_survives_the_store(store: Path, row: dict[str, Any]):
    path = store.with_name("fresh.db")
    migrate(path)
    with writing(path) as connection:
        connection.execute("DELETE FROM quality_labels")
        connection.execute("DELETE FROM label_items")
    assert taken(path, [row, row])[1] == []
    assert out(path) == [row]


@pytest.mark.parametrize("at_once", [1, 2, 3, 9, 10])
def test_items_go_out_in_parts_and_each_once(store: Path, at_once: int):
    taken(store, REAL)
    assert list(rows_of(store, LabelFilter(), at_once=at_once)) == REAL


def test_importing_again_adds_nothing(store: Path):
    taken(store, [Q])
    done, _ = taken(store, [Q], now=NOW + timedelta(days=1))
    assert (done.new, done.known) == (0, 2)


def test_judging_again_adds_a_label_and_the_latest_goes_out(store: Path):
    taken(store, [Q])
    done, _ = taken(store, [{**Q, "scores": {"s": 1, "l": 1}}])
    assert (done.new, done.known) == (1, 1)
    assert out(store) == [{**Q, "scores": {"s": 1, "l": 1}}]
    assert [(each.model_id, each.score) for each in list_labels(store, LabelFilter(), 10)] == [
        ("s", 1),
        ("l", 1),
        ("s", 0),
    ]


def test_labels_of_one_item_come_together_from_several_files(store: Path):
    taken(store, [{"id": "q", "model_id": "s", "score": 1}])
    taken(store, [{"id": "q", "model_id": "l", "score": 0, "group": "g"}])
    taken(store, [{"id": "q", "prompt": "1+1?", "scores": {"m": 1}}])
    assert out(store) == [{"id": "q", "group": "g", "prompt": "1+1?", "scores": {"s": 1, "l": 0, "m": 1}}]


def test_another_prompt_under_a_known_id_is_refused_whole(store: Path):
    done, refused = taken(store, [Q, {**Q, "prompt": "2+2?", "scores": {"x": 1}}, {**Q, "id": "r"}])
    assert (done.new, done.refused) == (4, 1)
    assert refused == [
        "line 2: item 'q' is known already, and the prompt or the messages was another; give it another id"
    ]
    assert [row["id"] for row in out(store)] == ["q", "r"]


def test_faulty_objects_are_told_with_their_line_and_the_others_taken(store: Path):
    done, refused = taken(store, [Q, {"id": "r", "scores": {"s": 2}}, {**Q, "id": "t"}])
    assert (done.objects, done.new, done.refused) == (3, 4, 1)
    assert refused == ["line 2: scores.s: must be a number from 0 to 1, not 2"]


@pytest.mark.parametrize("known", [[], [Q], [{**Q, "prompt": "another"}]])
def test_a_dry_run_says_what_would_come_and_writes_nothing(store: Path, known: list[dict[str, Any]]):
    taken(store, known)
    before = out(store)
    objects = [*(dict(Q, id=f"q{number}") for number in range(600)), Q, Q, {"id": "q", "scores": {"s": 9}}]
    said, why = taken(store, objects, dry_run=True)
    assert out(store) == before
    done, refused = taken(store, objects)
    assert (said, why) == (done, refused)


def test_what_labels_do_not_say_is_taken_from_the_command(store: Path):
    taken(store, [Q, {**Q, "id": "r", "kind": "eval", "judge": "exact"}], kind="human", judge="alice")
    assert {(row["id"], row["kind"], row["judge"]) for row in out(store)} == {
        ("q", "human", "alice"),
        ("r", "eval", "exact"),
    }


def test_a_filter_chooses_labels_and_items_without_any_are_left_out(store: Path):
    taken(store, [Q, {"id": "r", "scores": {"s": 1}, "kind": "human", "judged_at": "2026-11-01T00:00:00Z"}])
    assert [row["id"] for row in out(store, model_id="l")] == ["q"]
    assert out(store, model_id="l")[0]["scores"] == {"l": 1}
    assert [row["id"] for row in out(store, kind="human")] == ["r"]
    assert [row["id"] for row in out(store, since=datetime(2026, 11, 2, tzinfo=UTC))] == ["q"]
    assert [row["id"] for row in out(store, since=datetime(2026, 11, 1, tzinfo=UTC))] == ["q", "r"]
    assert out(store, judge="nobody") == []


def test_the_prompt_of_an_item_without_one_may_come_from_elsewhere(store: Path):
    taken(store, [{"id": "r1", "scores": {"s": 1}}, Q])
    asked = []

    def content_of(item_id: str) -> dict[str, Any]:
        asked.append(item_id)
        return {"prompt": "from a sample"}

    first, second = rows_of(store, LabelFilter(), content_of=content_of)
    assert (first["prompt"], second["prompt"], asked) == ("from a sample", "1+1?", ["r1"])


def test_statistics_count_every_label(store: Path):
    taken(store, [Q, {**Q, "id": "r", "scores": {"s": 1}}, {**Q, "scores": {"s": 0.5}, "kind": "human", "judge": "bo"}])
    found = [
        (each.model_id, each.kind, each.judge, each.labels, each.items, each.mean_score)
        for each in label_stats(store, LabelFilter())
    ]
    assert found == [
        ("l", "import", None, 1, 1, 1.0),
        ("s", "human", "bo", 1, 1, 0.5),
        ("s", "import", None, 2, 2, 0.5),
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE quality_labels SET score = 1",
        "UPDATE quality_labels SET answer = '\"43\"'",
        "UPDATE label_items SET content = '{}'",
        "UPDATE label_items SET item_id = 'x'",
        "UPDATE label_items SET tags = NULL",
        "INSERT INTO quality_labels VALUES (9, 1, 's', 1.5, 'eval', NULL, NULL, NULL, NULL, '{}', NULL, x'00', '')",
    ],
)
def test_the_tables_refuse_what_would_change_a_label(store: Path, statement: str):
    taken(store, [{**Q, "answers": {"s": "42"}, "tags": ["t"]}])
    with pytest.raises(InternalError), writing(store) as connection:
        connection.execute(statement)


def test_a_long_file_is_taken_in_short_transactions(store: Path):
    """Others write in between: no transaction is open while the next objects are read."""
    other = open_database(store, busy_timeout_s=0)

    def objects() -> Iterable[dict[str, Any]]:
        for number in range(1500):
            other.execute("BEGIN IMMEDIATE")
            other.execute("COMMIT")
            yield {"id": f"q{number}", "scores": {"s": 1}}

    done, _ = taken(store, objects())
    other.close()
    assert done.new == 1500


def test_the_view_shows_labels_with_their_items(store: Path):
    taken(store, [{**Q, "group": "g"}])
    with reading(store) as connection:
        found = connection.execute("SELECT item_id, group_id, model_id, score FROM labels ORDER BY id").fetchall()
    assert found == [("q", "g", "s", 0.0), ("q", "g", "l", 1.0)]
