"""Whether the requests of a learned tier still look like those that its artefact was calibrated on.

Every worker counts its own and judges alone, at its part of the error that all may make together; the first that sees
drift notes it in the store, where all follow. The generic artefact is not watched: nobody's requests look like public
benchmarks, and it promises nothing that could be broken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmrouter.config import Config
from llmrouter.gateway.artefacts import InForce
from llmrouter.routing.artefact_fit import is_generic
from llmrouter.types import RoutingVersion

if TYPE_CHECKING:
    from llmrouter.routing.drift import DriftVerdict
    from llmrouter.routing.evidence import Move, Prediction

__all__ = ["DriftWatch", "watches_of"]

_ALPHA = 0.01
"""Probability that the workers of one gateway ever call the same traffic drifted, while a version is in force."""


class DriftWatch:
    """Counts and judges one tier in one worker, under one routing version."""

    def __init__(self, key: tuple[Any, ...], calibration: Mapping[str, Any], config: Config) -> None:
        from llmrouter.routing.drift import DriftCounter, DriftReference, DriftState, DriftTest

        reference = DriftReference.of(calibration)
        assert reference is not None
        rules = config.routing.drift
        self.key = key
        """What is watched; another one needs another watch."""
        self.noted = False
        """Whether what it found has been told."""
        self._counter = DriftCounter(reference)
        self._test = DriftTest(
            reference, tolerance=rules.tolerance, alpha=_ALPHA / config.server.workers, window=rules.window
        )
        self._state = DriftState()
        self._verdict: DriftVerdict | None = None

    def observe(self, prediction: Prediction, move: Move) -> None:
        """Count one decision."""
        self._counter.observe(prediction, move)

    def look(self) -> str:
        """Judge all that was counted; what has drifted, or nothing."""
        self._state, self._verdict = self._test.advance(self._state, self._counter.counts())
        return self._verdict.what if self._verdict.drifted else ""

    @property
    def level(self) -> float:
        """The evidence for drift as a part of what is needed to call it; 1 from then on."""
        if self._verdict is None:
            return 0.0
        if self._verdict.drifted:
            return 1.0
        return max(min(self._verdict.evidence / self._verdict.needed, 0.99), 0.0)


def watches_of(
    config: Config, routing: RoutingVersion, learned: Mapping[str, InForce], old: Mapping[str, DriftWatch]
) -> dict[str, DriftWatch]:
    """The watches of all tiers that need one; those that go on watching the same thing stay."""
    found: dict[str, DriftWatch] = {}
    for tier_id, taken in learned.items():
        calibration = _calibration(taken)
        if not config.routing.drift.watch or taken.fallback is not None or not calibration:
            continue
        key = (routing.version, taken.artefact.digest, taken.point, config.routing.drift, config.server.workers)
        kept = old.get(tier_id)
        found[tier_id] = kept if kept is not None and kept.key == key else DriftWatch(key, calibration, config)
    return found


def _calibration(taken: InForce) -> Mapping[str, Any]:
    """What the artefact's calibration rows looked like at this operating point; empty where nothing is watched."""
    manifest = taken.artefact.manifest
    calibration: Mapping[str, Any] = manifest.get("calibration") or {}
    if is_generic(manifest) or not calibration.get("scores"):
        return {}
    chosen = manifest["policy_parameters"].get("chosen")
    # The shares of the routes are those of the chosen point; another one routes otherwise on the same traffic.
    return calibration if taken.point in (None, chosen) else {**calibration, "routes": {}}
