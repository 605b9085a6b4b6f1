"""An evaluation as plain values, for `--json` and for manifests."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmrouter.offline.bootstrap import Interval
from llmrouter.offline.curves import Measures
from llmrouter.offline.evaluation import Evaluation
from llmrouter.offline.frontier import PolicyPoint

__all__ = ["as_json", "measures_json", "point_json"]


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """The figures with short names: those of the main pair on top, every pair under `pairs`."""
    router = evaluation.main.router
    return {
        "n": evaluation.n,
        "weak": evaluation.main.weak,
        "strong": evaluation.main.strong,
        "reference_role": evaluation.reference,
        "costs": dict(evaluation.costs),
        **measures_json(router),
        "chance_apgr": _interval_json(evaluation.main.chance),
        "slices": {name: measures_json(each) for name, each in evaluation.main.slices.items()},
        "pairs": {
            name: {each: measures_json(found) for each, found in pair.measures.items()}
            for name, pair in evaluation.pairs.items()
        },
        "peers_compared": list(evaluation.compared),
        "decisions": {
            each.name: {
                "n": each.n,
                **point_json(each.point),
                "router_delta": each.router_delta,
                "notes": list(each.notes),
            }
            for each in evaluation.contenders
        },
        "frontier": [point_json(point) for point in evaluation.frontier],
        "calibration": {
            role: {"error": each.error, "brier": each.brier, "constant_brier": each.constant_brier}
            for role, each in evaluation.reliability.items()
        },
    }


def measures_json(found: Measures) -> dict[str, Any]:
    return {
        "apgr": found.apgr,
        **{f"cpt{percent}": found.crossing(percent) for percent in (50, 80, 95)},
        **{f"lasting_cpt{round(100 * level)}": each.lasting for level, each in found.cpt.items()},
        **{f"pgr{round(100 * at)}": each for at, each in found.pgr.items()},
        "rows": found.n,
        "weak_quality": None if np.isnan(found.weak_quality) else found.weak_quality,
        "strong_quality": None if np.isnan(found.strong_quality) else found.strong_quality,
        "ci": {name: _interval_json(each) for name, each in found.intervals.items()},
        "saving_at_cpt": {f"{round(100 * level)}": each for level, each in found.saving.items()},
        "reason": found.reason,
    }


def point_json(point: PolicyPoint) -> dict[str, Any]:
    return {
        "cost": point.cost,
        "quality": point.quality,
        "cost_saving": point.cost_saving,
        "cost_saving_ci": _interval_json(point.cost_saving_ci),
        "quality_delta": point.quality_delta,
        "quality_delta_ci": _interval_json(point.quality_delta_ci),
        "shares": dict(point.shares),
    }


def _interval_json(found: Interval | None) -> list[float] | None:
    return None if found is None else [found.low, found.high]
