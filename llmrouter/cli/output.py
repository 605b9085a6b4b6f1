"""What commands print: data on standard output, talk on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import typer

__all__ = ["complain", "print_json", "print_table", "say", "warn"]

_UNLIMITED = 100_000


def say(text: str) -> None:
    """Tell the person at the terminal something that is no data."""
    typer.echo(text, err=True)


def warn(text: str) -> None:
    """Tell of something that is allowed but probably not meant."""
    typer.secho("warning: ", fg="yellow", nl=False, err=True)
    say(text)


def complain(text: str) -> None:
    """Tell why the command failed."""
    typer.secho("error: ", fg="red", nl=False, err=True)
    say(text)


def print_json(value: Any) -> None:
    """Print a value as indented JSON; what JSON does not know becomes its text."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under headings; into a pipe, no cell is ever cut or wrapped.

    What a client has named (a user, a tag) is in some cells: it may neither steer the terminal nor look like a row.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if terminal else _UNLIMITED, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_visible(cell)) for cell in row))
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        typer.echo(line.rstrip())


def _visible(cell: str) -> str:
    """The cell with control characters, and those that turn the direction of writing, as escapes."""
    return cell if cell.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in cell)
