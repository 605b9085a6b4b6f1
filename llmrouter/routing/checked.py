"""Checks of a single answer, added to a policy that knows agreement: log-probabilities, self-check, verifier.

Each check has a table, fitted on labels, that turns what it shows into the probability that the answer is good. Without
a table a check is never used: a raw log-probability is no confidence.

Whether a check is worth its calls is its expected value of information. With `q` the predicted quality of the examined
model, `u` the best that the other routes offer (quality less `tradeoff` times relative cost), and `p` what the check
would say, spread around `q` as it was spread on the labels:

    value = mean over p of max(p, u) - tradeoff * (cost of the answer and of the check)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from llmrouter.routing.confidence import Confidence
from llmrouter.routing.evidence import Check, Evidence, Move, Offers, Policy, Prediction
from llmrouter.types import value

__all__ = ["SINGLE_CHECKS", "CheckTable", "CheckedPolicy", "log_odds"]

SINGLE_CHECKS: tuple[Check, ...] = ("logprobs", "self_check", "verifier")
"""Those that need no second answer."""
_EDGE = 1e-4


@value
class CheckTable:
    """What one check's findings mean for one role's answers."""

    check: Check
    levels: tuple[float, ...]
    """Quantiles of the fitted probability on the labels, evenly spaced; how much the check tells apart."""
    extra_cost: float
    """What the check costs beyond the answer itself, as a share of one call of the examined model."""
    confidence: Confidence | None = None
    """Of `logprobs`."""
    weight: float = 1.0
    """Of the others: what the log-odds of the finding are multiplied with,"""
    intercept: float = 0.0
    """and what is added."""
    rows: int = 0
    held: bool = False
    """Of `logprobs`: fitted on the beginnings of answers that are held back of a stream, not on whole answers."""

    def probability(self, evidence: Evidence) -> float | None:
        """That the examined answer is good; None where the check found nothing."""
        if self.check == "logprobs":
            if self.confidence is None or evidence.signals is None:
                return None
            return self.confidence.probability(evidence.signals)
        found = evidence.p_true if self.check == "self_check" else evidence.verdict
        return None if found is None else self.of_finding(found)

    def of_finding(self, found: float) -> float:
        """What a self-check's or verifier's own figure, from 0 to 1, means."""
        return _expit(self.intercept + self.weight * log_odds(found))

    def table(self) -> dict[str, Any]:
        """As JSON values, for an artefact's manifest; `of` reads it."""
        confidence = None if self.confidence is None else self.confidence.table()
        return {
            "check": self.check,
            "levels": list(self.levels),
            "extra_cost": self.extra_cost,
            "confidence": confidence,
            "weight": self.weight,
            "intercept": self.intercept,
            "rows": self.rows,
            "held": self.held,
        }

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Read what `table` gave.

        Raises:
            ValueError: a key is missing or is no finite number in its range.
        """
        check = table.get("check")
        if check not in SINGLE_CHECKS:
            raise ValueError(f"a check table's `check` must be one of {', '.join(SINGLE_CHECKS)}, not {check!r}")
        levels = tuple(_number(table, "levels", each) for each in table.get("levels") or ())
        if not levels or not all(0 <= each <= 1 for each in levels):
            raise ValueError(f"the table of {check} must have `levels` from 0 to 1")
        given, held = table.get("confidence"), table.get("held", False)
        if not isinstance(held, bool) or (held and check != "logprobs"):
            raise ValueError(f"the table of {check}: `held` must be false, or true for logprobs, not {held!r}")
        return cls(
            check=check,
            levels=levels,
            extra_cost=_number(table, "extra_cost", table.get("extra_cost")),
            confidence=None if given is None else Confidence.of(given),
            weight=_number(table, "weight", table.get("weight")),
            intercept=_number(table, "intercept", table.get("intercept")),
            rows=int(_number(table, "rows", table.get("rows", 0))),
            held=held,
        )


class CheckedPolicy:
    """A policy of routes and agreement, with checks of single answers beside it; implements `evidence.Policy`.

    Args:
        tables: of the role `small`; one a check, and one more of `logprobs` for held-back beginnings.
        costs: what a call of each role costs, the reference model's being 1.
        tradeoff: quality (0 to 1) that the cost of one reference call is worth.
        margin: quality by which a check must be worth more than what the inner policy does.
        novelty_limit: requests that are less like what was learned from are left to the inner policy.
    """

    def __init__(
        self,
        inner: Policy,
        tables: Iterable[CheckTable],
        *,
        costs: Mapping[str, float],
        tradeoff: float,
        margin: float = 0.0,
        novelty_limit: float = 1.0,
    ) -> None:
        self._inner = inner
        self._tables = {(table.check, table.held): table for table in tables}
        self._costs = dict(costs)
        self._tradeoff = tradeoff
        self._margin = margin
        self._novelty_limit = novelty_limit

    def first(self, prediction: Prediction, offers: Offers) -> Move:
        move = self._inner.first(prediction, offers)
        if move.action == "check" or prediction.novelty > self._novelty_limit:
            return move
        offered = [check for check in SINGLE_CHECKS if check in offers.checks]
        open_checks = [check for check in offered if (check, offers.held) in self._tables]
        if not open_checks or "small" not in offers.roles or "small" not in prediction.quality:
            return move
        best = max(open_checks, key=lambda check: self._worth(check, prediction, offers))
        if self._worth(best, prediction, offers) - self._margin <= self._direct(move.role, prediction):
            return move
        quality = prediction.quality["small"]
        return Move("check", "small", best, score=quality, reason=f"try:small {quality:.2f}")

    def following(self, prediction: Prediction, offers: Offers, evidence: Sequence[Evidence]) -> Move:
        newest = evidence[-1]
        table = self._tables.get((newest.check, offers.held))
        if table is None:
            return self._inner.following(prediction, offers, evidence)
        role, up = self._up(prediction, offers)
        found = None if newest.faults else table.probability(newest)
        if role is None or (found is not None and found >= up + self._margin):
            return Move("accept", newest.role, score=found, reason=f"{newest.check} {_shown(found)}")
        better = prediction.quality[role]
        return Move("route", role, score=better, reason=f"{newest.check} {_shown(found)} < {role} {better:.2f}")

    def _worth(self, check: Check, prediction: Prediction, offers: Offers) -> float:
        table = self._tables[check, offers.held]
        _, up = self._up(prediction, offers)
        spread = _around(prediction.quality["small"], table.levels)
        cost = self._costs.get("small", 0.0) * (1 + table.extra_cost)
        return sum(max(each, up) for each in spread) / len(spread) - self._tradeoff * cost

    def _up(self, prediction: Prediction, offers: Offers) -> tuple[str | None, float]:
        """The best of the other roles and what going there is worth from here."""
        others = [role for role in offers.roles if role != "small" and role in prediction.quality]
        if not others:
            return None, -math.inf
        best = max(sorted(others), key=lambda role: self._direct(role, prediction))
        return best, self._direct(best, prediction)

    def _direct(self, role: str, prediction: Prediction) -> float:
        return prediction.quality.get(role, 0.0) - self._tradeoff * self._costs.get(role, 1.0)


def _around(mean: float, levels: Sequence[float]) -> list[float]:
    """The levels, moved along the log-odds until their mean is the given one."""
    logits = [log_odds(each) for each in levels]
    low, high = -20.0, 20.0
    for _ in range(30):
        shift = (low + high) / 2
        if sum(_expit(each + shift) for each in logits) / len(logits) < mean:
            low = shift
        else:
            high = shift
    return [_expit(each + (low + high) / 2) for each in logits]


def log_odds(probability: float) -> float:
    """Of a probability from 0 to 1, which is kept a little away from both ends; natural logarithm."""
    bounded = min(max(probability, _EDGE), 1 - _EDGE)
    return math.log(bounded / (1 - bounded))


def _expit(logit: float) -> float:
    return 1 / (1 + math.exp(-min(max(logit, -40.0), 40.0)))


def _shown(found: float | None) -> str:
    return "nothing" if found is None else f"{found:.2f}"


def _number(table: Mapping[str, Any], name: str, given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise ValueError(f"the table of {table.get('check')}: `{name}` must be a finite number, not {given!r}")
    return float(given)
