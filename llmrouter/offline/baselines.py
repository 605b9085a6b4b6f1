"""Scores that a learned router must beat; a higher one means that a strong model is more needed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from llmrouter.offline.labels import Floats
from llmrouter.routing.ask import Ask

__all__ = ["BASELINES", "baseline_scores", "complexity", "length", "nothing"]

BASELINES = ("random", "length", "rules", "oracle")


def baseline_scores(asks: Sequence[Ask], gain: Floats) -> Mapping[str, Floats]:
    """By name: chance, length alone, complexity rules, and an oracle that knows what the strong model gains."""
    return {
        "random": nothing(len(asks)),
        "length": np.array([length(ask) for ask in asks], dtype=np.float64),
        "rules": np.array([complexity(ask) for ask in asks], dtype=np.float64),
        "oracle": gain,
    }


def nothing(n: int) -> Floats:
    """One score for all rows: who is called is drawn by lot, and the curve is exactly that of a random router."""
    return np.zeros(n)


def length(ask: Ask) -> float:
    """Characters of the ask."""
    return float(len(ask.text))


def complexity(ask: Ask) -> float:
    """Points for signs of a hard request, in the style of the complexity router of LiteLLM.

    That router too adds up weighted signs (length, code, reasoning words, technical terms, several steps, several
    questions, simple openings) and compares the sum with fixed bounds. These signs and weights are our own, and the sum
    stays a score, so that every bound is tried at once.
    """
    text = ask.text
    score = sum(weight * min(len(sign.findall(text)), most) / most for sign, weight, most in _SIGNS)
    score += 0.15 * _ramp(len(text), 60, 1600)
    score += 0.10 * _ramp(len(ask.history), 0, 2000)
    score += 0.10 * _ramp(len(ask.tools), 0, 400)
    return score


def _ramp(amount: float, low: float, high: float) -> float:
    """From -1 at and below `low` to 1 at and above `high`."""
    return 2.0 * min(max((amount - low) / (high - low), 0.0), 1.0) - 1.0


def _words(words: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(words.split())})\b", re.IGNORECASE)


_SIGNS: tuple[tuple[re.Pattern[str], float, int], ...] = (
    (
        _words("prove derive proof deduce infer explain justify why reason analyse analyze evaluate compare argue"),
        0.25,
        2,
    ),
    (
        re.compile(
            r"```|\b(?:def|class|return|import|function|const|SELECT|async|struct|lambda|Traceback)\b|[;{}]\s*$|==|=>|\w\(\)",
            re.MULTILINE,
        ),
        0.25,
        3,
    ),
    (
        _words(
            "algorithm complexity theorem integral equation matrix polynomial probability distribution protocol "
            "kernel database distributed concurrency encryption molecule enzyme voltage statute liability equilibrium"
        ),
        0.20,
        3,
    ),
    (re.compile(r"\b(?:first|then|next|finally|step \d|steps)\b|^\s*\d+[.)]\s", re.IGNORECASE | re.MULTILINE), 0.15, 3),
    (re.compile(r"\\(?:frac|sum|int|sqrt|begin)|[∑∫√≤≥≠]|\d\s*[-+*/^=]\s*\d"), 0.20, 3),
    (re.compile(r"\?"), 0.05, 4),
    (
        re.compile(
            r"^\s*(?:hi|hello|hey|thanks?|what(?: is|'s)|who is|when did|where is|define|translate|how do you say)\b",
            re.IGNORECASE,
        ),
        -0.25,
        1,
    ),
)
"""Pattern, points, and how many hits earn all of them."""
