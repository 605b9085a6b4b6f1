"""`llmrouter usage`: what was used and what it cost, and invoices, from all places where the books lie."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmrouter.cli.options import ConfigPath, Json, example
from llmrouter.cli.output import print_json, print_table, say, warn
from llmrouter.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from llmrouter.config import Config
    from llmrouter.ledger.usage import Question, Report

__all__ = ["EXAMPLE", "usage"]

EXAMPLE = example(
    "llmrouter usage --by tenant,model --since 2026-11 --until 2026-12",
    "llmrouter usage --by day,tag:team --tenant acme --format csv --out acme.csv",
    "llmrouter usage --measure attempts --by model,pool --json",
    "llmrouter usage --invoice acme --month 2026-11",
)

_FORMATS = ("table", "csv", "json", "parquet")
_MOST_GROUPS = 1_000_000
_NOT_IN_TABLE = ("estimated", "cache_write_tokens")


def usage(
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="tenant, key, user, tier, model, class, month, day, hour or tag:NAME, several with commas; attempts "
            "also by price and pool.",
        ),
    ] = None,
    measure: Annotated[
        str, typer.Option(metavar="NAME", help="Count calls of clients, or attempts: calls of models, failed ones too.")
    ] = "calls",
    since: Annotated[str | None, typer.Option(metavar="DAY", help="First day in UTC, or month: its first day.")] = None,
    until: Annotated[str | None, typer.Option(metavar="DAY", help="The day after the last one.")] = None,
    tenant: Annotated[list[str] | None, typer.Option(metavar="ID", help="Only this tenant; repeat for more.")] = None,
    invoice: Annotated[
        str | None, typer.Option(metavar="TENANT", help="Its invoice: a line for each day, tier, model and price.")
    ] = None,
    month: Annotated[str | None, typer.Option(metavar="MONTH", help="Of the invoice, e.g. 2026-11.")] = None,
    form: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="table, csv, json or parquet. Without: table.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write there instead of standard output.")] = None,
    config: ConfigPath = Path("llmrouter.toml"),
    as_json: Json = False,
) -> None:
    """Add up requests, tokens and dollars; every row of the books is in exactly one group."""
    from llmrouter.config import load
    from llmrouter.ledger.usage import make_question

    form = _format(form, as_json)
    if form == "parquet" and out is None:
        raise UsageError("--format parquet is not for a terminal; name a file with --out")
    if invoice is None and month is None:
        question = make_question(measure, by or [], since, until, tenant or [], _MOST_GROUPS, option="--{}".format)
        _report(load(config), question, form, out)
        return
    if invoice is None or month is None:
        raise UsageError("an invoice needs both --invoice TENANT and --month MONTH")
    if by or since or until or tenant or measure != "calls":
        raise UsageError(
            "an invoice is of one tenant and month; it takes no --by, --measure, --since, --until or --tenant"
        )
    _invoice(load(config), invoice, month, form, out)


def _format(form: str | None, as_json: bool) -> str:
    if as_json and form not in (None, "json"):
        raise UsageError(f"--json and --format {form} contradict each other")
    chosen = "json" if as_json else form or "table"
    if chosen not in _FORMATS:
        raise UsageError(f"no format {chosen!r}; known: {', '.join(_FORMATS)}")
    return chosen


def _report(config: Config, question: Question, form: str, out: Path | None) -> None:
    from llmrouter.cli.store_state import usable_file
    from llmrouter.ledger.usage import ask
    from llmrouter.ledger.usage_books import usage_books
    from llmrouter.ledger.usage_formats import report_as_json

    usable_file(config)
    with usage_books(config.store) as sources:
        report = ask(sources, question)
    if not report.groups:
        say("no calls in this time")
    _write(report, report_as_json(report), form, out)


def _invoice(config: Config, tenant_id: str, month: str, form: str, out: Path | None) -> None:
    from llmrouter.cli.store_state import usable_file
    from llmrouter.ledger.invoice import invoice, invoice_as_json, parse_month
    from llmrouter.ledger.usage_books import usage_books
    from llmrouter.ledger.usage_formats import dollars

    first: date = parse_month(month, "--month")
    usable_file(config)
    with usage_books(config.store) as sources:
        made = invoice(sources, tenant_id, first)
    if not made.lines.groups:
        say(f"tenant {tenant_id} has no calls in {month}")
    if not made.adds_up:
        warn(
            f"the attempts cost {dollars(made.cost_pico)} dollars, their calls say {dollars(made.calls_cost_pico)}: "
            "somebody has changed the books by hand"
        )
    _write(made.lines, invoice_as_json(made), form, out)


def _write(report: Report, as_json: Mapping[str, Any], form: str, out: Path | None) -> None:
    from llmrouter.ledger.usage_formats import columns, records, write_csv, write_parquet

    if form == "parquet":
        assert out is not None
        write_parquet(columns(report), records(report), out)
    elif form == "csv":
        text = io.StringIO()
        write_csv(columns(report), records(report), text)
        _print(text.getvalue(), out)
    elif form == "json" and out is not None:
        import json

        _print(json.dumps(as_json, indent=2, ensure_ascii=False) + "\n", out)
    elif form == "json":
        print_json(as_json)
    elif out is not None:
        raise UsageError("a table is for a terminal; --out takes --format csv, json or parquet")
    else:
        _print_table(report)
    if out is not None:
        say(f"wrote {len(report.groups)} groups to {out}")


def _print(text: str, out: Path | None) -> None:
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}") from error


def _print_table(report: Report) -> None:
    from llmrouter.ledger.usage import NUMBERS
    from llmrouter.ledger.usage_formats import named_numbers

    by, counted = report.question.by, NUMBERS[report.question.measure]
    shown = [name for name in counted if name not in _NOT_IN_TABLE]
    rows = [
        [*("-" if key is None else key for key in group.keys), *_cells(named_numbers(counted, group.numbers), shown)]
        for group in report.groups
    ]
    if by:
        label = ["TOTAL", *("" for _ in by[1:])]
        rows.append([*label, *_cells(named_numbers(counted, report.total()), shown)])
    heads = [name.upper() for name in (*by, *(name.removesuffix("_tokens") for name in shown))]
    print_table(heads, rows)


def _cells(numbers: Mapping[str, Any], shown: Sequence[str]) -> list[str]:
    return [str(numbers[name]) for name in shown]
