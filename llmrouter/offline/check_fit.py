"""Fits what checks of a single answer are worth: from labels with signals and self-checks to tables for a policy.

Every figure and the spread of each table are cross-fitted: what a row is told comes from a fit on the rows of other
groups. A check whose cross-fitted probabilities are no better than the mean gets no table, so it is never used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from llmrouter.offline.calibrated import reliability
from llmrouter.offline.confidence_fit import LEAST_ROWS, fit_confidence
from llmrouter.offline.heads import folds_of
from llmrouter.offline.labels import Floats, LabelSet, RoleLabels
from llmrouter.offline.logistic import fit_kind_table
from llmrouter.routing.checked import CheckTable, log_odds
from llmrouter.types import TokenSignals, value

__all__ = ["CheckReport", "FittedChecks", "auc", "fit_checks"]

_FOLDS = 5
_LEVELS = 15
_LEAST = 75
"""Labels, so that each fit of four fifths has enough."""
_LEAST_OF_EACH = 10
"""Good answers, and bad ones, without which nothing is learned about telling them apart."""
_PENALTY = 1.0

_Found: TypeAlias = Sequence[TokenSignals] | Floats
"""What a check found, row by row."""
_Fit: TypeAlias = Callable[[Any, Floats], CheckTable]
_Tell: TypeAlias = Callable[[CheckTable, Any], Floats]


@value
class CheckReport:
    """How well a check tells good answers from bad ones, on rows that its fit had not seen."""

    rows: int
    mean_score: float
    auc: float
    """Probability that it is surer of a good answer than of a bad one; 0.5 is chance."""
    brier: float
    constant_brier: float
    """That of always telling the mean."""
    ece: float
    """Mean distance between what it tells and what comes of it."""


@dataclass(frozen=True, slots=True)
class FittedChecks:
    """The tables, and what was measured of each check; by the names `logprobs`, `logprobs:held` and `self_check`."""

    tables: tuple[CheckTable, ...] = ()
    reports: Mapping[str, CheckReport] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why a check has no table."""
    told: Mapping[str, Floats] = field(default_factory=dict)
    """Cross-fitted, shape (n,): the probability that each row's answer is good; NaN where the check found nothing."""

    def metrics(self) -> dict[str, Any]:
        """What was measured of each check, and why one is not used, as JSON values."""
        names = sorted({*self.reports, *self.left_out})
        return {
            name: {
                **(asdict(self.reports[name]) if name in self.reports else {}),
                **({"left_out": self.left_out[name]} if name in self.left_out else {}),
            }
            for name in names
        }


def fit_checks(labels: LabelSet, *, seed: int) -> FittedChecks:
    """Fit the checks of the role `small`; the same labels and seed give the same tables.

    Raises:
        UsageError: log-probabilities are to be fitted and the extra `train` is missing.
    """
    fitting = _Fitting(labels, seed)
    column = labels.roles.get("small")
    if column is not None:
        for held, signals in ((False, column.signals), (True, column.prefix_signals)):
            rows = np.array([at for at, each in enumerate(signals) if each is not None], dtype=np.intp)
            found = np.array([each for each in signals if each is not None], dtype=object)
            fitting.fit("logprobs:held" if held else "logprobs", rows, found, _logprobs(held), _told_by_logprobs)
        rows = np.flatnonzero(np.isfinite(column.p_true))
        fitting.fit("self_check", rows, column.p_true[rows], _self_check(_extra_cost(column)), _told_by_itself)
    return FittedChecks(tuple(fitting.tables), fitting.reports, fitting.left_out, fitting.told)


def auc(told: Floats, score: Floats) -> float:
    """A score between 0 and 1 is part good and part bad; NaN where all are of one kind."""
    order = np.argsort(told, kind="stable")
    _, ties = np.unique(told[order], return_inverse=True)
    good = np.bincount(ties, weights=score[order])
    bad = np.bincount(ties, weights=1.0 - score[order])
    pairs = good.sum() * bad.sum()
    below = np.cumsum(bad) - bad
    return float(good @ (below + bad / 2) / pairs) if pairs > 0 else math.nan


