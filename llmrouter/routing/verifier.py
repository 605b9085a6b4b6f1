"""Verifiers: plug-ins that score an answer, e.g. by running its tests or asking a reward model.

A distribution adds one with an entry point in the group `llmrouter.verifiers` whose object makes it: a class or a
function without arguments. A tier names it as `cascade.verifier`. `examples/verifiers` has one to start from.

What a score is worth is learned from labels; until then the policy makes no use of it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from importlib.metadata import entry_points
from typing import Protocol

from llmrouter.errors import ConfigError
from llmrouter.types import ChatRequest

__all__ = ["Verifier", "load_verifier", "verdict"]

_GROUP = "llmrouter.verifiers"
_log = logging.getLogger("llmrouter.verifier")


class Verifier(Protocol):
    """Scores answers; one object serves all requests of a worker, many at the same time."""

    async def score(self, request: ChatRequest, answer_text: str) -> float | None:
        """How good the answer is, from 0 to 1; None where it cannot tell.

        Runs on the event loop of the gateway, so it must not block: work that takes longer than a millisecond belongs
        in a thread or another process. Must not change the request. May raise anything and may be cancelled at any
        time; then there is no score.
        """


def load_verifier(name: str) -> Verifier:
    """Make the verifier that a distribution declares under this name.

    Raises:
        ConfigError: nobody declares it, or it cannot be made.
    """
    found = sorted(entry_points(group=_GROUP, name=name), key=lambda each: each.value)
    if not found:
        known = sorted({each.name for each in entry_points(group=_GROUP)})
        raise ConfigError(
            f"no verifier {name!r}: no installed distribution has an entry point of that name in the group {_GROUP}"
            + (f"; known: {', '.join(known)}" if known else "")
        )
    if len(found) > 1:
        raise ConfigError(f"verifier {name!r} is declared twice: {found[0].value} and {found[1].value}")
    try:
        verifier: Verifier = found[0].load()()
    except Exception as error:  # a plug-in may fail in any way; its name is what helps
        raise ConfigError(f"verifier {name!r} ({found[0].value}) cannot be made: {error}") from error
    if not callable(getattr(verifier, "score", None)):
        raise ConfigError(f"verifier {name!r} ({found[0].value}) has no method `score`")
    return verifier


async def verdict(verifier: Verifier, request: ChatRequest, answer_text: str, *, timeout_s: float) -> float | None:
    """The verifier's score, or None where it has none, fails, takes too long or answers nonsense.

    What went wrong is logged by its kind; the texts are not. A cancelled call stays cancelled.
    """
    try:
        async with asyncio.timeout(timeout_s):
            score: object = await verifier.score(request, answer_text)
    except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way, and the request goes on without it
        _log.warning("verifier %s gave no score: %s", type(verifier).__name__, type(error).__name__)
        return None
    if score is None:
        return None
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score) or not 0 <= score <= 1:
        _log.warning("verifier %s gave no score from 0 to 1", type(verifier).__name__)
        return None
    return float(score)
