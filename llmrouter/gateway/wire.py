"""Bytes from a client to a `ChatRequest`: every bad input is a 400 that names the field, nothing is dropped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from llmrouter.config import LimitsConfig
from llmrouter.errors import RequestError, RequestTooLarge, UnsupportedParameter
from llmrouter.gateway.fields import CHAT_FIELDS, COMPLETION_FIELDS, EMBEDDING_FIELDS, ENGINE_FIELDS, REFUSED_FIELDS
from llmrouter.gateway.messages import Prompt, read_messages
from llmrouter.gateway.parameters import Reading, check_parameters, flag, integer
from llmrouter.types import ChatRequest, Endpoint

__all__ = ["Labeller", "parse"]

Labeller = Callable[[str, bool], str]
"""Text of the last user turn, whether tools are offered → intent."""

_KNOWN = {"chat": CHAT_FIELDS, "completions": COMPLETION_FIELDS, "embeddings": EMBEDDING_FIELDS}


def parse(
    endpoint: Endpoint,
    body: bytes,
    headers: Mapping[str, str],
    limits: LimitsConfig,
    *,
    label: Labeller | None = None,
) -> ChatRequest:
    """Read one request.

    Args:
        headers: by lower-case name.
        label: the built-in intent labeller, asked when the client names no intent; None leaves it `unknown`.

    Raises:
        RequestError: 400 or 413; `param` names the field.
    """
    fields = _read_json(body, limits)
    _check_names(endpoint, fields, limits)
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise RequestError("`model` must be the name of a tier; GET /v1/models lists them", param="model")
    needs: set[str] = {"engine_fields"} if not ENGINE_FIELDS.isdisjoint(fields) else set()
    if endpoint == "chat":
        prompt = read_messages(fields.get("messages"), limits.max_messages, needs)
        check_parameters(Reading(fields, limits, needs, prompt))
    else:
        prompt = _plain_prompt(endpoint, fields)
        needs.add(endpoint)
    stream = flag(fields, "stream")
    metadata = _metadata(fields) if "metadata" in fields else {}
    intent = headers.get("x-llmrouter-intent") or metadata.get("intent") or ""
    if not intent:
        intent = label(prompt.last_user_text, "tools" in needs) if label is not None else "unknown"
    return ChatRequest(
        endpoint=endpoint,
        model=model,
        fields=fields,
        stream=stream,
        include_usage=_stream_options(fields, stream),
        max_output_tokens=_output_cap(fields),
        n=integer(fields, "n", 1, limits.max_n) or 1,
        needs=frozenset(needs),
        text_bytes=prompt.text_bytes,
        message_count=prompt.count,
        media_parts=prompt.media_parts,
        last_user_text=prompt.last_user_text,
        conversation=_conversation(headers, metadata, fields, prompt.opening),
        intent=intent[:64],
        tags=metadata,
        deadline_s=_deadline(headers),
    )


def _read_json(body: bytes, limits: LimitsConfig) -> dict[str, Any]:
    if len(body) > limits.max_body_bytes:
        raise RequestTooLarge(f"the body is larger than {limits.max_body_bytes} bytes")
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise RequestError("the body must be a JSON object", code="invalid_json")
    # Few brackets cannot be deep; only a body with many is walked.
    if body.count(b"[") + body.count(b"{") > limits.max_depth and _deeper_than(fields, limits.max_depth):
        raise RequestError(f"the body is nested more than {limits.max_depth} levels deep", code="invalid_json")
    return fields


def _deeper_than(root: Any, limit: int) -> bool:
    level = [root]
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _check_names(endpoint: Endpoint, fields: dict[str, Any], limits: LimitsConfig) -> None:
    if _KNOWN[endpoint].issuperset(fields):
        return
    for name in sorted(fields.keys() - _KNOWN[endpoint]):
        if name in limits.allow_engine_fields or name in ENGINE_FIELDS:
            continue
        if name in REFUSED_FIELDS:
            raise UnsupportedParameter(f"`{name}` controls the engine itself and is not open to clients", param=name)
        if limits.unknown_fields == "refuse":
            raise UnsupportedParameter(f"unknown field `{name}`", param=name)


def _plain_prompt(endpoint: Endpoint, fields: dict[str, Any]) -> Prompt:
    """The text of `prompt` or `input`: a string, strings, token ids, or lists of token ids."""
    name = "prompt" if endpoint == "completions" else "input"
    value = fields.get(name)
    parts = value if isinstance(value, list) else [value]
    if not parts or value is None:
        raise RequestError(f"`{name}` is required", param=name)
    size = 0
    for part in parts:
        if isinstance(part, str):
            size += len(part.encode())
        elif isinstance(part, int) and not isinstance(part, bool):
            size += 3
        elif isinstance(part, list) and all(isinstance(token, int) for token in part):
            size += 3 * len(part)
        else:
            raise RequestError(f"`{name}` must be text, token ids, or a list of them", param=name)
    text = parts[0] if isinstance(parts[0], str) else ""
    return Prompt(text_bytes=size, count=0, media_parts=0, last_user_text=text, opening=text[:2048])


def _output_cap(fields: dict[str, Any]) -> int | None:
    old = integer(fields, "max_tokens", 1, 2**31 - 1)
    new = integer(fields, "max_completion_tokens", 1, 2**31 - 1)
    if old is not None and new is not None and old != new:
        raise RequestError(
            f"`max_tokens` ({old}) and `max_completion_tokens` ({new}) differ; send one of them",
            param="max_completion_tokens",
        )
    return new if new is not None else old


def _stream_options(fields: dict[str, Any], stream: bool) -> bool:
    options = fields.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise RequestError("`stream_options` must be an object", param="stream_options")
    if not stream:
        raise RequestError("`stream_options` is only allowed with `stream: true`", param="stream_options")
    for name in ("include_usage", "include_obfuscation"):
        if not isinstance(options.get(name), bool | None):
            raise RequestError(f"`stream_options.{name}` must be a boolean", param=f"stream_options.{name}")
    return bool(options.get("include_usage"))


def _metadata(fields: dict[str, Any]) -> dict[str, str]:
    metadata = fields.get("metadata")
    if metadata is None:
        return {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise RequestError("`metadata` must map names to strings", param="metadata")
    if len(metadata) > 16 or any(len(k) > 64 or len(v) > 512 for k, v in metadata.items()):
        raise RequestError("`metadata` may hold 16 pairs, names of 64 and values of 512 characters", param="metadata")
    return metadata


def _conversation(headers: Mapping[str, str], metadata: dict[str, str], fields: dict[str, Any], opening: str) -> str:
    explicit = (
        headers.get("x-llmrouter-conversation") or metadata.get("conversation_id") or fields.get("prompt_cache_key")
    )
    if isinstance(explicit, str) and explicit:
        return explicit[:256]
    return hashlib.blake2b(opening.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _deadline(headers: Mapping[str, str]) -> float | None:
    """The SDK's own read time-out: after it nobody listens any more."""
    try:
        seconds = float(headers.get("x-stainless-read-timeout", ""))
    except ValueError:
        return None
    return seconds if 0 < seconds < 86_400 else None
