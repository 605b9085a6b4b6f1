"""What a label row tells of one answer beyond its score: how sure the model was, and what it wrote when asked again.

`labels build` writes these keys, each a map by model. They are none of the label format's own, so a row of another
origin may use such a name for something else: what is no map with the model in it is passed over.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from llmrouter.errors import UsageError
from llmrouter.offline.confidence_fit import read_signals
from llmrouter.quality.labels import Faulty, Label
from llmrouter.types import TokenSignals, value

__all__ = ["AnswerChecks", "answer_checks", "samples_as_labels"]

_KEYS = frozenset({"signals", "prefix_signals", "p_true", "sample_scores"})


@value
class AnswerChecks:
    """Of one model's answer; None and NaN are what is not known."""

    signals: TokenSignals | None = None
    """Of the whole answer, and"""
    prefix_signals: TokenSignals | None = None
    """of as much of its beginning as is held back of a stream."""
    p_true: float = math.nan
    """How likely the model was to say that its answer is right."""
    self_check_share: float = math.nan
    """What asking it took, as a share of what the answer took."""


def answer_checks(extra: Mapping[str, Any], label: Label) -> AnswerChecks | None:
    """What the further keys of a row tell of this label's model; None where they tell nothing.

    Raises:
        Faulty: a value is not what `labels build` writes.
    """
    if _KEYS.isdisjoint(extra):
        return None
    signals, prefix = _signals(extra, "signals", label), _signals(extra, "prefix_signals", label)
    p_true = _of(extra, "p_true", label)
    if p_true is not None:
        _check_probability("p_true", p_true)
    if signals is None and prefix is None and p_true is None:
        return None
    sure = math.nan if p_true is None else float(p_true)
    return AnswerChecks(signals, prefix, sure, _self_check_share(extra, label))


def samples_as_labels(extra: Mapping[str, Any], label: Label) -> tuple[Label, ...]:
    """The further answers that a row has of this label's model, as labels that differ in score, answer and usage only;
    empty where it has none, or none with scores.

    Raises:
        Faulty: scores and answers do not go together.
    """
    answers, scores = _of(extra, "samples", label), _of(extra, "sample_scores", label)
    if scores is None or not isinstance(answers, list):
        return ()
    lengths = _of(extra, "sample_chars", label)
    if not isinstance(scores, list) or len(scores) != len(answers):
        raise Faulty(f"sample_scores: must be a list of {len(answers)} scores, one a sample, not {scores!r:.60}")
    for score in scores:
        _check_probability("sample_scores", score)
    cost = _of(extra, "samples_cost_usd", label)
    usage: dict[str, Any] = {} if not _is_number(cost) else {"cost_usd": cost / len(answers)}
    return tuple(
        dataclasses.replace(
            label,
            score=float(scores[number]),
            answer=orjson.dumps(answer).decode(),
            usage=orjson.dumps(usage | _length(lengths, number)).decode(),
        )
        for number, answer in enumerate(answers)
    )


def _length(lengths: Any, number: int) -> dict[str, Any]:
    known = isinstance(lengths, Sequence) and number < len(lengths) and _is_number(lengths[number])
    return {"out_chars": lengths[number]} if known else {}


def _signals(extra: Mapping[str, Any], name: str, label: Label) -> TokenSignals | None:
    given = _of(extra, name, label)
    try:
        return None if given is None else read_signals(given)
    except UsageError as error:
        raise Faulty(f"{name}: {error}") from error


def _self_check_share(extra: Mapping[str, Any], label: Label) -> float:
    """By cost where that is known and not nothing, else by tokens."""
    usage = orjson.loads(label.usage)
    asked, answered = _of(extra, "self_check_cost_usd", label), usage.get("cost_usd")
    if not (_is_number(asked) and _is_number(answered) and answered > 0):
        asked = _total(_of(extra, f"self_check_{name}", label) for name in ("input_tokens", "output_tokens"))
        answered = _total(usage.get(name) for name in ("input_tokens", "output_tokens"))
    return asked / answered if answered > 0 else math.nan


def _total(counts: Any) -> float:
    return math.fsum(each if _is_number(each) else math.nan for each in counts)


def _of(extra: Mapping[str, Any], name: str, label: Label) -> Any:
    by_model = extra.get(name)
    return by_model.get(label.model_id) if isinstance(by_model, Mapping) else None


def _check_probability(name: str, given: Any) -> None:
    if not _is_number(given) or not 0 <= given <= 1:
        raise Faulty(f"{name}: must be a number from 0 to 1, not {given!r:.60}")


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
