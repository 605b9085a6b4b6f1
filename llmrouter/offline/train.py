"""Trains an artefact from labels: quality heads, a policy over routes and checks, and a certificate.

Every row is used for everything, by cross-fitting over question groups: what a row is predicted, decided and certified
with comes from fits that have not seen its group. Figures of merit come from elsewhere still: a fifth of the groups is
set apart first, an artefact is made from the others alone, and measured on that fifth as `eval-router` and
`simulate-routing` would. Only then is the artefact that is written made from all rows.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from llmrouter import __version__
from llmrouter.errors import UsageError
from llmrouter.offline.certificate import Certificate, broken_promise_estimate, certify
from llmrouter.offline.check_fit import FittedChecks, fit_checks
from llmrouter.offline.evaluation import Evaluation, Options, evaluate
from llmrouter.offline.heads import FittedHeads, HeadSettings, folds_of, train_heads
from llmrouter.offline.labels import Floats, LabelSet
from llmrouter.offline.policy_fit import FittedPolicy, fit_policy
from llmrouter.offline.prediction import predict_all
from llmrouter.offline.replay import Replays
from llmrouter.offline.roles import MAIN_ROLES
from llmrouter.offline.simulate import Simulation, simulate
from llmrouter.offline.weights import one_per_group, row_weights
from llmrouter.routing.artifact import Artefact
from llmrouter.routing.drift import statistics_of
from llmrouter.routing.evidence import Prediction
from llmrouter.routing.learned_policy import LearnedPolicy
from llmrouter.routing.predictor import Predictor

__all__ = ["Progress", "TrainOptions", "Trained", "labels_digest", "train"]

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is to do."""

_LEAST_GROUPS = 50
_LEAST_FOR_TEST = 250
"""Groups from which on a fifth is set apart; below, figures are cross-fitted."""
_TEST_FOLDS = 5
_TEST_SEED = 7919
"""Added to the seed, so that the part set apart is no fold of the fits."""
_DRAWS = 200


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How to train."""

    costs: Mapping[str, float]
    """Role → relative cost of a call."""
    policy: str = "auto"
    mix: Mapping[str, float] | None = None
    """Source → weight; None counts rows alike."""
    max_quality_loss: float = 1.0
    """Points that the policy may lose against the reference."""
    confidence: float = 0.95
    promised: bool = False
    """Operate at the certified point; else at the one whose estimated loss is within the limit."""
    slices: bool = False
    """The promise must hold for every source."""
    seed: int = 0
    replicates: int = 1000
    generic: bool = False


@dataclass(frozen=True, slots=True)
class Trained:
    """An artefact before it is written, and what was measured."""

    manifest: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    evaluation: Evaluation
    """Of the prompt-only predictions, on rows set apart (or cross-fitted)."""
    held_out: Simulation | None
    """Of the policy, on the rows set apart."""
    certificate: Certificate
    cross_fitted: bool
    """No rows were set apart: there are too few."""


def train(
    labels: LabelSet,
    options: TrainOptions,
    *,
    created_at: datetime,
    clock: Callable[[], float],
    progress: Progress = lambda _what, _done, _of: None,
) -> Trained:
    """Train on labels.

    The same labels, options and time give the same artefact, bit for bit, on one machine.

    Args:
        clock: seconds of CPU time, for the time of a decision.

    Raises:
        UsageError: too few questions, a cost is missing, the mix names a source that no label is of, or scikit-learn is
            not installed.
    """
    groups = len(set(labels.groups))
    if groups < _LEAST_GROUPS:
        raise UsageError(
            f"{len(labels)} labels of {groups} different questions are too few to train on; at least {_LEAST_GROUPS} "
            "questions are needed, and some 1,000 for a certificate"
        )
    row_weights(labels.sources, labels.inclusion, options.mix)  # refuses a mix that does not fit
    kept, apart = _set_apart(labels, options.seed)
    first = _fit(labels.take(kept), options, progress, "trying") if len(apart) else None
    final = _fit(labels, options, progress, "training")
    if first is not None:
        test = labels.take(apart)
        trial = Artefact(first.manifest(labels, created_at, len(apart)), first.arrays(), "trial")
        predicted = predict_all(Predictor.of(trial), test.asks, clock)
        quality: Mapping[str, Floats] = predicted.quality
        held_out = simulate(
            trial,
            test,
            lambda _: predicted.each,
            costs=options.costs,
            weights=_present(options.mix, test),
            replicates=options.replicates,
            seed=options.seed,
            progress=progress,
        )
    else:
        test, held_out = labels, None
        quality = {role: final.heads.quality[:, at] for at, role in enumerate(final.heads.roles)}
    shown = Options(options.costs, _present(options.mix, test), options.replicates, options.seed)
    evaluation = evaluate(test, quality, shown, stage=progress)
    manifest, arrays = final.manifest(labels, created_at, len(test)), final.arrays()
    decided = predict_all(Predictor.of(Artefact(manifest, arrays, "final")), labels.asks[:500], clock)
    metrics = {
        "cross_fitted": first is None,
        **_metrics(evaluation, held_out),
        "checks": final.checks.metrics(),
        "decision_us": round(decided.decision_us, 1),
        "decision_us_p99": round(decided.decision_us_p99, 1),
    }
    return Trained(
        {**manifest, "metrics": metrics}, arrays, evaluation, held_out, final.certificate, cross_fitted=first is None
    )


def _set_apart(labels: LabelSet, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions of the rows to try with, and of those to measure on."""
    everything = np.arange(len(labels))
    if len(set(labels.groups)) < _LEAST_FOR_TEST:
        return everything, everything[:0]
    folds = folds_of(labels.groups, _TEST_FOLDS, seed + _TEST_SEED)
    return np.flatnonzero(folds != 0), np.flatnonzero(folds == 0)


