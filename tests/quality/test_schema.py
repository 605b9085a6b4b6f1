"""The third migration: over a file that the second one filled, undone, and made again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from llmrouter.database import downgrade, migrate, open_database, reading
from llmrouter.ledger.queries import recent_entries
from llmrouter.ledger.sqlite import SqliteLedger
from llmrouter.quality.label_store import LabelWriter
from llmrouter.quality.labels import read_row
from llmrouter.schema import migration_names
from llmrouter.tenancy.keys import KeyStore
from tests.ledger.books import NOON, entry, reservation
from tests.quality.calls import NOW
from tests.quality.test_sample_store import fill

BEFORE, NAME = "0002_reservations_limits", "0003_samples_labels"


async def filled_by_the_second(path: Path) -> Path:
    """A file as it was before samples and labels, with rows in its tables.

    They are written by this release, which knows later columns of them; an older one left the same.
    """
    migrate(path)
    KeyStore(path, b"pepper").create("default", note="old")
    ledger = SqliteLedger(path)
    await ledger.open(reservation("r1"))
    await ledger.record(entry("r1"))
    await ledger.open(reservation("r2"))
    await ledger.aclose()
    downgrade(path, BEFORE)
    return path


def schema(path: Path) -> list[Any]:
    with reading(path) as connection:
        return connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()


def columns(path: Path) -> dict[str, str]:
    """The columns of the tables that hold rows."""
    tables = ("api_keys", "ledger", "attempts", "reservations", "owners", "change_counters")
    with reading(path) as connection:
        found = {name: connection.execute(f"PRAGMA table_info({name})").fetchall() for name in tables}
    return {name: ", ".join(row[1] for row in info) for name, info in found.items()}


def rows(path: Path, of: dict[str, str]) -> dict[str, list[Any]]:
    """All rows, as far as these columns tell of them."""
    with reading(path) as connection:
        return {name: connection.execute(f"SELECT {listed} FROM {name}").fetchall() for name, listed in of.items()}


async def test_a_filled_older_file_is_brought_up_and_down_and_up_again(tmp_path: Path):
    path = await filled_by_the_second(tmp_path / "store.db")
    assert BEFORE in migration_names()
    known = columns(path)
    old_schema, old_rows = schema(path), rows(path, known)
    assert all(old_rows.values())

    assert migrate(path)[0] == NAME
    new_schema = schema(path)
    assert rows(path, known) == old_rows
    assert [each.request_id for each in recent_entries(path, 10)] == ["r1"]
    fill(path, "r1")
    with LabelWriter.of(path) as writer:
        writer.add([read_row({"id": "r1", "scores": {"s": 1}})], NOW)

    assert downgrade(path, BEFORE)[-1] == NAME
    assert (schema(path), rows(path, known)) == (old_schema, old_rows)

    assert migrate(path)[0] == NAME
    assert (schema(path), rows(path, known)) == (new_schema, old_rows)
    with reading(path) as connection:
        for table in ("samples", "label_items", "quality_labels"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


async def test_a_file_that_was_brought_up_keeps_its_books(tmp_path: Path):
    path = await filled_by_the_second(tmp_path / "store.db")
    migrate(path)
    ledger = SqliteLedger(path)
    await ledger.record(entry("r3", ts=NOON))
    await ledger.aclose()
    assert "r3" in [each.request_id for each in recent_entries(path, 10)]


@pytest.mark.parametrize("table", ["samples", "label_items", "quality_labels"])
def test_the_tables_are_strict(tmp_path: Path, table: str):
    path = tmp_path / "store.db"
    migrate(path)
    with closing(open_database(path)) as connection:
        strict = {row[1]: row[5] for row in connection.execute("PRAGMA table_list").fetchall()}
    assert strict[table] == 1
