"""A backend without an engine: it answers with the last user turn. For unit tests and examples only."""

from __future__ import annotations

from typing import Any

import orjson

from llmrouter.protocols import Timeouts
from llmrouter.types import ChatRequest

__all__ = ["EchoBackend"]


class EchoBackend:
    """Echoes the last user turn word by word, in the OpenAI wire format; a word counts as a token."""

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
    ) -> _EchoReply:
        words = request.last_user_text.split(" ")
        cap = request.max_output_tokens
        finish = "stop" if cap is None or len(words) <= cap else "length"
        words = words[:cap]
        usage = {
            "prompt_tokens": request.text_bytes // 4 + 1,
            "completion_tokens": len(words) * request.n,
            "total_tokens": request.text_bytes // 4 + 1 + len(words) * request.n,
        }
        envelope = {"id": f"echo-{request_id}", "created": 0, "model": self._model}
        if not request.stream:
            choices = [_choice(i, {"message": _message(" ".join(words))}, finish) for i in range(request.n)]
            answer = {**envelope, "object": "chat.completion", "choices": choices, "usage": usage}
            return _EchoReply([orjson.dumps(answer)])
        envelope["object"] = "chat.completion.chunk"
        indexes = range(request.n)
        chunks: list[list[dict[str, Any]]] = [
            [_choice(i, {"delta": {"role": "assistant", "content": ""}})] for i in indexes
        ]
        for position, word in enumerate(words):
            text = word if position == 0 else f" {word}"
            chunks += [[_choice(i, {"delta": {"content": text}})] for i in indexes]
        chunks += [[_choice(i, {"delta": {}}, finish)] for i in indexes]
        events = [{**envelope, "choices": choices} for choices in chunks]
        events.append({**envelope, "choices": [], "usage": usage})
        return _EchoReply([*(b"data: %b\n\n" % orjson.dumps(event) for event in events), b"data: [DONE]\n\n"])

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
        return b"".join(self._blocks)

    def close(self, *, abort: bool = True) -> None:  # noqa: ARG002 - there is nothing to abort
        self._blocks.clear()


def _message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _choice(index: int, part: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": index, **part, "logprobs": None, "finish_reason": finish}
