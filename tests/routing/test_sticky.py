"""Sticky assignment needs no shared store: it is a pure hash, the same in every worker, gateway and release."""

import subprocess
import sys

from llmrouter.routing.sticky import pick

_WEIGHTS = [("a", 1.0), ("b", 2.5), ("canary", 0.5)]
_ASKS = f"""
from llmrouter.routing.sticky import pick
print(",".join(pick({_WEIGHTS!r}, f"conversation-{{n}}") for n in range(200)))
"""


def picks_of_another_process(hash_seed: str) -> list[str]:
    program = [sys.executable, "-c", _ASKS]
    done = subprocess.run(program, env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True)
    return done.stdout.strip().split(",")


def test_gateways_agree_on_every_conversation_without_asking_each_other():
    here = [pick(reversed(_WEIGHTS), f"conversation-{n}") for n in range(200)]
    assert set(here) == {"a", "b", "canary"}
    assert picks_of_another_process("1") == here
    assert picks_of_another_process("2") == here
