"""The one request of the benchmark: a prompt of some 1,500 tokens (6 KB of plain prose) and an answer of 400."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.gateway.cases import TOKENS

__all__ = ["request", "write_bodies"]

_PROMPT_BYTES = 5800
_PROSE = (
    "The harbour office keeps a ledger of every ship that comes in. ",
    "Each line names the master, the cargo, the berth, and the hour of the tide. ",
    "When two ships claim one berth, the older entry holds and the younger one waits outside. ",
    "Dues are counted by weight, and nobody leaves before they are paid. ",
    "In winter the fog hides the mole, so a bell is rung at every quarter of the hour. ",
    "Tell me what a newcomer should know of these customs. ",
)


def request(*, stream: bool) -> dict[str, Any]:
    """The body as an object."""
    prose = "".join(_PROSE)
    prompt = (prose * (_PROMPT_BYTES // len(prose) + 1))[:_PROMPT_BYTES]
    messages = [{"role": "system", "content": "Answer in plain words."}, {"role": "user", "content": prompt}]
    body = {"model": "auto", "messages": messages, "max_tokens": TOKENS, "temperature": 0.7}
    return {**body, "stream": True} if stream else body


def write_bodies(folder: Path) -> dict[bool, Path]:
    """The bodies as files, by whether the answer is streamed."""
    paths = {False: folder / "whole.json", True: folder / "stream.json"}
    for stream, path in paths.items():
        path.write_text(json.dumps(request(stream=stream)))
    return paths
