"""How sure a model was of what it wrote: signals from log-probabilities, and a probability that is fitted on labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from llmrouter.types import TokenSignals, value

__all__ = [
    "CONFIDENCE_FEATURES",
    "Confidence",
    "SignalCollector",
    "confidence_features",
    "signals_from_logprobs",
]

_FIRST = 5
_FLOOR = -100.0
"""Less likely than this is all the same; engines write -9999 or -inf for what they do not know."""
_MOST_ALTERNATIVES = 64

CONFIDENCE_FEATURES = (
    "mean_logprob",
    "min_logprob",
    "first_logprob",
    "mean_probability",
    "log_tokens",
    "mean_margin",
    "mean_entropy",
    "no_alternatives",
)
"""Names of what `confidence_features` gives, in order."""


class SignalCollector:
    """Adds up the log-probabilities of one choice as they come; what it keeps does not grow with them."""

    __slots__ = ("_entropies", "_entropy", "_first", "_margin", "_margins", "_min", "_sum", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0
        self._sum = 0.0
        self._min = 0.0
        self._first = 0.0
        self._margin = 0.0
        self._margins = 0
        self._entropy = 0.0
        self._entropies = 0

    def add(self, entries: Iterable[Any]) -> None:
        """Take the next entries of a chat choice's `logprobs.content`; what is not one of them is passed over."""
        for entry in entries:
            logprob = _logprob(entry)
            if logprob is None:
                continue
            self._tokens += 1
            self._sum += logprob
            self._min = min(self._min, logprob)
            if self._tokens <= _FIRST:
                self._first += logprob
            self._add_alternatives(entry.get("top_logprobs"))

    def _add_alternatives(self, alternatives: Any) -> None:
        if not isinstance(alternatives, list):
            return
        likely = [logprob for each in alternatives[:_MOST_ALTERNATIVES] if (logprob := _logprob(each)) is not None]
        if len(likely) < 2:
            return
        likely.sort(reverse=True)
        self._margin += likely[0] - likely[1]
        self._margins += 1
        masses = [math.exp(each - likely[0]) for each in likely]
        total = math.fsum(masses)
        self._entropy -= math.fsum(mass / total * math.log(mass / total) for mass in masses if mass > 0)
        self._entropies += 1

    def signals(self) -> TokenSignals | None:
        """Of all that was added; None where no token had a log-probability."""
        if self._tokens == 0:
            return None
        return TokenSignals(
            tokens=self._tokens,
            mean_logprob=self._sum / self._tokens,
            min_logprob=self._min,
            first_logprob=self._first / min(self._tokens, _FIRST),
            mean_margin=self._margin / self._margins if self._margins else None,
            mean_entropy=max(self._entropy / self._entropies, 0.0) if self._entropies else None,
        )


def signals_from_logprobs(content: Any) -> TokenSignals | None:
    """Of a whole `logprobs.content`, the list of a chat choice's tokens; None where it says nothing."""
    collector = SignalCollector()
    collector.add(content if isinstance(content, list | tuple) else ())
    return collector.signals()


def _logprob(entry: Any) -> float | None:
    given = entry.get("logprob") if isinstance(entry, Mapping) else None
    if not isinstance(given, int | float) or isinstance(given, bool) or given != given:
        return None
    return min(max(float(given), _FLOOR), 0.0) if abs(given) < 1e300 else (_FLOOR if given < 0 else 0.0)


def confidence_features(signals: TokenSignals) -> tuple[float, ...]:
    """The numbers that a `Confidence` weighs, named by `CONFIDENCE_FEATURES`; all finite."""
    alone = signals.mean_margin is None or signals.mean_entropy is None
    return (
        signals.mean_logprob,
        signals.min_logprob,
        signals.first_logprob,
        math.exp(signals.mean_logprob),
        math.log1p(signals.tokens),
        signals.mean_margin or 0.0,
        signals.mean_entropy or 0.0,
        1.0 if alone else 0.0,
    )


@value
class Confidence:
    """A map from signals to the probability that the answer is right, as labels have shown it."""

    weights: tuple[float, ...]
    """Of each of `CONFIDENCE_FEATURES`."""
    intercept: float
    rows: int = 0
    """Labels that it was fitted on."""

    def probability(self, signals: TokenSignals) -> float:
        """From 0 to 1."""
        logit = self.intercept + math.fsum(
            weight * feature for weight, feature in zip(self.weights, confidence_features(signals), strict=True)
        )
        return 1.0 / (1.0 + math.exp(-min(max(logit, -40.0), 40.0)))

    def table(self) -> dict[str, Any]:
        """As JSON values, for an artefact's manifest; `of` reads it."""
        return {
            "features": list(CONFIDENCE_FEATURES),
            "weights": list(self.weights),
            "intercept": self.intercept,
            "rows": self.rows,
        }

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Read what `table` gave.

        Raises:
            ValueError: it is of other features, or holds what is not a finite number.
        """
        if tuple(table.get("features", ())) != CONFIDENCE_FEATURES:
            raise ValueError(f"the confidence table is not of the features {', '.join(CONFIDENCE_FEATURES)}")
        weights = _numbers(table.get("weights"), len(CONFIDENCE_FEATURES))
        (intercept,) = _numbers([table.get("intercept")], 1)
        rows = table.get("rows", 0)
        if type(rows) is not int or rows < 0:
            raise ValueError(f"the confidence table's `rows` must be a whole number, not {rows!r}")
        return cls(weights, intercept, rows)


def _numbers(given: Any, count: int) -> tuple[float, ...]:
    numbers: Sequence[Any] = given if isinstance(given, list | tuple) else ()
    finite = [
        float(each)
        for each in numbers
        if isinstance(each, int | float) and not isinstance(each, bool) and math.isfinite(each)
    ]
    if len(numbers) != count or len(finite) != count:
        raise ValueError(f"the confidence table must hold {count} finite weights and an intercept, not {given!r}")
    return tuple(finite)
