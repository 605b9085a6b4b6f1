"""What learned tiers go by: does it load, does it fit them, what does it promise."""

from __future__ import annotations

from collections.abc import Iterator

from llmrouter.cli.checkup.finding import Finding, fail, info, ok, warning
from llmrouter.config import Config
from llmrouter.errors import RouterError
from llmrouter.gateway.learned_standing import learned_standing

__all__ = ["check_learned"]


def check_learned(config: Config) -> Iterator[Finding]:
    """One finding a learned tier, and one for each doubt; none without learned tiers."""
    try:
        found = learned_standing(config)
    except RouterError as error:
        yield fail("routing", "artefact", error.message)
        return
    for line in found.notes:
        # A tier without a guarantee works; whoever reads this should know it.
        yield (info if "no guarantee" in line else ok)("routing", "artefact", line)
    for line in found.doubts:
        yield warning("routing", "artefact", line)