@dataclass(frozen=True, slots=True)
class _Fit:
    """Heads, policy, checks of single answers and certificate of one set of rows."""

    labels: LabelSet
    options: TrainOptions
    heads: FittedHeads
    policy: FittedPolicy
    checks: FittedChecks
    certificate: Certificate
    broken: float
    """Share of repeated calibrations whose promise was broken."""
    guarantee: Mapping[str, Any] | None
    chosen: int

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {**self.heads.arrays, **self.policy.arrays}

    def manifest(self, labels: LabelSet, created_at: datetime, n_test: int) -> dict[str, Any]:
        """Without the metrics, and without the entries that writing adds."""
        options = self.options
        certified = None if options.generic else self.certificate.index or None
        return {
            "created_at": created_at.isoformat(),
            "llmrouter_version": __version__,
            "seed": options.seed,
            "generic": options.generic,
            "policy": options.policy,
            "roles": _models(labels),
            "costs": {role: float(cost) for role, cost in options.costs.items()},
            "data": {
                "digest": labels_digest(labels),
                "n_train": len(self.labels),
                "n_cal": self.certificate.n,
                "n_test": n_test,
                "sources": dict(sorted(Counter(labels.sources).items())),
                "weights": dict(options.mix) if options.mix is not None else None,
            },
            "heads": dict(self.heads.manifest),
            "calibration": _statistics(self),
            "policy_parameters": {**self.policy.parameters, "chosen": self.chosen, "certified": certified},
            "checks": [table.table() for table in self.checks.tables],
            "guarantee": None if options.generic else self.guarantee,
            "certificate": {**_told(self.certificate), "broken_promise_estimate": self.broken},
        }


def _fit(labels: LabelSet, options: TrainOptions, progress: Progress, stage: str) -> _Fit:
    folds = min(HeadSettings().folds, len(set(labels.groups)))
    heads = train_heads(
        labels,
        seed=options.seed,
        settings=HeadSettings(folds=folds),
        progress=lambda what, done, of: progress(f"{stage}: {what}", done, of),
    )
    predictions = {role: heads.quality[:, at] for at, role in enumerate(heads.roles)}
    policy = fit_policy(
        labels,
        predictions,
        policy=options.policy,
        costs=options.costs,
        weights=_present(options.mix, labels),
        max_quality_loss=options.max_quality_loss,
        seed=options.seed,
        progress=lambda what, done, of: progress(f"{stage}: {what}", done, of),
    )
    checks = FittedChecks() if options.policy == "route" else fit_checks(labels, seed=options.seed)
    certificate, broken, guarantee = _certified(labels, policy, options, progress)
    chosen = certificate.index if options.promised else int(policy.parameters["chosen"])
    return _Fit(labels, options, heads, policy, checks, certificate, broken, guarantee, chosen)


