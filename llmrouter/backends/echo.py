"""A backend without an engine: it answers with the last user turn. For unit tests and examples only."""

from __future__ import annotations

from typing import Any

import orjson

from llmrouter.protocols import Timeouts
from llmrouter.types import ChatRequest

__all__ = ["EchoBackend"]


class EchoBackend:
    """Echoes the last user turn word by word, in the OpenAI wire format; a word counts as a token.

    It is certain of every word (logprob 0), and puts the turn into an object where JSON is asked for.
    """

    def __init__(self, *, name: str, model: str) -> None:
        self._name = name
        self._model = model

    @property
    def name(self) -> str:
        return self._name

    async def open(
        self,
        request: ChatRequest,
        *,
        request_id: str,
        timeouts: Timeouts,  # noqa: ARG002 - it answers at once
        cache_salt: str | None,  # noqa: ARG002 - it keeps nothing
        priority: int | None = None,  # noqa: ARG002 - nobody waits
    ) -> _EchoReply:
        tokens = _tokens(request)
        cap = request.max_output_tokens
        finish = "stop" if cap is None or len(tokens) <= cap else "length"
        tokens = tokens[:cap]
        prompt, output = request.text_bytes // 4 + 1, len(tokens) * request.n
        usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        logprobs = bool(request.fields.get("logprobs"))
        envelope = {"id": f"echo-{request_id}", "created": 0, "model": self._model}
        if request.stream:
            chunks = [
                {**envelope, "object": "chat.completion.chunk", **part}
                for part in _parts(request.n, tokens, finish, logprobs)
            ]
            chunks.append({**envelope, "object": "chat.completion.chunk", "choices": [], "usage": usage})
            return _EchoReply([*(b"data: %b\n\n" % orjson.dumps(chunk) for chunk in chunks), b"data: [DONE]\n\n"])
        message = {"role": "assistant", "content": "".join(tokens)}
        choices = [_choice(i, {"message": message}, tokens if logprobs else None, finish) for i in range(request.n)]
        answer = {**envelope, "object": "chat.completion", "choices": choices, "usage": usage}
        return _EchoReply([orjson.dumps(answer)])

    async def aclose(self) -> None:
        return None


class _EchoReply:
    status = 200

    def __init__(self, blocks: list[bytes]) -> None:
        self._blocks = blocks

    def header(self, name: str) -> str | None:  # noqa: ARG002 - it has none
        return None

    async def next_block(self) -> bytes:
        return self._blocks.pop(0) if self._blocks else b""

    async def read(self) -> bytes:
        rest = b"".join(self._blocks)
        self._blocks.clear()
        return rest

    def close(self, *, abort: bool = True) -> None:  # noqa: ARG002 - there is nothing to abort
        self._blocks.clear()


def _tokens(request: ChatRequest) -> list[str]:
    """Words with the space before them; joined again they are the text."""
    text = request.last_user_text
    wanted = request.fields.get("response_format")
    if isinstance(wanted, dict) and wanted.get("type") == "json_object":
        text = orjson.dumps({"echo": text}).decode()
    first, *others = text.split(" ")
    return [first, *(f" {word}" for word in others)]


def _parts(n: int, tokens: list[str], finish: str, logprobs: bool) -> list[dict[str, Any]]:
    """The `choices` of each chunk of a stream; the choices take turns."""
    rounds: list[tuple[dict[str, Any], list[str] | None, str | None]] = [
        ({"role": "assistant", "content": ""}, None, None),
        *(({"content": token}, [token] if logprobs else None, None) for token in tokens),
        ({}, None, finish),
    ]
    return [
        {"choices": [_choice(index, {"delta": delta}, told, end)]} for delta, told, end in rounds for index in range(n)
    ]


def _choice(index: int, part: dict[str, Any], told: list[str] | None, finish: str | None = None) -> dict[str, Any]:
    return {"index": index, **part, "logprobs": _certain(told), "finish_reason": finish}


def _certain(tokens: list[str] | None) -> dict[str, Any] | None:
    if tokens is None:
        return None
    return {"content": [{"token": t, "logprob": 0.0, "bytes": list(t.encode()), "top_logprobs": []} for t in tokens]}