class _Fitting:
    def __init__(self, labels: LabelSet, seed: int) -> None:
        self._labels = labels
        self._seed = seed
        self.tables: list[CheckTable] = []
        self.reports: dict[str, CheckReport] = {}
        self.left_out: dict[str, str] = {}
        self.told: dict[str, Floats] = {}

    def fit(self, name: str, rows: NDArray[np.intp], found: NDArray[Any], fit: _Fit, tell: _Tell) -> None:
        """Fit one check on the rows where it found something."""
        score = self._labels.roles["small"].quality[rows]
        known = np.isfinite(score)
        rows, found, score = rows[known], found[known], score[known]
        groups = [self._labels.groups[row] for row in rows.tolist()]
        reason = _too_few(score, groups)
        if reason is not None:
            self.left_out[name] = reason
            return
        told = np.empty(len(rows))
        folds = folds_of(groups, _FOLDS, self._seed)
        for fold in range(_FOLDS):
            apart = folds == fold
            if (~apart).sum() < LEAST_ROWS or not 0.0 < score[~apart].mean() < 1.0:
                self.left_out[name] = "most labels, or nearly all good or bad answers, are of one question"
                return
            told[apart] = tell(fit(found[~apart], score[~apart]), found[apart])
        report = self.reports[name] = _report(told, score)
        everywhere = self.told[name] = np.full(len(self._labels), np.nan)
        everywhere[rows] = told
        if report.brier >= report.constant_brier:
            scores = f"its Brier score is {report.brier:.4f}, that of the mean {report.constant_brier:.4f}"
            self.left_out[name] = f"it tells nothing: {scores}"
            return
        levels = np.quantile(told, (np.arange(_LEVELS) + 0.5) / _LEVELS)
        self.tables.append(_with_levels(fit(found, score), levels))


def _too_few(score: Floats, groups: Sequence[str]) -> str | None:
    """Why nothing can be learned from so many rows."""
    if len(score) < _LEAST:
        return f"{len(score)} labels have it; at least {_LEAST} are needed"
    good = float(score.sum())
    if min(good, len(score) - good) < _LEAST_OF_EACH:
        needed = f"at least {_LEAST_OF_EACH} good and {_LEAST_OF_EACH} bad ones are needed"
        return f"{good:g} of {len(score)} answers are good; {needed}"
    if len(set(groups)) < _FOLDS:
        return f"the labels are of {len(set(groups))} different questions; at least {_FOLDS} are needed"
    return None


def _report(told: Floats, score: Floats) -> CheckReport:
    calibrated = reliability(told, score)
    assert calibrated is not None
    return CheckReport(
        rows=len(score),
        mean_score=float(score.mean()),
        auc=auc(told, score),
        brier=calibrated.brier,
        constant_brier=calibrated.constant_brier,
        ece=calibrated.error,
    )


def _logprobs(held: bool) -> _Fit:
    def fit(signals: Sequence[TokenSignals], score: Floats) -> CheckTable:
        return CheckTable(
            check="logprobs",
            levels=(0.5,),
            extra_cost=0.0,
            confidence=fit_confidence(list(signals), score.tolist()),
            rows=len(score),
            held=held,
        )

    return fit


def _told_by_logprobs(table: CheckTable, signals: Sequence[TokenSignals]) -> Floats:
    assert table.confidence is not None
    return np.array([table.confidence.probability(each) for each in signals])


def _self_check(extra_cost: float) -> _Fit:
    def fit(p_true: Floats, score: Floats) -> CheckTable:
        odds = np.array([[log_odds(each)] for each in p_true.tolist()])
        one_kind = np.zeros(len(score), dtype=np.intp)
        fitted = fit_kind_table(odds, one_kind, 1, score[:, None], np.ones(len(score)), penalty=_PENALTY)
        weight, intercept = fitted.weights[0, 0].tolist()
        return CheckTable("self_check", (0.5,), extra_cost, weight=weight, intercept=intercept, rows=len(score))

    return fit


def _told_by_itself(table: CheckTable, p_true: Floats) -> Floats:
    return np.array([table.of_finding(each) for each in p_true.tolist()])


def _extra_cost(column: RoleLabels) -> float:
    """The mean share; where no row tells it, as much as an answer."""
    known = column.self_check_share[np.isfinite(column.self_check_share)]
    return float(known.mean()) if len(known) else 1.0


def _with_levels(table: CheckTable, levels: Floats) -> CheckTable:
    return CheckTable.of({**table.table(), "levels": levels.tolist()})
