"""`llmrouter demo`: the gateway with two real models on this machine, some real requests, and what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llmrouter.cli.options import example

__all__ = ["EXAMPLE", "demo"]

EXAMPLE = example("llmrouter demo", "llmrouter demo --port 0 --exit --prompts my-prompts.txt")

Folder = Annotated[Path, typer.Option("--dir", metavar="FOLDER", help="Where its configuration and store lie.")]
Prompts = Annotated[Path | None, typer.Option(metavar="FILE", help="Your prompts, one a line, instead of its own.")]
Exit = Annotated[bool, typer.Option("--exit", help="End after the report instead of serving on.")]
Small = Annotated[str | None, typer.Option(metavar="NAME", help="The small model; smollm2-135m if not given.")]
Large = Annotated[str | None, typer.Option(metavar="NAME", help="The large model; qwen2.5-coder-0.5b if not given.")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Instead of 8080; 0 takes any that is free.")]


def demo(
    folder: Folder = Path("llmrouter-demo"),
    prompts: Prompts = None,
    exit_after: Exit = False,
    small: Small = None,
    large: Large = None,
    port: Port = None,
) -> None:
    """Start two real models on this machine, send them prompts through the gateway, and show what that cost."""
    import uvloop

    from llmrouter.cli.demonstration.folder import prepare
    from llmrouter.cli.demonstration.prompts import PROMPTS, askable, read_prompts
    from llmrouter.cli.demonstration.session import Session
    from llmrouter.config import load
    from llmrouter.gateway.logs import set_up_logs

    wanted = PROMPTS if prompts is None else read_prompts(prompts)
    path = prepare(folder, small=small, large=large)
    config = load(path)
    set_up_logs(config.log)
    listen = config.server.listen if port is None else f"127.0.0.1:{port}"
    session = Session(path, config, askable(wanted, config.tiers), listen=listen, exit_after=exit_after)
    raise typer.Exit(uvloop.run(session.run()))
