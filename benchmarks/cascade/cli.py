"""The command line: what each check tells, and what it saves at an equal loss. Exit codes: 0 done, 2 wrong use."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cascade.replay import CHECKS, Replay, replay, saving_at
from llmrouter.errors import UsageError
from llmrouter.offline.check_fit import fit_checks
from llmrouter.offline.label_reader import read_labels
from llmrouter.offline.labels import LabelSet
from llmrouter.offline.roles import Roles

__all__ = ["main"]

_BOOTSTRAP = 200


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    given = _parser().parse_args(argv)
    try:
        labels = read_labels(given.labels, Roles.given(given.models, given.roles))
        found = measured(labels, [each / 100 for each in given.loss], given.small_cost, given.seed)
    except UsageError as error:
        print(f"benchmark: {error.message}", file=sys.stderr)
        return 2
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    print(_as_text(found))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cascade", description=__doc__)
    parser.add_argument("labels", type=Path, nargs="+", metavar="LABELS", help="with --signals and --self-check")
    parser.add_argument("--models", metavar="SMALL,LARGE", help="models as the labels name them")
    parser.add_argument("--roles", type=Path, metavar="FILE", help="models by source")
    parser.add_argument("--small-cost", type=float, default=0.1, metavar="SHARE", help="of a large call (0.1)")
    parser.add_argument("--loss", type=float, nargs="+", default=[1.0, 2.0], metavar="POINTS", help="(1 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def measured(labels: LabelSet, losses: Sequence[float], small_cost: float, seed: int) -> dict[str, Any]:
    """All figures, as JSON values; intervals are of 95 %, by a bootstrap over questions."""
    checks = fit_checks(labels, seed=seed).metrics()
    replayed = replay(labels, tuple(CHECKS), small_cost=small_cost, seed=seed)
    savings = {}
    for loss in losses:
        draws = [
            {name: saving_at(each, loss, rows) for name, each in replayed.items()} for rows in _draws(labels, seed)
        ]
        savings[f"{100 * loss:g}"] = {
            **{
                name: _with_interval(saving_at(each, loss), [draw[name] for draw in draws])
                for name, each in replayed.items()
            },
            "held_keeps": _kept(replayed, loss),
        }
    return {
        "rows": len(labels),
        "small": float(labels.roles["small"].quality.mean()),
        "large": float(labels.roles["large"].quality.mean()),
        "checks": checks,
        "saving_at_loss": savings,
    }


def _draws(labels: LabelSet, seed: int) -> list[np.ndarray[Any, np.dtype[np.intp]]]:
    numbers = np.unique(np.array(labels.groups, dtype=object).astype(str), return_inverse=True)[1]
    members = [np.flatnonzero(numbers == number) for number in range(numbers.max() + 1)]
    rng = np.random.default_rng(seed)
    return [
        np.concatenate([members[each] for each in rng.integers(0, len(members), len(members)).tolist()])
        for _ in range(_BOOTSTRAP)
    ]


def _with_interval(figure: float, draws: Sequence[float]) -> list[float]:
    low, high = np.quantile(draws, (0.025, 0.975)).tolist()
    return [figure, low, high]


def _kept(replayed: dict[str, Replay] | Any, loss: float) -> float | None:
    """The share of what whole answers save that held-back beginnings save too."""
    whole = saving_at(replayed["logprobs"], loss)
    return saving_at(replayed["logprobs:held"], loss) / whole if whole > 0 else None


def _as_text(found: dict[str, Any]) -> str:
    lines = [f"{found['rows']} rows; mean score: small {found['small']:.3f}, large {found['large']:.3f}"]
    for name, each in found["checks"].items():
        figures = ", ".join(
            f"{key} {each[key]:.3f}" for key in ("auc", "brier", "constant_brier", "ece") if key in each
        )
        lines.append(f"{name}: {figures}" + (f"; not used: {each['left_out']}" if "left_out" in each else ""))
    for loss, savings in found["saving_at_loss"].items():
        for name in CHECKS:
            saved, low, high = savings[name]
            lines.append(f"at a loss of {loss} points {name} saves {saved:.1%} ({low:.1%} to {high:.1%})")
        if savings["held_keeps"] is not None:
            lines.append(f"at a loss of {loss} points held-back beginnings keep {savings['held_keeps']:.0%} of it")
    return "\n".join(lines)
