"""The bytes that engines stream, for tests of what becomes of them."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson

from llmrouter.gateway.stream import StreamRewriter
from llmrouter.testing import Answer, parse_sse
from llmrouter.testing.actions import Data, DialectName, Engine
from llmrouter.testing.records import Incoming

DIALECTS: tuple[DialectName, ...] = ("vllm", "llama_cpp", "openai")
OURS = {"id": "chatcmpl-ours", "created": 1_800_000_000, "model": "auto"}
DONE = b"data: [DONE]\n\n"

SPELLINGS: dict[str, Callable[[Any], str]] = {
    "orjson": lambda value: orjson.dumps(value).decode(),
    "compact": lambda value: json.dumps(value, separators=(",", ":")),
    "python": json.dumps,
    "unicode": lambda value: json.dumps(value, ensure_ascii=False),
}
"""How JSON writers differ: spaces, and characters as themselves or as escapes."""


def events_of(
    answer: Answer, dialect: DialectName = "vllm", *, include_usage: bool = True, n: int = 1, chat: bool = True
) -> list[bytes]:
    """The events with which an engine streams an answer, the end marker included."""
    prompt = {"messages": [{"role": "user", "content": "Hi"}]} if chat else {"prompt": "Hi"}
    asked = {"model": "m", "stream": True, "n": n, **prompt}
    if include_usage:
        asked["stream_options"] = {"include_usage": True}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    incoming = Incoming(1, "POST", path, (), b"", asked)
    plan = answer.plan(incoming, Engine(dialect, ("m",), created=1))
    return [action.data for action in plan if isinstance(action, Data)]


def spelled(events: Iterable[bytes], spelling: str) -> list[bytes]:
    """The same events as another JSON writer puts them."""
    write = SPELLINGS[spelling]
    return [event if event == DONE else sse(write(json.loads(event[6:]))) for event in events]


def sse(data: Any) -> bytes:
    """One event with a text, or with a JSON value."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def chunk(delta: Any, *, finish: Any = None, index: Any = 0, envelope: Any = None, **choice: Any) -> dict[str, Any]:
    """One chat chunk in vLLM's key order."""
    head = {"id": "theirs", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return head | {"choices": [{"index": index, "delta": delta, "finish_reason": finish, **choice}], **(envelope or {})}


def tokens(*texts: str) -> list[bytes]:
    """Plain chunks with these texts."""
    return [sse(chunk({"content": text})) for text in texts]


FINISH = sse(chunk({}, finish="stop"))


@dataclass
class Rewritten:
    """What became of a stream."""

    rewriter: StreamRewriter
    raw: bytes = b""
    ends: bool = True
    blocks: list[bytes] = field(default_factory=list)

    @property
    def chunks(self) -> list[Any]:
        """All data events but the end marker, read strictly."""
        events = parse_sse(self.raw)
        assert ("[DONE]" in events) == self.ends
        return [event for event in events if event != "[DONE]"]

    def deltas(self, index: int = 0) -> list[Any]:
        return [c["delta"] for value in self.chunks for c in value["choices"] if c["index"] == index]

    def text(self, index: int = 0, key: str = "content") -> str:
        return "".join(delta.get(key) or "" for delta in self.deltas(index))


def cut(raw: bytes, offsets: Iterable[int]) -> list[bytes]:
    """The bytes in blocks that end at these offsets, taken modulo the length."""
    bounds = [0, *sorted({offset % (len(raw) + 1) for offset in offsets}), len(raw)]
    return [raw[start:stop] for start, stop in pairwise(bounds) if stop > start]


def rewrite(
    blocks: Iterable[bytes], *, parse_all: bool = False, include_usage: bool = False, n: int = 1, chat: bool = True
) -> Rewritten:
    """Feed blocks as the gateway does, with the ending when the answer is complete.

    With `parse_all` no frame survives a block, so that blocks of one event are parsed one by one.
    """
    rewriter = StreamRewriter(
        chunk_id=OURS["id"],  # type: ignore[arg-type]
        created=OURS["created"],  # type: ignore[arg-type]
        model=OURS["model"],  # type: ignore[arg-type]
        include_usage=include_usage,
        n=n,
        chat=chat,
    )
    result = Rewritten(rewriter)
    for block in blocks:
        result.blocks.append(rewriter.feed(block))
        if parse_all:
            rewriter._frame = None
    result.blocks.append(rewriter.drain())
    result.ends = rewriter.complete and not rewriter.failed
    tail = rewriter.end({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}) if result.ends else b""
    result.raw = b"".join([*result.blocks, tail])
    return result


def lying_upstreams() -> Iterator[tuple[str, list[bytes]]]:
    """Streams whose plain events change their surroundings midway, by name."""
    before, after = tokens("one ", "two ", "three "), tokens("four ", "five ", "six ")

    def changed(change: Callable[[dict[str, Any]], dict[str, Any]]) -> list[bytes]:
        return [*before, *(sse(change(json.loads(event[6:]))) for event in after), FINISH, DONE]

    def reordered(value: dict[str, Any]) -> dict[str, Any]:
        return dict(reversed(value.items()))

    def in_choice(**extra: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda value: {**value, "choices": [{**value["choices"][0], **extra}]}

    def in_delta(**extra: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda value: in_choice(delta={**value["choices"][0]["delta"], **extra})(value)

    yield "other key order", changed(reordered)
    yield "other key order of the choice", changed(lambda v: {**v, "choices": [reordered(v["choices"][0])]})
    yield "new fingerprint", changed(lambda v: {**v, "system_fingerprint": "fp2"})
    yield "other created", changed(lambda v: {**v, "created": 2})
    yield "role again", changed(in_delta(role="assistant"))
    yield "logprobs", changed(in_choice(logprobs={"content": [{"token": "x", "logprob": -1.0}]}))
    yield "refusal beside the text", changed(in_delta(refusal="no"))
    yield (
        "tool call beside the text",
        changed(in_delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f"}}])),
    )
    yield "usage on every chunk", changed(lambda v: {**v, "usage": {"prompt_tokens": 1, "completion_tokens": 9}})
    yield "null usage", changed(lambda v: {**v, "usage": None})
    yield "second choice nobody asked for", changed(in_choice(index=1))
    yield "engine internals", changed(lambda v: {**v, "timings": {"n": 1}})
    yield "spaces", [*before, *spelled(after, "python"), FINISH, DONE]
    yield "no space after data", [*before, *(event.replace(b"data: ", b"data:") for event in after), FINISH, DONE]
    yield "ids and names", [*before, *(b"id: 1\nevent: x\n" + event for event in after), FINISH, DONE]
    yield "comments between", [*before, *(b": ping\n\n" + event for event in after), FINISH, DONE]
    yield "blank lines between", [*before, *(b"\n" + event for event in after), FINISH, DONE]
    yield "crlf", [*before, *(event.replace(b"\n", b"\r\n") for event in after), FINISH, DONE]
    yield "split data", [*before, *(event.replace(b',"choices', b',\ndata: "choices') for event in after), FINISH, DONE]
    yield "broken characters", [*before, *(event.replace(b"i", b"\xe5") for event in after), FINISH, DONE]
    yield "half characters", [*before, *(event.replace(b"i", rb"\ud83c") for event in after), FINISH, DONE]
    yield "text after the finish", [*before, FINISH, *after, DONE]
    yield "error midway", [*before, sse({"error": {"message": "boom"}}), *after, FINISH, DONE]
    yield "no json midway", [*before, sse("{oops"), *after, FINISH, DONE]
    yield "text that breaks out", [*before, *(event.replace(b"o", b'","x":"y') for event in after), FINISH, DONE]
    yield "string that does not end", [*before, *(event.replace(b' "}', rb"\"}") for event in after), FINISH, DONE]
    yield "end marker midway", [*before, DONE, *after, FINISH]
