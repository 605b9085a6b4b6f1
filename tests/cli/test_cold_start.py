"""Asking for help must not load what only some commands need."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_HEAVY = """vllm sklearn datasets torch transformers fastapi starlette uvicorn uvloop httpx genai_prices xllamacpp
sqlite_utils pydantic rich orjson re2""".split()

_SCRIPT = """
import json, sys
import llmrouter.cli
if sys.argv[1:]:
    try:
        llmrouter.cli.main(sys.argv[1:])
    except SystemExit:
        pass
print()
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"]])
def test_a_fresh_process_that_only_talks_of_itself_loads_nothing_heavy(arguments: list[str]):
    done = subprocess.run([sys.executable, "-c", _SCRIPT, *arguments], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "typer" in loaded
    assert [name for name in _HEAVY if name in loaded] == []
