"""Reports as text and as files: exact, and the same in each form."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.errors import UsageError
from llmrouter.ledger.duck import duck
from llmrouter.ledger.usage import NUMBERS, Group, Question, Report
from llmrouter.ledger.usage_formats import columns, dollars, records, report_as_json, write_csv, write_parquet
from llmrouter.pricing.money import from_pico

REPORT = Report(
    Question("calls", ("tenant", "tag:a'b")),
    (
        Group(("acme", 'x,"y"'), (3, 1, 0, 0, 0, 0, 10, 5, 0, 7, 2, 10**30 // 10**12 + 1, 2)),
        Group(("acme", None), (1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0)),
    ),
)


@given(st.integers(0, 10**36))
def test_dollars_are_exact_and_never_in_exponents(pico):
    text = dollars(pico)
    assert Decimal(text) == from_pico(pico)
    assert "E" not in text.upper()
    assert len(text.partition(".")[2]) >= 2


@pytest.mark.parametrize(
    ("pico", "text"), [(0, "0.00"), (1, "0.000000000001"), (10**12, "1.00"), (45 * 10**7, "0.00045")]
)
def test_dollars_have_no_more_places_than_they_need(pico, text):
    assert dollars(pico) == text


def test_csv_has_a_line_of_names_and_one_for_each_group():
    out = io.StringIO()
    write_csv(columns(REPORT), records(REPORT), out)
    first, second = csv.DictReader(io.StringIO(out.getvalue()))
    assert (first["tag:a'b"], second["tag:a'b"]) == ('x,"y"', "")
    assert first["cost_usd"] == "1000000.000000000001"
    assert list(first) == ["tenant", "tag:a'b", *NUMBERS["calls"]]


def test_parquet_holds_exact_decimals(tmp_path):
    path = tmp_path / "it's usage.parquet"
    write_parquet(columns(REPORT), records(REPORT), path)
    with duck("test") as engine:
        rows = engine.execute("SELECT * FROM read_parquet(?) ORDER BY requests DESC", [str(path)]).fetchall()
        kinds = dict(engine.execute("SELECT name, duckdb_type FROM parquet_schema(?)", [str(path)]).fetchall())
    assert rows[0][:2] == ("acme", 'x,"y"')
    assert rows[0][-2:] == (Decimal("1000000.000000000001"), Decimal("0.000000000002"))
    assert rows[1][1] is None
    assert kinds["cost_usd"] == "DECIMAL(38,12)"
    assert kinds["requests"] == "BIGINT"


def test_parquet_of_no_groups_has_the_columns_all_the_same(tmp_path):
    write_parquet(["tenant", "cost_usd"], [], tmp_path / "empty.parquet")
    with duck("test") as engine:
        found = engine.execute("SELECT * FROM read_parquet(?)", [str(tmp_path / "empty.parquet")])
        assert [column[0] for column in found.description or []] == ["tenant", "cost_usd"]
        assert found.fetchall() == []


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match="there is no folder"):
        write_parquet(["tenant"], [], tmp_path / "no" / "u.parquet")


def test_json_says_what_was_asked_and_the_total():
    shown = report_as_json(REPORT)
    assert shown["by"] == ["tenant", "tag:a'b"]
    assert shown["total"]["requests"] == 4
    assert [group["tag:a'b"] for group in shown["groups"]] == ['x,"y"', None]


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_csv_holds_no_name_that_a_spreadsheet_runs_as_a_formula(name):
    out = io.StringIO()
    write_csv(["user", "requests", "cost_usd"], [{"user": name, "requests": 1, "cost_usd": "0.50"}], out)
    (row,) = csv.DictReader(io.StringIO(out.getvalue(), newline=""))
    assert row == {"user": f"'{name}", "requests": "1", "cost_usd": "0.50"}


def test_csv_keeps_a_name_with_line_breaks_in_one_row():
    out = io.StringIO()
    write_csv(["user", "requests"], [{"user": "a\rb\nc", "requests": 1}, {"user": None, "requests": 2}], out)
    assert list(csv.reader(io.StringIO(out.getvalue(), newline=""))) == [
        ["user", "requests"],
        ["a\rb\nc", "1"],
        ["", "2"],
    ]


def test_parquet_cannot_have_names_that_differ_in_case_only(tmp_path):
    with pytest.raises(UsageError, match="cannot have both 'tag:Team' and 'tag:team'"):
        write_parquet(["tag:Team", "tag:team"], [], tmp_path / "x.parquet")


def test_a_folder_in_place_of_a_parquet_file_is_named(tmp_path):
    with pytest.raises(UsageError, match="it is a folder; name a file in it"):
        write_parquet(["tenant"], [], tmp_path)
