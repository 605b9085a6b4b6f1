"""Labels and their file format: one JSON object an item, with maps by model, as training reads and `labels` writes it.

    {"id": "q-17", "group": "arithmetic", "source": "gsm8k", "prompt": "…", "scores": {"small": 0, "large": 1},
     "input_tokens": {"small": 58, "large": 58}, "answers": {"small": "41", "large": "42"}}

A file may also have one object a label, with `model_id` and `score`. What a label says beyond its score (`judge`,
`kind`, `judged_at`, `routing_version`, `inclusion_probability`) is one value for the whole object, or a map by model.
Keys that are not known here belong to the item and are kept as they are.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import orjson

from llmrouter.database import to_instant
from llmrouter.types import value

__all__ = ["ALIASES", "KINDS", "Faulty", "Item", "Kind", "Label", "LabelRow", "read_row", "write_row"]

Kind = Literal["eval", "shadow", "human", "import"]
KINDS: tuple[Kind, ...] = get_args(Kind)

ALIASES: Mapping[str, str] = {
    "item_id": "id",
    "request_id": "id",
    "group_id": "group",
    "cluster": "group",
    "question": "prompt",
    "model": "model_id",
    "in_tokens": "input_tokens",
    "prompt_tokens": "input_tokens",
    "tokens_in": "input_tokens",
    "out_tokens": "output_tokens",
    "completion_tokens": "output_tokens",
    "tokens_out": "output_tokens",
    "cost": "cost_usd",
    "answer": "answers",
    "scorer": "judge",
}
"""Other spellings that are understood; what is written has the name on the right."""

_USAGE = ("input_tokens", "output_tokens", "cost_usd", "out_chars")
_CIRCUMSTANCES = ("kind", "judge", "judged_at", "routing_version", "inclusion_probability")
_OWN = {"id", "group", "source", "prompt", "messages", "tags", "scores", "answers", *_USAGE, *_CIRCUMSTANCES}
_LONGEST_NAME = 512


class Faulty(ValueError):
    """The object is not one of the format; the message names the key, the value and what is allowed."""


@value
class Item:
    """What was asked; None is what was not said."""

    item_id: str
    group: str | None = None
    source: str | None = None
    content: str | None = None
    """JSON: an object with `prompt` or `messages`."""
    tags: str | None = None
    """JSON."""
    extra: str | None = None
    """JSON: an object of the keys that are not known here."""


@value
class Label:
    """How good one model's answer was."""

    model_id: str
    score: float
    """From 0 to 1."""
    kind: Kind
    judge: str | None = None
    judged_at: str | None = None
    """An instant as the store has them."""
    routing_version: int | None = None
    inclusion_probability: float | None = None
    usage: str = "{}"
    """JSON: tokens, cost and length, as far as they are known."""
    answer: str | None = None
    """JSON: what the answer came to, such as a number or a choice."""

    def digest(self, item_id: str) -> bytes:
        """The same for labels that say the same of the same item."""
        said = [item_id, self.model_id, self.score, self.kind, self.judge, self.judged_at, self.routing_version]
        more = [self.inclusion_probability, self.usage, self.answer]
        return hashlib.sha256(orjson.dumps([*said, *more])).digest()


@value
class LabelRow:
    """One item with labels for some models, each at most once."""

    item: Item
    labels: tuple[Label, ...]


def read_row(given: Any, *, kind: Kind = "import", judge: str | None = None) -> LabelRow:
    """Read one JSON object; `kind` and `judge` are for labels that do not say.

    Raises:
        Faulty: see there.
    """
    if not isinstance(given, Mapping):
        raise Faulty(f"must be a JSON object, not {_shown(given)}")
    row = _by_models(_renamed(given))
    scores = row["scores"]
    if not isinstance(scores, Mapping) or not scores:
        raise Faulty(f"scores: must map models to scores, not {_shown(scores)}")
    for name in (*_USAGE, "answers"):
        _check_models(name, row.get(name), scores)
    item = _item(row)
    return LabelRow(item, tuple(_label(str(model), row, kind, judge) for model in scores))


