"""What labels are built from: items of a golden file, and samples of requests, each with a scorer.

    {"id": "q-17", "prompt": "…", "expected": "42", "scorer": "number"}
    {"id": "q-18", "messages": […], "expected": "B", "scorer": {"type": "choice", "choices": "ABCD"}, "tags": ["law"]}

Other keys that are understood: `group` (or `cluster`), `source` (a name, or an object with `set`), and what a request
may say: `tools`, `tool_choice`, `response_format`, `stop`, `max_tokens`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from llmrouter.errors import UsageError
from llmrouter.offline.label_files import source_name
from llmrouter.quality.label_files import read_objects
from llmrouter.quality.labels import Faulty
from llmrouter.quality.sample_store import Sample
from llmrouter.quality.scorers import Scorer, scorer_of
from llmrouter.types import ChatRequest, value

__all__ = ["LabelItem", "read_golden", "sample_items"]

_ASKED = ("tools", "tool_choice", "response_format", "stop")
_CAPS = ("max_completion_tokens", "max_tokens")
_FAULTS_SHOWN = 5


@value
class LabelItem:
    """One item to ask models and to score their answers."""

    item_id: str
    content: Mapping[str, Any]
    """`prompt` or `messages`."""
    asked: Mapping[str, Any]
    """Further fields of the request."""
    max_tokens: int | None
    scorer: Scorer | None
    """None compares with the reference model's answer."""
    judge: str
    """Who judges, for the labels."""
    expected: str
    """What makes this item another one, as JSON: the scorer and what it expects."""
    group: str | None = None
    source: str | None = None
    tags: Any = None
    inclusion_probability: float | None = None

    def messages(self) -> list[Any]:
        """What the models are sent."""
        if "messages" in self.content:
            return list(self.content["messages"])
        return [{"role": "user", "content": self.content["prompt"]}]

    def request(self, model: str, default_cap: int | None = None, **more: Any) -> ChatRequest:
        """The request to one model.

        Args:
            default_cap: most output tokens where the item does not say.
            more: further fields.
        """
        messages = self.messages()
        texts = [text for message in messages for text in _texts(message.get("content"))]
        turns = [message for message in messages if message.get("role") == "user"]
        fields = {"model": model, "messages": messages, **self.asked, **more}
        return ChatRequest(
            endpoint="chat",
            model=model,
            fields=fields,
            max_output_tokens=default_cap if self.max_tokens is None else self.max_tokens,
            n=more.get("n", 1),
            text_bytes=sum(len(text.encode(errors="replace")) for text in texts),
            message_count=len(messages),
            last_user_text=" ".join(_texts(turns[-1].get("content"))) if turns else "",
        )


def read_golden(file: Path) -> list[LabelItem]:
    """The items of a golden file, JSONL or JSONL.gz or Parquet, in its order.

    Raises:
        UsageError: the file cannot be read, or an item is faulty or there twice; names file and line.
    """
    items: dict[str, LabelItem] = {}
    faults: list[str] = []
    for at, given in read_objects(file):
        try:
            if isinstance(given, Faulty):
                raise given
            item = _golden(given, source_name(file))
            if item.item_id in items:
                raise Faulty(f"id: {item.item_id!r} is there already")
            items[item.item_id] = item
        except Faulty as fault:
            faults.append(f"{file}: {at}: {fault}")
    if faults:
        more = [f"and {len(faults) - _FAULTS_SHOWN} more"] if len(faults) > _FAULTS_SHOWN else []
        raise UsageError("\n".join([*faults[:_FAULTS_SHOWN], *more]))
    if not items:
        raise UsageError(f"{file}: holds no items")
    return list(items.values())


def sample_items(samples: Iterator[Sample], consenting: frozenset[str]) -> Iterator[LabelItem | None]:
    """Samples as items that are compared with the reference; None for one that cannot be asked again.

    Args:
        consenting: tenants that consent now; samples of others are left.
    """
    for sample in samples:
        content = sample.content()
        if sample.info.tenant_id not in consenting or content is None:
            yield None
            continue
        yield LabelItem(
            item_id=sample.info.request_id,
            content=content,
            asked={name: sample.request[name] for name in _ASKED if sample.request.get(name) is not None},
            max_tokens=_cap(sample.request),
            scorer=None,
            judge="same-as-reference",
            expected="null",
            source=f"samples:{sample.info.tenant_id}",
            inclusion_probability=sample.info.inclusion_probability,
        )


def _golden(given: Any, default_source: str) -> LabelItem:
    if not isinstance(given, Mapping):
        raise Faulty(f"must be a JSON object, not {given!r:.60}")
    if "scorer" not in given:
        raise Faulty("scorer: is missing")
    expected = given.get("expected")
    kind = given["scorer"].get("type") if isinstance(given["scorer"], Mapping) else given["scorer"]
    return LabelItem(
        item_id=_text("id", given.get("id")),
        content=_content(given),
        asked={name: given[name] for name in _ASKED if given.get(name) is not None},
        max_tokens=_cap(given),
        scorer=scorer_of(given["scorer"], expected),
        judge=f"{kind}",
        expected=orjson.dumps([given["scorer"], expected], option=orjson.OPT_SORT_KEYS).decode(),
        group=_optional("group", given.get("group", given.get("cluster"))),
        source=_source(given.get("source"), default_source),
        tags=given.get("tags"),
    )


def _content(given: Mapping[str, Any]) -> dict[str, Any]:
    prompt, messages = given.get("prompt"), given.get("messages")
    if (prompt is None) == (messages is None):
        raise Faulty("give exactly one of prompt and messages")
    if prompt is not None:
        if not isinstance(prompt, str) or not prompt:
            raise Faulty(f"prompt: must be text, not {prompt!r:.60}")
        return {"prompt": prompt}
    if not isinstance(messages, list) or not messages or not all(isinstance(each, Mapping) for each in messages):
        raise Faulty(f"messages: must be a list of messages, not {messages!r:.60}")
    return {"messages": messages}


def _cap(given: Mapping[str, Any]) -> int | None:
    for name in _CAPS:
        cap = given.get(name)
        if cap is not None:
            if isinstance(cap, bool) or not isinstance(cap, int) or cap < 1:
                raise Faulty(f"{name}: must be a whole number from 1 up, not {cap!r:.60}")
            return cap
    return None


def _source(given: Any, default: str) -> str:
    if isinstance(given, Mapping):
        given = given.get("set")
    return _optional("source", given) or default


def _optional(at: str, given: Any) -> str | None:
    return None if given is None else _text(at, given)


def _text(at: str, given: Any) -> str:
    if isinstance(given, int) and not isinstance(given, bool):
        return str(given)
    if not isinstance(given, str) or not given:
        raise Faulty(f"{at}: must be text, not {given!r:.60}")
    return given


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
