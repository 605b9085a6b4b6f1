"""From an answer's content to JSON objects: one body, or the chunks of a stream."""

from __future__ import annotations

import hashlib
import math
import struct
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Literal

from llmrouter.testing.content import Choice, Content, Counts, shape_tool_deltas
from llmrouter.testing.dialects import Dialect, JsonObject
from llmrouter.testing.records import Incoming

__all__ = ["UsageIn", "chat_body", "chat_chunks", "embeddings_body", "text_body", "text_chunks"]

UsageIn = Literal["asked", "always", "with_choice", "every"]
"""Where a stream reports usage: in a chunk of its own when asked; in such a chunk always; when asked, on a last chunk
that still holds a choice with an empty delta; or always, with a running count on every chunk before."""


def chat_body(content: Content, dialect: Dialect) -> JsonObject:
    choices = [
        dialect.message_choice(
            choice, dialect.message(choice), _logprobs(content, dialect, choice, range(len(choice.content)))
        )
        for choice in content.choices
    ]
    return dialect.completion(content, choices, _body_usage(content, dialect))


def text_body(content: Content, dialect: Dialect) -> JsonObject:
    choices = [
        dialect.text_choice(choice.index, "".join(choice.content), choice.finish_reason) for choice in content.choices
    ]
    usage = _body_usage(content, dialect)
    return dialect.text(content, choices, usage)


def chat_chunks(content: Content, dialect: Dialect, usage_in: UsageIn, *, last_choice_first: bool) -> list[JsonObject]:
    """All chunks in order. Choices take turns, each under its own index."""
    choices = list(reversed(content.choices)) if last_choice_first else list(content.choices)
    columns = [list(_choice_chunks(content, dialect, choice)) for choice in choices]
    tail: list[JsonObject] = []
    if _reports_usage(content, usage_in):
        each = _counts_each_choice(content, dialect)
        groups = zip(([choice] for choice in choices), columns, strict=True) if each else [(content.choices, tail)]
        for group, target in groups:
            holders = [{"index": group[0].index, "delta": {}}] if usage_in == "with_choice" else []
            target.append(dialect.chunk(content, holders) | {"usage": _usage(content, dialect, group)})
    chunks = [*_turns(columns), *tail]
    if usage_in == "every" and content.usage != {}:
        chunks = [_running_usage(chunk, content, dialect, position) for position, chunk in enumerate(chunks)]
    return [dialect.finish_chunk(content, chunk) for chunk in chunks]


def text_chunks(content: Content, dialect: Dialect, usage_in: UsageIn) -> list[JsonObject]:
    """Chunks of `/v1/completions`; an engine that counts a choice puts usage on the choice's last chunk."""
    reports, each = _reports_usage(content, usage_in), _counts_each_choice(content, dialect)
    columns = []
    for choice in content.choices:
        own = _usage(content, dialect, [choice]) if reports and each else {}
        pieces = [
            dialect.text(content, [dialect.text_choice(choice.index, token, None)], {}) for token in choice.content
        ]
        last = dialect.text(content, [dialect.text_choice(choice.index, "", choice.finish_reason)], own)
        columns.append([*pieces, last])
    chunks = list(_turns(columns))
    if reports and not each:
        chunks.append(dialect.text(content, [], _usage(content, dialect, content.choices)))
    return chunks


def embeddings_body(request: Incoming, model: str) -> JsonObject:
    """A unit vector for each input, always the same for the same text."""
    given = request.fields.get("input")
    texts = [given] if isinstance(given, str) or not isinstance(given, list) else given
    size = request.fields.get("dimensions")
    vectors = [_vector(str(text), size if isinstance(size, int) else 8) for text in texts]
    packed = request.fields.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _packed(vector) if packed else vector}
        for index, vector in enumerate(vectors)
    ]
    counted = {"prompt_tokens": request.prompt_words, "total_tokens": request.prompt_words}
    return {"object": "list", "data": data, "model": model, "usage": counted}


def _choice_chunks(content: Content, dialect: Dialect, choice: Choice) -> Iterator[JsonObject]:
    def chunk(delta: Mapping[str, Any], logprobs: Any = None, finish: str | None = None) -> JsonObject:
        return dialect.chunk(content, [dialect.delta_choice(choice.index, dict(delta), logprobs, finish)])

    yield chunk(dialect.first_delta())
    if dialect.reasoning_key:
        yield from (chunk({dialect.reasoning_key: token}) for token in choice.reasoning)
    for position, token in enumerate(choice.content):
        yield chunk({"content": token}, _logprobs(content, dialect, choice, range(position, position + 1)))
    for entries in shape_tool_deltas(choice.tool_calls, content.tool_shape):
        yield chunk({"tool_calls": [dialect.tool_delta(entry) for entry in entries]})
    yield chunk(dialect.last_delta, finish=choice.finish_reason)


def _turns(columns: Sequence[Sequence[JsonObject]]) -> Iterator[JsonObject]:
    return (chunk for row in zip_longest(*columns) for chunk in row if chunk is not None)


def _reports_usage(content: Content, usage_in: UsageIn) -> bool:
    return content.usage != {} and (content.request.include_usage or usage_in in ("always", "every"))


def _counts_each_choice(content: Content, dialect: Dialect) -> bool:
    # A usage that the test gives stands for the whole answer.
    return dialect.usage_each_choice and content.usage is None


def _usage(content: Content, dialect: Dialect, choices: Sequence[Choice]) -> JsonObject:
    if content.usage is not None:
        return dict(content.usage)
    return dialect.usage(content.counts(choices))


def _body_usage(content: Content, dialect: Dialect) -> JsonObject:
    # Recorded from llama.cpp: for n > 1 the usage of a plain answer counts one choice.
    each = _counts_each_choice(content, dialect)
    return _usage(content, dialect, content.choices[:1] if each else content.choices)


def _running_usage(chunk: JsonObject, content: Content, dialect: Dialect, position: int) -> JsonObject:
    if "usage" in chunk:
        return chunk
    whole = content.counts(content.choices)
    so_far: Counts = replace(whole, completion=min(position, whole.completion), reasoning=0)
    return chunk | {"usage": dialect.usage(so_far)}


def _logprobs(content: Content, dialect: Dialect, choice: Choice, positions: range) -> Any:
    top = content.request.top_logprobs
    if top is None or not choice.logprobs:
        return None
    entries = []
    for position in positions:
        token, logprob = choice.content[position], choice.logprobs[position]
        entries.append(dialect.token(position, token, logprob, _alternatives(token, logprob, top)))
    return dialect.logprobs(entries)


def _alternatives(token: str, logprob: float, top: int) -> list[tuple[str, float]]:
    return [(token if rank == 0 else f"{token}~{rank}", logprob - rank) for rank in range(top)]


def _vector(text: str, size: int) -> list[float]:
    raw = hashlib.shake_256(text.encode()).digest(2 * size)
    values = [value / 32768 for value in struct.unpack(f"<{size}h", raw)]
    length = math.hypot(*values) or 1.0
    return [value / length for value in values]


def _packed(vector: Sequence[float]) -> str:
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