def write_row(item: Item, labels: Sequence[Label], content: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The JSON object of an item with one label a model; `content` stands in where the item itself has none.

    What is read from it is the same item with the same labels.
    """
    row: dict[str, Any] = {"id": item.item_id}
    row |= {name: each for name, each in (("group", item.group), ("source", item.source)) if each is not None}
    row |= orjson.loads(item.content) if item.content else content or {}
    row["scores"] = {each.model_id: _plain(each.score) for each in labels}
    usages = {each.model_id: orjson.loads(each.usage) for each in labels}
    for name in _USAGE:
        if found := {model: usage[name] for model, usage in usages.items() if name in usage}:
            row[name] = found
    if answers := {each.model_id: orjson.loads(each.answer) for each in labels if each.answer is not None}:
        row["answers"] = answers
    if item.tags is not None:
        row["tags"] = orjson.loads(item.tags)
    for name in _CIRCUMSTANCES:
        _add_circumstance(row, name, {each.model_id: getattr(each, name) for each in labels})
    return row | (orjson.loads(item.extra) if item.extra else {})


def _add_circumstance(row: dict[str, Any], name: str, by_model: Mapping[str, Any]) -> None:
    values = list(by_model.values())
    unsaid = "import" if name == "kind" else None
    if all(each == values[0] for each in values):
        if values[0] != unsaid:
            row[name] = values[0]
    else:
        row[name] = {model: each for model, each in by_model.items() if each is not None}


def _renamed(given: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, each in given.items():
        name = ALIASES.get(key, key)
        if name in row:
            raise Faulty(f"{key}: says again what {name} says; keep one of them")
        row[name] = each
    return row


def _by_models(row: dict[str, Any]) -> dict[str, Any]:
    """An object with one label as one with maps by model."""
    if "scores" in row:
        if "score" in row or "model_id" in row:
            raise Faulty("scores: does not go with score or model_id; an object is about several models or about one")
        return row
    if "score" not in row or "model_id" not in row:
        raise Faulty("has no scores: give scores (a map by model), or model_id and score")
    model = _text("model_id", row.pop("model_id"))
    row["scores"] = {model: row.pop("score")}
    for name in (*_USAGE, "answers"):
        if name in row:
            row[name] = {model: row[name]}
    return row


def _check_models(name: str, by_model: Any, scores: Mapping[str, Any]) -> None:
    if by_model is None:
        return
    if not isinstance(by_model, Mapping):
        raise Faulty(f"{name}: must map models to values, not {_shown(by_model)}")
    for model in by_model:
        if model not in scores:
            raise Faulty(f"{name}: names the model {_shown(model)}, which has no score")


def _item(row: Mapping[str, Any]) -> Item:
    if "prompt" in row and "messages" in row:
        raise Faulty("messages: does not go with prompt; give one of them")
    content = None
    if row.get("prompt") is not None:
        if not isinstance(row["prompt"], str):
            raise Faulty(f"prompt: must be text, not {_shown(row['prompt'])}")
        content = {"prompt": row["prompt"]}
    elif row.get("messages") is not None:
        _check_messages(row["messages"])
        content = {"messages": row["messages"]}
    tags = row.get("tags")
    if not isinstance(tags, list | Mapping | None):
        raise Faulty(f"tags: must be a list or an object, not {_shown(tags)}")
    extra = {name: each for name, each in row.items() if name not in _OWN}
    return Item(
        item_id=_identifier(row.get("id")),
        group=None if row.get("group") is None else _text("group", row["group"]),
        source=None if row.get("source") is None else _text("source", row["source"]),
        content=_json(content),
        tags=_json(tags),
        extra=_json(extra or None),
    )


def _check_messages(messages: Any) -> None:
    good = isinstance(messages, list) and messages and all(isinstance(each, Mapping) for each in messages)
    if not good:
        raise Faulty(f"messages: must be a list of messages, not {_shown(messages)}")


def _label(model: str, row: Mapping[str, Any], kind: Kind, judge: str | None) -> Label:
    said = {name: _of_model(row.get(name), model) for name in _CIRCUMSTANCES}
    usage = {
        name: _check_usage(f"{name}.{model}", name, row[name][model])
        for name in _USAGE
        if row.get(name) is not None and model in row[name]
    }
    answers = row.get("answers")
    return Label(
        model_id=_text("scores", model),
        score=float(_number(f"scores.{model}", row["scores"][model], "a number from 0 to 1", lambda n: 0 <= n <= 1)),
        kind=kind if said["kind"] is None else _kind(said["kind"]),
        judge=judge if said["judge"] is None else _text("judge", said["judge"]),
        judged_at=None if said["judged_at"] is None else _instant(said["judged_at"]),
        routing_version=_version(said["routing_version"]),
        inclusion_probability=_probability(said["inclusion_probability"]),
        usage=_json(usage) or "{}",
        answer=_json(answers[model], null="null") if answers is not None and model in answers else None,
    )


def _of_model(given: Any, model: str) -> Any:
    return given.get(model) if isinstance(given, Mapping) else given


def _check_usage(at: str, name: str, given: Any) -> Any:
    if given is None:
        return None
    if name == "cost_usd":
        return _number(at, given, "dollars from 0 up", lambda n: n >= 0)
    return _number(at, given, "a whole number from 0 up", lambda n: n >= 0 and n == int(n))


def _version(given: Any) -> int | None:
    if given is None:
        return None
    return int(_number("routing_version", given, "a whole number from 0 up", lambda n: 0 <= n == int(n) < 2**53))


def _probability(given: Any) -> float | None:
    if given is None:
        return None
    return float(_number("inclusion_probability", given, "a number above 0, at most 1", lambda n: 0 < n <= 1))


def _number(at: str, given: Any, wanted: str, good: Callable[[float], bool]) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given) or not good(given):
        raise Faulty(f"{at}: must be {wanted}, not {_shown(given)}")
    return given


def _kind(given: Any) -> Kind:
    for each in KINDS:
        if given == each:
            return each
    raise Faulty(f"kind: must be one of {', '.join(KINDS)}, not {_shown(given)}")


def _instant(given: Any) -> str:
    try:
        moment = datetime.fromisoformat(given)
        return to_instant(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
    except (TypeError, ValueError, OverflowError):
        raise Faulty(f"judged_at: must be an ISO time, not {_shown(given)}") from None


def _identifier(given: Any) -> str:
    if given is None:
        raise Faulty("id: is missing")
    number = isinstance(given, int) and not isinstance(given, bool)
    return _text("id", str(given) if number else given)


def _text(at: str, given: Any) -> str:
    if not isinstance(given, str) or not 0 < len(given) <= _LONGEST_NAME:
        raise Faulty(f"{at}: must be text of 1 to {_LONGEST_NAME} characters, not {_shown(given)}")
    return given


def _json(given: Any, null: str | None = None) -> str | None:
    """The JSON of a value, always the same for values that are equal."""
    if given is None:
        return null
    try:
        return orjson.dumps(given, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError as error:
        raise Faulty(f"cannot be written as JSON: {error}") from None


def _plain(number: float) -> float | int:
    """0 and 1 as most files have them."""
    return int(number) if number.is_integer() else number


def _shown(given: Any) -> str:
    return repr(given)[:60]
