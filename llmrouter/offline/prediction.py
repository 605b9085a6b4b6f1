"""A predictor and a policy run over labels row by row, exactly as they run when serving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmrouter.offline.bootstrap import Progress
from llmrouter.offline.external import External
from llmrouter.offline.labels import Floats, LabelSet
from llmrouter.routing.ask import Ask
from llmrouter.routing.evidence import Offers, Policy, Prediction

__all__ = ["Predicted", "Predicts", "direct_routes", "predict_all"]


class Predicts(Protocol):
    """The part of a predictor that is needed here."""

    def predict(self, ask: Ask) -> Prediction:
        """What the prompt alone says; pure."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """The predictions of all rows."""

    quality: dict[str, Floats]
    """Role → shape (n,)."""
    novelty: Floats
    decision_us: float
    """Median time of one prediction, features included."""
    decision_us_p99: float
    each: tuple[Prediction, ...]


def predict_all(
    predictor: Predicts, asks: Sequence[Ask], clock: Callable[[], float], progress: Progress | None = None
) -> Predicted:
    """Predict every row and take the time.

    Args:
        clock: seconds that only grow; that of the process' own CPU time shows what a decision costs on a busy machine.
    """
    found, times = [], np.zeros(len(asks))
    for row, ask in enumerate(asks):
        begun = clock()
        found.append(predictor.predict(ask))
        times[row] = clock() - begun
        if progress is not None and (row + 1 == len(asks) or row % 100 == 99):
            progress(row + 1, len(asks))
    median, late = np.quantile(times, (0.5, 0.99)) * 1e6 if len(asks) else (0.0, 0.0)
    roles = found[0].quality if found else {}
    return Predicted(
        quality={role: np.array([each.quality[role] for each in found]) for role in roles},
        novelty=np.array([each.novelty for each in found]),
        decision_us=float(median),
        decision_us_p99=float(late),
        each=tuple(found),
    )


def direct_routes(name: str, policy: Policy, predicted: Predicted, labels: LabelSet, roles: Sequence[str]) -> External:
    """Where the policy sends each row when no check is offered to it: the models of the row's own source are."""
    choice: NDArray[np.intp] = np.full(len(labels), -1, dtype=np.intp)
    known = {role: np.isfinite(labels.roles[role].quality) for role in roles}
    for row, prediction in enumerate(predicted.each):
        offered = frozenset(role for role in roles if known[role][row])
        move = policy.first(prediction, Offers(roles=offered, checks=frozenset()))
        choice[row] = list(roles).index(move.role)
    return External(name, tuple(roles), choice, None, unknown=0, missing=0)
