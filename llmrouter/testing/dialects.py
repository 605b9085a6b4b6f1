"""How each engine family writes the same answer: key order, nulls, extras, error bodies.

llama.cpp was recorded from xllamacpp 2026.10.11549, vLLM read from `chat_completion/serving.py` and `protocol.py` of
vllm-project/vllm (main in 2026), OpenAI from stored recordings of api.openai.com (o4-mini and gpt-4o streams).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from llmrouter.testing.actions import DialectName
from llmrouter.testing.content import Choice, Content, Counts, whole_tool_calls

__all__ = ["Dialect", "dialect"]

JsonObject = dict[str, Any]


class Dialect(ABC):
    """What differs between engines; `render` walks an answer and asks here for each object."""

    json_indent: ClassVar[int | None] = None
    server: ClassVar[str]
    reasoning_key: ClassVar[str | None]
    """Name of the reasoning text in messages and deltas; None when the engine keeps it to itself."""
    first_content: ClassVar[str | None] = ""
    last_delta: ClassVar[Mapping[str, Any]] = {}
    last_choice_first: ClassVar[bool] = False
    usage_each_choice: ClassVar[bool] = False
    """Usage is counted and sent a choice, as llama.cpp does for n > 1."""

    @abstractmethod
    def chunk(self, content: Content, choices: list[JsonObject]) -> JsonObject:
        """A chat chunk without usage."""

    @abstractmethod
    def delta_choice(self, index: int, delta: JsonObject, logprobs: Any, finish_reason: str | None) -> JsonObject: ...

    @abstractmethod
    def completion(self, content: Content, choices: list[JsonObject], usage: JsonObject) -> JsonObject:
        """A whole chat completion; an empty usage is left out."""

    @abstractmethod
    def message_choice(self, choice: Choice, message: JsonObject, logprobs: Any) -> JsonObject: ...

    @abstractmethod
    def usage(self, counts: Counts) -> JsonObject: ...

    @abstractmethod
    def error(self, status: int, message: str, kind: str | None, param: str | None, code: str | None, /) -> JsonObject:
        """An error body; `kind` and `code` default to what the engine says for the status."""

    def first_delta(self) -> JsonObject:
        return {"role": "assistant", "content": self.first_content}

    def tool_delta(self, entry: JsonObject) -> JsonObject:
        return entry

    def finish_chunk(self, _content: Content, chunk: JsonObject, /) -> JsonObject:
        """What the engine adds to a chunk after its usage, if any."""
        return chunk

    def text_choice(self, index: int, text: str, finish_reason: str | None) -> JsonObject:
        """A choice of `/v1/completions`, whole or a piece of it."""
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}

    def text(self, content: Content, choices: list[JsonObject], usage: JsonObject) -> JsonObject:
        """A body or chunk of `/v1/completions`; an empty usage is left out."""
        identity = {"id": f"cmpl-fake-{content.request.seq}", "object": "text_completion"}
        return self.chunk(content, choices) | identity | ({"usage": usage} if usage else {})

    def logprobs(self, entries: list[JsonObject]) -> JsonObject:
        return {"content": entries}

    def message(self, choice: Choice) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": "".join(choice.content) or None}
        if not choice.tool_calls:
            message["content"] = "".join(choice.content)
        if choice.reasoning and self.reasoning_key:
            message[self.reasoning_key] = "".join(choice.reasoning)
        if choice.tool_calls:
            message["tool_calls"] = whole_tool_calls(choice.tool_calls)
        return message

    def token(self, _position: int, token: str, logprob: float, top: Sequence[tuple[str, float]], /) -> JsonObject:
        """One entry of `logprobs.content`."""
        alternatives = [{"token": t, "logprob": p, "bytes": list(t.encode())} for t, p in top]
        return {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": alternatives}


class Vllm(Dialect):
    server = "uvicorn"
    reasoning_key = "reasoning"
    last_delta: ClassVar[Mapping[str, Any]] = {"content": ""}

    def chunk(self, content: Content, choices: list[JsonObject]) -> JsonObject:
        return {
            "id": f"chatcmpl-fake-{content.request.seq}",
            "object": "chat.completion.chunk",
            "created": content.created,
            "model": content.model,
            "choices": choices,
        }

    def delta_choice(self, index: int, delta: JsonObject, logprobs: Any, finish_reason: str | None) -> JsonObject:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        if finish_reason is not None:
            choice["stop_reason"] = None
        if "role" not in delta:
            choice["token_ids"] = None
        return choice

    def completion(self, content: Content, choices: list[JsonObject], usage: JsonObject) -> JsonObject:
        body = {**self.chunk(content, choices), "object": "chat.completion"}
        body |= {"service_tier": None, "system_fingerprint": None}
        body |= {"usage": usage} if usage else {}
        return body | {"prompt_logprobs": None, "prompt_token_ids": None, "kv_transfer_params": None}

    def message(self, choice: Choice) -> JsonObject:
        message = Dialect.message(self, choice)
        unset: JsonObject = {"refusal": None, "annotations": None, "audio": None, "function_call": None}
        return {"role": "assistant", "content": message["content"]} | unset | {"reasoning": None} | message

    def message_choice(self, choice: Choice, message: JsonObject, logprobs: Any) -> JsonObject:
        told = {"index": choice.index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish_reason}
        return told | {"stop_reason": None, "token_ids": None}

    def tool_delta(self, entry: JsonObject) -> JsonObject:
        return {key: entry[key] for key in ("id", "type", "index", "function") if key in entry}

    def usage(self, counts: Counts) -> JsonObject:
        usage = {
            "prompt_tokens": counts.prompt,
            "total_tokens": counts.total,
            "completion_tokens": counts.completion,
        }
        details = {"completion_tokens_details": {"reasoning_tokens": counts.reasoning}} if counts.reasoning else {}
        return usage | details

    def error(self, status: int, message: str, kind: str | None, param: str | None, _code: str | None) -> JsonObject:
        return {"error": {"message": message, "type": kind or _vllm_type(status), "param": param, "code": status}}


class LlamaCpp(Dialect):
    server = "llama.cpp"
    reasoning_key = "reasoning_content"
    first_content = None
    last_choice_first = True
    usage_each_choice = True

    def chunk(self, content: Content, choices: list[JsonObject]) -> JsonObject:
        return {
            "choices": choices,
            "created": content.created,
            "id": f"chatcmpl-fake-{content.request.seq}",
            "model": content.model,
            "system_fingerprint": "b0-fake",
            "object": "chat.completion.chunk",
        }

    def delta_choice(self, index: int, delta: JsonObject, logprobs: Any, finish_reason: str | None) -> JsonObject:
        choice = {"finish_reason": finish_reason, "index": index, "delta": delta}
        return choice if logprobs is None else choice | {"logprobs": logprobs}

    def completion(self, content: Content, choices: list[JsonObject], usage: JsonObject) -> JsonObject:
        body = {**self.chunk(content, choices), "object": "chat.completion"}
        identity = body.pop("id")
        body |= {"usage": usage} if usage else {}
        return body | {"id": identity, "timings": {"cache_n": 0, "prompt_n": content.request.prompt_words}}

    def message_choice(self, choice: Choice, message: JsonObject, logprobs: Any) -> JsonObject:
        told = {"finish_reason": choice.finish_reason, "index": choice.index, "message": message}
        return told if logprobs is None else told | {"logprobs": logprobs}

    def text_choice(self, index: int, text: str, finish_reason: str | None) -> JsonObject:
        return {"text": text, "index": index, "logprobs": None, "finish_reason": finish_reason}

    def text(self, content: Content, choices: list[JsonObject], usage: JsonObject) -> JsonObject:
        body = Dialect.text(self, content, choices, usage)
        identity = body.pop("id")
        return body | {"id": identity}

    def token(self, position: int, token: str, logprob: float, top: Sequence[tuple[str, float]]) -> JsonObject:
        def entry(number: int, text: str, value: float) -> JsonObject:
            return {"id": number, "token": text, "bytes": list(text.encode()), "logprob": value}

        alternatives = [entry(100 * position + rank, text, value) for rank, (text, value) in enumerate(top)]
        return entry(100 * position, token, logprob) | {"top_logprobs": alternatives}

    def usage(self, counts: Counts) -> JsonObject:
        return {
            "completion_tokens": counts.completion,
            "prompt_tokens": counts.prompt,
            "total_tokens": counts.total,
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    def error(self, status: int, message: str, kind: str | None, _param: str | None, _code: str | None) -> JsonObject:
        return {"error": {"code": status, "message": message, "type": kind or _llama_cpp_type(status)}}


class OpenAi(Dialect):
    json_indent = 2
    server = "cloudflare"
    reasoning_key = None

    def chunk(self, content: Content, choices: list[JsonObject]) -> JsonObject:
        return {
            "id": f"chatcmpl-fake-{content.request.seq}",
            "object": "chat.completion.chunk",
            "created": content.created,
            "model": content.model,
            "service_tier": "default",
            "system_fingerprint": "fp_fake",
            "choices": choices,
        }

    def first_delta(self) -> JsonObject:
        return {"role": "assistant", "content": "", "refusal": None}

    def delta_choice(self, index: int, delta: JsonObject, logprobs: Any, finish_reason: str | None) -> JsonObject:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}

    def completion(self, content: Content, choices: list[JsonObject], usage: JsonObject) -> JsonObject:
        body = {**self.chunk(content, choices), "object": "chat.completion"}
        tail = {"service_tier": body.pop("service_tier"), "system_fingerprint": body.pop("system_fingerprint")}
        return body | ({"usage": usage} if usage else {}) | tail

    def finish_chunk(self, content: Content, chunk: JsonObject) -> JsonObject:
        options = content.request.stream_options
        usage = {"usage": chunk.get("usage")} if content.request.include_usage else {}
        padding = {} if options.get("include_obfuscation") is False else {"obfuscation": _padding(chunk)}
        return chunk | usage | padding

    def logprobs(self, entries: list[JsonObject]) -> JsonObject:
        return {"content": entries, "refusal": None}

    def message(self, choice: Choice) -> JsonObject:
        return Dialect.message(self, choice) | {"refusal": None, "annotations": []}

    def message_choice(self, choice: Choice, message: JsonObject, logprobs: Any) -> JsonObject:
        return {"index": choice.index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish_reason}

    def usage(self, counts: Counts) -> JsonObject:
        return {
            "prompt_tokens": counts.prompt,
            "completion_tokens": counts.completion,
            "total_tokens": counts.total,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": counts.reasoning,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }

    def error(self, status: int, message: str, kind: str | None, param: str | None, code: str | None) -> JsonObject:
        return {"error": {"message": message, "type": kind or _openai_type(status), "param": param, "code": code}}


def _padding(chunk: JsonObject) -> str:
    """Letters that hide how long the token was; here they depend on the chunk alone."""
    digest = hashlib.sha256(repr(chunk).encode()).hexdigest()
    return digest[: 8 + int(digest[0], 16) % 8]


def _vllm_type(status: int) -> str:
    named = {
        401: "AuthenticationError",
        404: "NotFoundError",
        429: "RateLimitError",
        503: "ServiceUnavailableError",
    }
    return named.get(status, "BadRequestError" if status < 500 else "InternalServerError")


def _llama_cpp_type(status: int) -> str:
    named = {401: "authentication_error", 404: "not_found_error", 501: "not_supported_error", 503: "unavailable_error"}
    return named.get(status, "invalid_request_error" if status < 500 else "server_error")


def _openai_type(status: int) -> str:
    named = {429: "rate_limit_error"}
    return named.get(status, "invalid_request_error" if status < 500 else "server_error")


_DIALECTS: Mapping[DialectName, Dialect] = {"vllm": Vllm(), "llama_cpp": LlamaCpp(), "openai": OpenAi()}


def dialect(name: DialectName) -> Dialect:
    return _DIALECTS[name]
