"""`llmrouter usage`: reports and invoices on the command line."""

from __future__ import annotations

import csv
import io
import json
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from llmrouter.ledger.archiving import archive_entries
from llmrouter.ledger.duck import duck
from tests.cli.command import llmrouter, two_models
from tests.ledger.books import NOON, attempt, entry
from tests.ledger.test_usage import fill

MADE = [
    entry(
        f"r{number}",
        ts=NOON - timedelta(days=number),
        tenant_id=("acme", "other")[number % 2],
        attempts=(attempt(0, outcome="timeout", committed=False, model_id="large"), attempt(1)),
    )
    for number in range(4)
]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    fill(tmp_path / "llmrouter.db", MADE)
    return two_models(tmp_path)


def test_a_table_has_a_line_for_each_group_and_the_total(config):
    ran = llmrouter("usage", "--by", "tenant,day", "--config", config)
    lines = [line.split() for line in ran.out.splitlines()]
    assert lines[0][:3] == ["TENANT", "DAY", "REQUESTS"]
    assert [line[:3] for line in lines[1:-1]] == [
        ["acme", "2026-11-29", "1"],
        ["acme", "2026-12-01", "1"],
        ["other", "2026-11-28", "1"],
        ["other", "2026-11-30", "1"],
    ]
    assert lines[-1][:2] == ["TOTAL", "4"]
    assert lines[-1][-2] == "0.0018"


def test_json_and_csv_say_the_same(config):
    asked = ("usage", "--by", "tenant", "--by", "model", "--measure", "attempts", "--config", config)
    shown = llmrouter(*asked, "--json").json
    assert [(group["tenant"], group["model"], group["attempts"]) for group in shown["groups"]] == [
        ("acme", "large", 2),
        ("acme", "small", 2),
        ("other", "large", 2),
        ("other", "small", 2),
    ]
    rows = list(csv.DictReader(io.StringIO(llmrouter(*asked, "--format", "csv").out)))
    assert rows == [{name: str(number) for name, number in group.items()} for group in shown["groups"]]


def test_a_file_is_written_in_each_format(config, tmp_path):
    for form in ("csv", "json", "parquet"):
        out = tmp_path / f"usage.{form}"
        ran = llmrouter("usage", "--by", "day", "--format", form, "--out", out, "--config", config)
        assert (ran.code, ran.out) == (0, "")
        assert f"wrote 4 groups to {out}" in ran.err
    assert len(json.loads((tmp_path / "usage.json").read_text())["groups"]) == 4
    with duck("test") as engine:
        found = engine.execute("SELECT count(*) FROM read_parquet(?)", [str(tmp_path / "usage.parquet")]).fetchone()
    assert found == (4,)


def test_time_and_tenant_narrow_it_down(config):
    asked = ("usage", "--since", "2026-11-29", "--until", "2026-12", "--tenant", "acme", "--config", config, "--json")
    assert llmrouter(*asked).json["total"]["requests"] == 1


def test_archived_days_count(config, tmp_path):
    list(archive_entries(tmp_path / "llmrouter.db", NOON.date(), pause=lambda _: None))
    assert llmrouter("usage", "--config", config, "--json").json["total"]["requests"] == 4


def test_an_invoice_adds_up(config):
    shown = llmrouter("usage", "--invoice", "acme", "--month", "2026-11", "--config", config, "--json").json
    assert shown["total"]["cost_usd"] == "0.0009"
    assert [line["model"] for line in shown["lines"]] == ["large", "small"]
    assert {line["price"] for line in shown["lines"]} == {"config:small#12345678"}
    table = llmrouter("usage", "--invoice", "acme", "--month", "2026-11", "--config", config)
    assert table.out.splitlines()[0].split()[:4] == ["DAY", "TIER", "MODEL", "PRICE"]
    # Each attempt of these entries costs what its call says, so the lines are twice as much.
    assert "somebody has changed the books by hand" in table.err


def test_no_calls_are_said_to_be_none(config):
    ran = llmrouter("usage", "--by", "tenant", "--tenant", "nobody", "--config", config)
    assert ran.code == 0
    assert "no calls in this time" in ran.err
    ran = llmrouter("usage", "--invoice", "nobody", "--month", "2026-11", "--config", config, "--json")
    assert ran.json["lines"] == []
    assert "tenant nobody has no calls in 2026-11" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--by", "colour"], "cannot group calls by 'colour'; known: tenant,"),
        (["--since", "yesterday"], "--since 'yesterday' is not a day such as 2026-11-30"),
        (["--since", "2026-12-01", "--until", "2026-12-01"], "is empty"),
        (["--measure", "tokens"], "--measure: no measure 'tokens'; known: calls, attempts"),
        (["--format", "xml"], "no format 'xml'; known: table, csv, json, parquet"),
        (["--format", "csv", "--json"], "contradict"),
        (["--format", "parquet"], "name a file with --out"),
        (["--out", "u.txt"], "--out takes --format csv, json or parquet"),
        (["--format", "csv", "--out", "no/such/folder/u.csv"], "cannot be written: No such file"),
        (["--invoice", "acme"], "needs both --invoice TENANT and --month MONTH"),
        (["--month", "2026-11"], "needs both --invoice TENANT and --month MONTH"),
        (["--invoice", "acme", "--month", "2026-11-01"], "--month '2026-11-01' is not a month"),
        (["--invoice", "acme", "--month", "2026-11", "--by", "day"], "takes no --by"),
    ],
)
def test_wrong_use_is_one_clear_line(config, arguments, message):
    ran = llmrouter("usage", *arguments, "--config", config)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.startswith("error: ")


def test_a_store_that_is_not_there_or_not_ours_is_named(tmp_path):
    config = two_models(tmp_path)
    ran = llmrouter("usage", "--config", config)
    assert ran.code == 2
    assert "there is no store at" in ran.err
    (tmp_path / "llmrouter.db").touch()
    ran = llmrouter("usage", "--config", config)
    assert ran.code == 2
    assert "is no store of llmrouter" in ran.err


def test_an_archive_without_duckdb_names_the_extra(config, tmp_path, monkeypatch):
    list(archive_entries(tmp_path / "llmrouter.db", NOON.date(), pause=lambda _: None))
    monkeypatch.setitem(sys.modules, "duckdb", None)
    ran = llmrouter("usage", "--config", config)
    assert ran.code == 2
    assert "pip install '.[reports]'" in ran.err
