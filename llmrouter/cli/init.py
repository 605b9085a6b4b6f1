"""`llmrouter init`: a commented configuration file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmrouter.cli.options import example
from llmrouter.cli.output import say
from llmrouter.errors import UsageError

__all__ = ["EXAMPLE", "init", "template"]

EXAMPLE = example("llmrouter init", "llmrouter config check")


def init(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="File to write, or a folder for a file llmrouter.toml.")
    ] = Path("llmrouter.toml"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a commented configuration file: two small models on this machine, and how to use your own."""
    target = path / "llmrouter.toml" if path.is_dir() else path
    try:
        with target.open("w" if force else "x", encoding="utf-8") as file:
            file.write(template())
    except FileExistsError:
        raise UsageError(f"{target} exists; --force replaces it") from None
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror or error}") from error
    option = "" if target == Path("llmrouter.toml") else f" --config {target}"
    say(f"wrote {target}")
    say(f"next: llmrouter config check{option}")
    say(f"      llmrouter keys create --tenant default{option}")
    say(f"      llmrouter serve{option}")


def template() -> str:
    """The text that `init` writes."""
    return Path(__file__).with_name("init.toml").read_text(encoding="utf-8")
