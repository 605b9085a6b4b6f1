"""Files of labels: read with line numbers, in bounded memory; written whole or not at all."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmrouter.errors import UsageError
from llmrouter.quality import label_files
from llmrouter.quality.label_files import read_objects, write_objects
from llmrouter.quality.labels import Faulty


def read(path: Path) -> list[tuple[str, Any]]:
    return [(at, str(each) if isinstance(each, Faulty) else each) for at, each in read_objects(path)]


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_what_was_written_reads_back(tmp_path: Path, name: str):
    path = tmp_path / name
    rows = [{"id": "1", "prompt": "ü\n"}, {"id": "2"}]
    assert write_objects(path, rows) == 2
    assert read(path) == [("line 1", rows[0]), ("line 2", rows[1])]
    assert [each.name for each in tmp_path.iterdir()] == [name]
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_same_rows_make_the_same_bytes(tmp_path: Path):
    for name in ("a.gz", "b.gz"):
        write_objects(tmp_path / name, [{"id": "1"}])
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    path.write_text("old")

    def failing() -> Iterator[dict[str, Any]]:
        yield {"id": "1"}
        raise UsageError("broken off")

    with pytest.raises(UsageError, match="broken off"):
        write_objects(path, failing())
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("x.jsonl", "old")]


def test_lines_are_counted_with_those_that_are_blank_or_broken(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": 1}\n\n  \r\n{"id": \n\xff\n{"id": NaN}\n[]')
    found = read(path)
    assert [at for at, _ in found] == ["line 1", "line 4", "line 5", "line 6", "line 7"]
    assert found[0][1] == {"id": 1}
    assert all(text.startswith("is not valid JSON: ") for _, text in found[1:4])
    assert found[4][1] == []


def test_a_line_that_is_too_long_is_passed_over_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(label_files, "LONGEST_LINE", 20)
    path = tmp_path / "x.jsonl"
    path.write_text('{"id": "' + "x" * 95 + '"}\n{"id": 2}\n{"id": "xxxxxxxxxx"}\n' + "y" * 50)
    assert read(path) == [
        ("line 1", "is longer than 20 bytes"),
        ("line 2", {"id": 2}),
        ("line 3", {"id": "xxxxxxxxxx"}),
        ("line 4", "is longer than 20 bytes"),
    ]


def test_a_missing_file_is_named(tmp_path: Path):
    for name in ("x.jsonl", "x.jsonl.gz", "x.parquet"):
        with pytest.raises(UsageError, match=rf"{name}: no such file"):
            read(tmp_path / name)


def test_a_file_that_is_cut_off_or_no_gzip_is_named_with_its_line(tmp_path: Path):
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": 1}\n' * 1000)[:-20])
    with pytest.raises(UsageError, match=r"x\.jsonl\.gz: cannot be read after line \d+: "):
        read(path)
    path.write_bytes(b"plain")
    with pytest.raises(UsageError, match=r"cannot be read after line 0: Not a gzipped file"):
        read(path)


def test_a_folder_that_does_not_exist_cannot_be_written_to(tmp_path: Path):
    with pytest.raises(UsageError, match="cannot be written: No such file or directory"):
        write_objects(tmp_path / "no" / "x.jsonl", [])


def test_a_dash_is_standard_input_and_output(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": 1}\n')))
    assert read(Path("-")) == [("line 1", {"id": 1})]
    assert write_objects(Path("-"), [{"id": "1"}, {"id": "2"}]) == 2
    assert capfdbinary.readouterr().out == b'{"id":"1"}\n{"id":"2"}\n'


def test_parquet_reads_as_the_same_objects(tmp_path: Path):
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "x.parquet"
    with duckdb.connect() as db:
        db.execute(
            "COPY (SELECT 'q' || i AS id, {'s': 1.0, 'l': CASE WHEN i = 0 THEN 0.5 END} AS scores,"
            " MAP {'s': 5} AS input_tokens, ['a', 'b'] AS tags, 'Hi' AS prompt, NULL::VARCHAR AS source,"
            " TIMESTAMP '2026-12-01 09:00:00' AS judged_at"
            f" FROM range(300) t(i)) TO '{path}' (FORMAT parquet)"
        )
    found = read(path)
    assert len(found) == 300
    common = {"input_tokens": {"s": 5}, "tags": ["a", "b"], "prompt": "Hi", "judged_at": "2026-12-01T09:00:00"}
    assert found[0] == ("row 1", {"id": "q0", "scores": {"s": 1.0, "l": 0.5}, **common})
    assert found[299] == ("row 300", {"id": "q299", "scores": {"s": 1.0}, **common})


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path):
    pytest.importorskip("duckdb")
    path = tmp_path / "x.parquet"
    path.write_text("plain text that is no table")
    with pytest.raises(UsageError, match=r"x\.parquet: cannot be read after row 0: "):
        read(path)


def test_without_duckdb_one_sentence_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(UsageError, match=r"pip install '.\[reports\]'"):
        read(tmp_path / "x.parquet")


def test_parquet_is_not_written(tmp_path: Path):
    with pytest.raises(UsageError, match=r"written as \.jsonl or \.jsonl\.gz"):
        write_objects(tmp_path / "x.parquet", [])