def _certified(
    labels: LabelSet, policy: FittedPolicy, options: TrainOptions, progress: Progress
) -> tuple[Certificate, float, dict[str, Any] | None]:
    """The certificate over the whole policy, on cross-fitted losses, one row a question; how often repetitions broke
    the promise; and the guarantee it gives."""
    rows, weights = one_per_group(labels.groups, policy.weights, options.seed)
    losses = np.clip(policy.reference_quality[rows] - policy.spending.quality[:, rows], -1.0, 1.0)
    spent = policy.spending.cost[:, rows] @ weights
    savings = 1.0 - spent / float(policy.reference_cost[rows] @ weights)
    eps, delta = options.max_quality_loss / 100.0, 1.0 - options.confidence
    found = certify(
        losses,
        eps,
        delta,
        weights=weights,
        savings=savings,
        slices=[labels.sources[row] for row in rows] if options.slices else None,
        seed=options.seed,
    )
    broken = broken_promise_estimate(
        losses,
        eps,
        delta,
        weights=weights,
        savings=savings,
        draws=_DRAWS,
        seed=options.seed,
        progress=lambda done, of: progress("repeating the calibration", done, of),
    )
    if found.index == 0:
        return found, broken.broken, None
    small = policy.spending.share.get("small")
    cheap = np.zeros(len(rows)) if small is None else small[found.index, rows]
    for role, share in policy.spending.share.items():
        if role.startswith("peer"):
            cheap = cheap + share[found.index, rows]
    guarantee = {
        "max_quality_loss": options.max_quality_loss,
        "confidence": options.confidence,
        "n": found.n,
        "point": found.index,
        "slices": [each.name for each in found.slices],
        "large_share": 1.0 - float(cheap @ weights / weights.sum()),
        "cost_saving": float(savings[found.index]),
        "observed_loss": 100.0 * found.loss,
        "broken_promise_estimate": broken.broken,
        "reference_role": policy.parameters["reference"],
    }
    return found, broken.broken, guarantee


def _told(found: Certificate) -> dict[str, Any]:
    """The certificate for the manifest, also where it shows nothing."""
    return {
        "point": found.index,
        "n": found.n,
        "used": found.used,
        "method": found.method,
        "observed_loss": 100.0 * found.loss,
        "p_value": found.p_value,
        "labels_needed": found.labels_needed,
        "reason": found.reason,
    }


def _statistics(fit: _Fit) -> dict[str, Any]:
    """What live traffic is compared with: predicted scores out of fold, and first moves at the operating point."""
    heads = fit.heads
    scores = {role: heads.quality[:, at] for at, role in enumerate(heads.roles) if role in MAIN_ROLES}
    policy = LearnedPolicy(fit.policy.parameters, fit.arrays(), fit.chosen)
    replays = Replays(fit.labels)
    weights = row_weights(fit.labels.sources, fit.labels.inclusion, _present(fit.options.mix, fit.labels))
    routes: dict[str, float] = {}
    for row in range(len(fit.labels)):
        quality = {role: float(heads.quality[row, at]) for at, role in enumerate(heads.roles)}
        move = policy.first(Prediction(quality, float(heads.novelty[row])), replays.offers(row))
        name = "cascade" if move.action == "check" else move.role
        routes[name] = routes.get(name, 0.0) + float(weights[row])
    total = math.fsum(routes.values())
    return statistics_of(scores, {name: share / total for name, share in sorted(routes.items())})


def _metrics(evaluation: Evaluation, held_out: Simulation | None) -> dict[str, Any]:
    router = evaluation.main.router
    found: dict[str, Any] = {"pair": evaluation.main.name, "reason": router.reason}
    found |= {"apgr": router.apgr, **{f"cpt{percent}": router.crossing(percent) for percent in (50, 80, 95)}}
    if held_out is not None:
        found |= {
            "cost_saving": held_out.point.cost_saving,
            "quality_delta": held_out.point.quality_delta,
            "extra_calls": held_out.extra_calls,
        }
    return found


def _models(labels: LabelSet) -> dict[str, list[str]]:
    """Role → every model that plays it in some source."""
    found: dict[str, set[str]] = {}
    for source in sorted(set(labels.sources)):
        for role, model in labels.models.get(source, {}).items():
            if role in labels.roles:
                found.setdefault(role, set()).add(model)
    return {role: sorted(models) for role, models in found.items()}


def _present(mix: Mapping[str, float] | None, labels: LabelSet) -> Mapping[str, float] | None:
    """The part of a mix whose sources the rows have."""
    if mix is None:
        return None
    sources = set(labels.sources)
    return {source: weight for source, weight in mix.items() if source in sources}


def labels_digest(labels: LabelSet) -> str:
    """SHA-256 over what was trained on, in the order of the rows."""
    whole = hashlib.sha256()
    for row in range(len(labels)):
        scores: dict[str, Sequence[Any]] = {
            role: (None if math.isnan(column.quality[row]) else float(column.quality[row]), column.answers[row])
            for role, column in labels.roles.items()
        }
        said = [labels.sources[row], labels.ids[row], labels.groups[row], labels.asks[row].text, scores]
        whole.update(orjson.dumps(said, option=orjson.OPT_SORT_KEYS) + b"\n")
    return whole.hexdigest()
