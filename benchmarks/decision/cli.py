"""The command line: times decisions on real prompts of two lengths, beside plain dict look-ups in the same run.

Times are CPU times of the thread, so that a busy machine disturbs them little; it still slows the caches, so the ratio
to the dict is what can be compared between machines. Exit codes: 0 done, 1 a goal was missed, 2 wrong use.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.decision.rival import DictScorer
from llmrouter.errors import RouterError
from llmrouter.quality.label_files import read_objects
from llmrouter.routing.artifact import Artefact, generic_artefact, load_artefact
from llmrouter.routing.ask import ask_of
from llmrouter.routing.predictor import Predictor

__all__ = ["GOALS_US", "Figures", "lines", "main", "texts_of"]

Figures = dict[str, float]
GOALS_US = {660: 150.0, 6000: 500.0}
"""Characters → median microseconds of a decision."""
MOST_P99_US = 1000.0
_LABELS = Path("examples/labels/dev.jsonl.gz")
_SPREAD = 0.1
"""How far a prompt's length may lie from the one asked for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decision", description="Measure the CPU time of routing decisions."
    )
    parser.add_argument("--artefact", type=Path, metavar="DIR", help="a trained router, instead of the generic one")
    parser.add_argument("--labels", type=Path, default=_LABELS, metavar="FILE", help=f"prompts ({_LABELS})")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="times that each prompt is decided (20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures")
    given = parser.parse_args(argv)
    if given.rounds < 1:
        parser.error("--rounds must be 1 or more")
    try:
        artefact = generic_artefact() if given.artefact is None else load_artefact(given.artefact)
        prompts = [str(row["prompt"]) for _, row in read_objects(given.labels) if isinstance(row, dict)]
        found = lines(artefact, prompts, given.rounds)
        if given.json:
            given.json.write_text(json.dumps(found, indent=1) + "\n")
    except (RouterError, OSError, KeyError) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    print(as_text(found))
    return 0 if reached(found) else 1


def lines(artefact: Artefact, prompts: Sequence[str], rounds: int) -> dict[int, Figures]:
    """By length: median and p99 of a decision and of the dict, and the ratio of the medians."""
    predictor = Predictor.of(artefact)
    rival = DictScorer(prompts, len(predictor.roles))
    found = {}
    for length in GOALS_US:
        texts = texts_of(prompts, length)
        ours, theirs = _times(lambda text: predictor.predict(ask_of(text)), rival.score, texts, rounds)
        found[length] = {
            "prompts": len(texts),
            "decision_us": float(np.median(ours)),
            "decision_p99_us": float(np.quantile(ours, 0.99)),
            "dict_us": float(np.median(theirs)),
            "dict_p99_us": float(np.quantile(theirs, 0.99)),
            "ratio": float(np.median(ours) / np.median(theirs)),
        }
    return found


def texts_of(prompts: Sequence[str], length: int) -> list[str]:
    """Prompts of about that length; several in a row where single ones are shorter, or none would be left."""
    near = [text for text in prompts if abs(len(text) - length) <= _SPREAD * length]
    if len(near) >= 20:
        return near
    joined, texts = "", []
    for prompt in prompts:
        joined += prompt + "\n\n"
        if len(joined) >= length:
            texts.append(joined[:length])
            joined = ""
    return texts[:50]


def reached(found: dict[int, Figures]) -> bool:
    return all(
        figures["decision_us"] <= GOALS_US[length] and figures["decision_p99_us"] <= MOST_P99_US
        for length, figures in found.items()
    )


def as_text(found: dict[int, Figures]) -> str:
    """A Markdown table."""
    rows = ["| characters | decision, median | p99 | goal | plain dict | ratio |", "|--:|--:|--:|--:|--:|--:|"]
    for length, each in found.items():
        rows.append(
            f"| {length:,} | {each['decision_us']:.0f} us | {each['decision_p99_us']:.0f} us | "
            f"{GOALS_US[length]:.0f} us | {each['dict_us']:.0f} us | {each['ratio']:.2f} |"
        )
    return "\n".join(rows)


def _times(
    ours: Callable[[str], object], theirs: Callable[[str], object], texts: Sequence[str], rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Microseconds of every call, the two turn by turn, so that both meet the same machine."""
    found: tuple[list[int], list[int]] = ([], [])
    for number in range(rounds + 1):
        for text in texts:
            for call, times in zip((ours, theirs), found, strict=True):
                begun = time.thread_time_ns()
                call(text)
                ended = time.thread_time_ns()
                # The first round is for warming up.
                if number:
                    times.append(ended - begun)
    return np.array(found[0]) / 1e3, np.array(found[1]) / 1e3
