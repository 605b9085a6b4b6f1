"""Runs the command line in this process, as `main` runs it."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrouter.cli import main
from tests.support import model, pool, tier

__all__ = ["Ran", "llmrouter", "two_models"]


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def llmrouter(*arguments: str | Path) -> Ran:
    """Run `llmrouter ARGUMENTS`."""
    out, err = io.StringIO(), io.StringIO()
    code: int | str | None = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int | None)
    return Ran(code or 0, out.getvalue(), err.getvalue())


def two_models(folder: Path, *extra: str, url: str = "http://127.0.0.1:9/v1") -> Path:
    """A configuration file with a small and a large model in tier `auto`, and more TOML behind it."""
    path = folder / "llmrouter.toml"
    parts = [model("s"), model("l"), pool("s", [url]), pool("l", [url]), tier("auto", small="s", large="l"), *extra]
    path.write_text("\n".join(parts), encoding="utf-8")
    return path
