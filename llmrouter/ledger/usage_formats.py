"""Reports as people and programs read them; dollars are exact decimals, as text wherever a number would round them."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

import orjson

from llmrouter.errors import UsageError
from llmrouter.ledger.duck import duck, file_read, literal
from llmrouter.ledger.usage import MONEY, NUMBERS, Report
from llmrouter.pricing.money import from_pico

__all__ = ["Format", "columns", "dollars", "named_numbers", "records", "report_as_json", "write_csv", "write_parquet"]

Format = Literal["json", "csv", "parquet"]


def dollars(pico: int) -> str:
    """Pico-dollars as an exact decimal text with at least two places, e.g. `0.00045` or `12.00`."""
    whole, _, places = f"{from_pico(pico):f}".partition(".")
    return f"{whole}.{places.rstrip('0').ljust(2, '0')}"


def columns(report: Report) -> list[str]:
    """The names of a report's columns: what it is grouped by, then what is counted."""
    return [*report.question.by, *NUMBERS[report.question.measure]]


def records(report: Report) -> list[dict[str, Any]]:
    """The groups by column."""
    by, measure = report.question.by, report.question.measure
    return [
        {**dict(zip(by, group.keys, strict=True)), **named_numbers(NUMBERS[measure], group.numbers)}
        for group in report.groups
    ]


def named_numbers(names: Sequence[str], numbers: Sequence[int]) -> dict[str, Any]:
    """Numbers by name, amounts as text."""
    return {name: dollars(number) if name in MONEY else number for name, number in zip(names, numbers, strict=True)}


def report_as_json(report: Report) -> dict[str, Any]:
    """The report as the API and `--json` show it."""
    question = report.question
    return {
        "measure": question.measure,
        "by": list(question.by),
        "since": None if question.since is None else question.since.isoformat(),
        "until": None if question.until is None else question.until.isoformat(),
        "tenants": list(question.tenants),
        "total": named_numbers(NUMBERS[question.measure], report.total()),
        "groups": records(report),
    }


def write_csv(names: Sequence[str], rows: Iterable[Mapping[str, Any]], out: TextIO) -> None:
    """Write rows as CSV with a line of names; a key that a group does not have is empty.

    Users and tags are named by clients: one that a spreadsheet would run as a formula gets a `'` in front.
    """
    plain = csv.writer(out, lineterminator="\n")
    quoted = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for cells in (names, *([row[name] for name in names] for row in rows)):
        # Python quotes no cell for a carriage return, which readers take for the end of a row.
        broken = any(isinstance(cell, str) and "\r" in cell for cell in cells)
        (quoted if broken else plain).writerow(map(_inert, cells))


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def _inert(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell


def write_parquet(names: Sequence[str], rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write rows as a Parquet file; amounts are DECIMAL(38, 12), counts BIGINT, all else text.

    Raises:
        UsageError: DuckDB is not installed, the file cannot be written, or two names differ in case only.
        StoreUnavailable: DuckDB failed.
    """
    _check_parquet(names, path)
    kinds = {name: _kind(name) for name in names}
    types = ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in kinds.items())
    with duck(str(path)) as engine, tempfile.TemporaryDirectory(prefix="llmrouter-usage-") as folder:
        lines = Path(folder) / "rows.json"
        with lines.open("wb") as out:
            out.writelines(orjson.dumps({name: row[name] for name in names}) + b"\n" for row in rows)
        engine.execute(
            f"COPY (SELECT * FROM read_json({file_read(lines)}, format = 'newline_delimited', "  # noqa: S608 - names of ours
            f"columns = {{{types}}})) TO {literal(str(path))} (FORMAT parquet, COMPRESSION zstd)"
        )


def _check_parquet(names: Sequence[str], path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"{path} cannot be written: it is a folder; name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}")
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise UsageError(
                f"a Parquet file cannot have both {other!r} and {name!r}: readers take them for one column"
            )


_COUNTS = frozenset(name for names in NUMBERS.values() for name in names) - MONEY


def _kind(name: str) -> str:
    if name in MONEY:
        return "DECIMAL(38, 12)"
    return "BIGINT" if name in _COUNTS else "VARCHAR"
