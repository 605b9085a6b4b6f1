"""The command line: repeats the calibration of a threshold many times and counts broken promises.

Each time, so many rows are drawn, a threshold is certified on them, and its loss is looked up on all rows. Exit codes:
0 done, 1 a certificate broke more promises than its confidence allows, 2 wrong use.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.certificate.scores import losses_by_share, out_of_fold
from llmrouter.errors import UsageError
from llmrouter.offline.certificate import Method, broken_promise_estimate
from llmrouter.offline.label_reader import read_labels
from llmrouter.offline.labels import LabelSet
from llmrouter.offline.roles import Roles

__all__ = ["Line", "as_text", "lines", "main"]

Line = dict[str, Any]

_METHODS: tuple[Method, ...] = ("exact", "betting")


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    given = _parser().parse_args(argv)
    try:
        between = _pair(given.between)
        labels = read_labels(given.labels, Roles.given(given.models, given.roles))
        labels = _capped(labels, given.most, given.seed)
        found = lines(labels, between, given.loss / 100, 1 - given.confidence, given.rows, given.draws, given.seed)
    except UsageError as error:
        print(f"benchmark: {error.message}", file=sys.stderr)
        return 2
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    print(as_text(found))
    return 1 if any(line["broken"] > 1 - given.confidence + 1e-12 for line in found) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.certificate",
        description="Count broken promises over repeated calibrations; docs/certificates.md has results.",
    )
    parser.add_argument("labels", type=Path, nargs="+", metavar="LABELS")
    parser.add_argument("--models", metavar="SMALL,LARGE", help="models as the labels name them")
    parser.add_argument("--roles", type=Path, metavar="FILE", help="models by source")
    parser.add_argument("--between", default="small,large", metavar="WEAK,STRONG", help="roles (small,large)")
    parser.add_argument("--loss", type=float, default=2.0, metavar="POINTS", help="the promise (2)")
    parser.add_argument("--confidence", type=float, default=0.95, metavar="P", help="(0.95)")
    parser.add_argument("--rows", type=int, nargs="+", default=[1000], metavar="N", help="rows of a calibration (1000)")
    parser.add_argument("--draws", type=int, default=200, metavar="N", help="calibrations (200)")
    parser.add_argument("--most", type=int, metavar="N", help="rows of each source at most, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures")
    return parser


def lines(
    labels: LabelSet,
    between: tuple[str, str],
    eps: float,
    delta: float,
    rows: Sequence[int],
    draws: int,
    seed: int,
    steps: int = 50,
) -> list[Line]:
    """One line for each number of rows, test and way of drawing.

    Raises:
        UsageError: the labels lack a role, or have fewer rows than are to be drawn.
    """
    weak, strong = between
    for role in between:
        if role not in labels.roles:
            raise UsageError(f"--between: the labels have no {role}; they have {', '.join(labels.roles)}")
    gain = labels.roles[strong].quality - labels.roles[weak].quality
    known = np.flatnonzero(np.isfinite(gain))
    labels, gain = labels.take(known), gain[known]
    if max(rows) > len(labels):
        raise UsageError(f"--rows {max(rows)}: there are only {len(labels)} rows with both roles")
    score = out_of_fold([ask.text for ask in labels.asks], gain, labels.groups)
    losses = losses_by_share(score, gain, steps)
    savings = np.linspace(0.0, 1.0, steps + 1)
    found = []
    for count in rows:
        for replace in (False, True):
            for method in _METHODS:
                done = broken_promise_estimate(
                    losses, eps, delta, n=count, savings=savings, method=method, draws=draws, replace=replace, seed=seed
                )
                found.append({"test": method, "again": replace, "of": len(labels), **asdict(done), "kept": done.kept})
    return found


def as_text(found: Sequence[Line]) -> str:
    """One line a setting; shares are those of calls to the weak model."""
    head = f"{'test':8} {'rows':>6} {'of':>6} {'drawn again':>11} {'weak share':>10} {'naive':>6} {'kept':>5}"
    text = [f"{head} {'broken':>7} {'naive':>6}"]
    for line in found:
        kept = "-" if line["kept"] is None else f"{line['kept']:.0%}"
        text.append(
            f"{line['test']:8} {line['n']:6} {line['of']:6} {'yes' if line['again'] else 'no':>11}"
            f" {line['saving']:10.1%} {line['naive_saving']:6.1%} {kept:>5} {line['broken']:7.1%}"
            f" {line['naive_broken']:6.1%}"
        )
    return "\n".join(text)


def _pair(text: str) -> tuple[str, str]:
    weak, _, strong = text.partition(",")
    if not weak or not strong:
        raise UsageError(f"--between {text!r}: give two roles, WEAK,STRONG")
    return weak, strong


def _capped(labels: LabelSet, most: int | None, seed: int) -> LabelSet:
    if most is None:
        return labels
    left: dict[str, int] = {}
    kept = []
    for row in np.random.default_rng(seed).permutation(len(labels)).tolist():
        source = labels.sources[row]
        left[source] = left.get(source, 0) + 1
        if left[source] <= most:
            kept.append(row)
    return labels.take(np.array(sorted(kept), dtype=np.intp))
