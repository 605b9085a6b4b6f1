"""Options that several commands share, and the form of an example in a command's help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["CONFIG_VARIABLE", "ConfigPath", "Json", "Listen", "Workers", "example"]

CONFIG_VARIABLE = "LLMROUTER_CONFIG"

ConfigPath = Annotated[
    Path, typer.Option("--config", "-c", envvar=CONFIG_VARIABLE, metavar="PATH", help="Configuration file.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
Listen = Annotated[str | None, typer.Option("--listen", metavar="HOST:PORT", help="Instead of server.listen.")]
Workers = Annotated[
    int | None, typer.Option("--workers", metavar="N", min=1, max=64, help="Instead of server.workers.")
]


def example(*lines: str) -> str:
    """An epilog whose lines stay as they are."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
