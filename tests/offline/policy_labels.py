"""Labels with answers, made up so that agreement tells right from wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmrouter.offline.labels import Floats, LabelSet, RoleLabels
from llmrouter.routing.ask import Ask
from llmrouter.routing.evidence import Prediction

__all__ = ["COSTS", "made_labels", "made_predictions", "predictions_of"]

COSTS = {"small": 1.0, "large": 10.0, "frontier": 100.0}
_SKILL = {"small": 0.0, "peer1": 0.1, "peer2": -0.1, "peer3": -0.4, "large": 1.0, "frontier": 2.2}
_WORDS = "apples pears trains bridges stars coins rivers ladders clocks maps letters stones".split()


def _text(row: int, words: Sequence[str], ease: float) -> str:
    return f"How much is the sum of {row} {' and '.join(words)}? {ease:.3f}"


def made_labels(
    n: int = 240,
    *,
    roles: Sequence[str] = ("small", "large", "frontier", "peer1", "peer2", "peer3"),
    answers: bool = True,
    seed: int = 0,
    silent: str = "chat",
) -> LabelSet:
    """Sums of mixed difficulty; a fifth of the rows are of the source `silent`, whose answers nobody has published.

    Wrong answers are rarely the same, a model's answer is missing now and then, and lengths are known of `sums` alone.
    """
    rng = np.random.default_rng(seed)
    ease = rng.normal(0.6, 1.5, n)
    sources = tuple(silent if rng.random() < 0.2 else "sums" for _ in range(n))
    truth = rng.integers(10, 99, n)
    columns = {}
    for role in roles:
        right = rng.random(n) < 1.0 / (1.0 + np.exp(-(ease + _SKILL[role])))
        wrong = truth + rng.integers(1, 4, n)
        given = [
            None
            if not answers or sources[row] == silent or role == "frontier" or rng.random() < 0.03
            # A wrong answer that is missing is wrong as well; a right one cannot be missing.
            else str(truth[row] if right[row] else wrong[row])
            for row in range(n)
        ]
        told = [sources[row] == silent or role == "frontier" or not answers for row in range(n)]
        quality = np.array([float(right[row] and (told[row] or given[row] is not None)) for row in range(n)])
        length = np.where([source == silent for source in sources], np.nan, rng.integers(20, 900, n).astype(float))
        columns[role] = RoleLabels(quality, tuple(given), length, np.full(n, np.nan))
    return LabelSet(
        ids=tuple(f"q{row}" for row in range(n)),
        sources=sources,
        groups=tuple(f"g{row // 2}" for row in range(n)),
        splits=(None,) * n,
        asks=tuple(Ask(_text(row, rng.choice(_WORDS, 3 + row % 9).tolist(), ease[row])) for row in range(n)),
        inclusion=np.ones(n),
        roles=columns,
        models={source: {role: f"{role}-model" for role in roles} for source in set(sources)},
    )


def made_predictions(labels: LabelSet, seed: int = 1) -> dict[str, Floats]:
    """Role → a noisy guess at how easy each row is, read from its text as a predictor would."""
    rng = np.random.default_rng(seed)
    ease = np.array([float(ask.text.rsplit(" ", 1)[1]) for ask in labels.asks]) + rng.normal(0, 1.0, len(labels))
    return {role: 1.0 / (1.0 + np.exp(-(0.6 * ease + _SKILL[role]))) for role in labels.roles}


def predictions_of(predicted: dict[str, Floats], novelty: Floats | None = None) -> list[Prediction]:
    """The same, one value a row."""
    count = len(next(iter(predicted.values())))
    return [
        Prediction(
            {role: float(values[row]) for role, values in predicted.items()},
            0.0 if novelty is None else float(novelty[row]),
        )
        for row in range(count)
    ]
