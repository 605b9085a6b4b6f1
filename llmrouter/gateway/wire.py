"""Bytes from a client to a `ChatRequest`: every bad input is a 400 that names the field, nothing is dropped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from llmrouter.config import CLASSES, LimitsConfig
from llmrouter.errors import RequestError, RequestTooLarge, UnsupportedParameter
from llmrouter.gateway.fields import CHAT_FIELDS, COMPLETION_FIELDS, EMBEDDING_FIELDS, ENGINE_FIELDS, REFUSED_FIELDS
from llmrouter.gateway.messages import read_messages, read_texts
from llmrouter.gateway.parameters import Reading, check_parameters, flag, integer
from llmrouter.types import ChatRequest, Endpoint, LatencyClass

__all__ = ["Labeller", "parse"]

Labeller = Callable[[str, bool], str]
"""Text of the last user turn, whether tools are offered → intent."""

_MOST_TOKENS = 2**31 - 1
_WRITABLE_DEPTH = 250
"""Deeper than this, orjson reads but does not write."""
_CONTAINERS = (dict, list)
_MOST_CONTAINERS = 200_000
"""Brackets in a body; a text rarely has as many, and a tree of more would hold up all other requests."""

_LONGEST_USER = 256
_CLASS_OF_SERVICE: dict[str, LatencyClass] = {"priority": "interactive", "fast": "interactive", "flex": "batch"}
"""What a `service_tier` asks of us; the others leave it to the key and the tier."""

ROLES = ("small", "large", "frontier")

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
    needs: set[str] = set()
    if not _KNOWN[endpoint].issuperset(fields):
        _check_other_names(endpoint, fields, limits, needs)
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise RequestError("`model` must be the name of a tier; GET /v1/models lists them", param="model")
    if endpoint == "chat":
        prompt = read_messages(fields.get("messages"), limits.max_messages, needs)
    else:
        name = "prompt" if endpoint == "completions" else "input"
        prompt = read_texts(fields.get(name), name, limits.max_messages)
        needs.add(endpoint)
    check_parameters(endpoint, Reading(fields, limits, needs, prompt))
    n = integer(fields, "n", 1, limits.max_n) or 1
    if endpoint == "completions":
        n *= prompt.texts
        if prompt.texts > 1:
            needs.add("n")
        if n > limits.max_messages:
            raise RequestError(f"`prompt` and `n` ask for {n} choices; at most {limits.max_messages}", param="prompt")
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
        n=n,
        needs=frozenset(needs),
        text_bytes=prompt.text_bytes,
        message_count=prompt.count,
        media_parts=prompt.media_parts,
        last_user_text=prompt.last_user_text,
        conversation=_conversation(headers, metadata, fields, prompt.opening),
        intent=intent[:64],
        tags=metadata,
        deadline_s=_deadline(headers),
        user_id=_user(headers, fields),
        role=_role(headers),
        latency_class=_latency_class(headers, fields),
    )


def _read_json(body: bytes, limits: LimitsConfig) -> dict[str, Any]:
    if len(body) > limits.max_body_bytes:
        raise RequestTooLarge(f"the body is larger than {limits.max_body_bytes} bytes")
    if body.count(b"[") + body.count(b"{") > _MOST_CONTAINERS:
        raise RequestError(f"the body has more than {_MOST_CONTAINERS} lists and objects", code="invalid_json")
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise RequestError("the body must be a JSON object", code="invalid_json")
    depth = min(limits.max_depth, _WRITABLE_DEPTH)
    if _deeper_than(fields, depth):
        raise RequestError(f"the body is nested more than {depth} levels deep", code="invalid_json")
    return fields


def _deeper_than(root: Any, limit: int) -> bool:
    level = [root]
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, _CONTAINERS)
        ]
        if not level:
            return False
    return True


def _check_other_names(endpoint: Endpoint, fields: dict[str, Any], limits: LimitsConfig, needs: set[str]) -> None:
    """Fields that the API does not define: engine controls, and what nobody here knows."""
    for name in sorted(fields.keys() - _KNOWN[endpoint]):
        if name in ENGINE_FIELDS or (name in REFUSED_FIELDS and name in limits.allow_engine_fields):
            needs.add("engine_fields")
        elif name in limits.allow_engine_fields:
            continue
        elif name in REFUSED_FIELDS:
            raise UnsupportedParameter(f"`{name}` controls the engine itself and is not open to clients", param=name)
        elif limits.unknown_fields == "refuse":
            raise UnsupportedParameter(f"unknown field `{name[:64]}`", param=name[:64])


def _output_cap(fields: dict[str, Any]) -> int | None:
    old = integer(fields, "max_tokens", 1, _MOST_TOKENS)
    new = integer(fields, "max_completion_tokens", 1, _MOST_TOKENS)
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
    return hashlib.blake2b(opening.encode(), digest_size=12).hexdigest()


def _user(headers: Mapping[str, str], fields: dict[str, Any]) -> str | None:
    """The end user, from whichever place names one first; limits by user see this one and nothing else."""
    named = _as_utf8(headers.get("x-llmrouter-user")) or fields.get("safety_identifier") or fields.get("user")
    return named[:_LONGEST_USER] if isinstance(named, str) and named else None


def _as_utf8(header: str | None) -> str | None:
    """A header as the body would say it: what clients send is UTF-8, though HTTP's own text is Latin-1."""
    try:
        return header.encode("latin-1").decode() if header else header
    except UnicodeError:
        return header


def _role(headers: Mapping[str, str]) -> str | None:
    named = headers.get("x-llmrouter-role")
    if named is not None and named not in ROLES:
        raise RequestError(f"`x-llmrouter-role` must be one of {', '.join(ROLES)}", param="x-llmrouter-role")
    return named


def _latency_class(headers: Mapping[str, str], fields: dict[str, Any]) -> LatencyClass | None:
    named = headers.get("x-llmrouter-class")
    if named is None:
        tier = fields.get("service_tier")
        return _CLASS_OF_SERVICE.get(tier) if isinstance(tier, str) else None
    if named not in CLASSES:
        raise RequestError(f"`x-llmrouter-class` must be one of {', '.join(CLASSES)}", param="x-llmrouter-class")
    return named


def _deadline(headers: Mapping[str, str]) -> float | None:
    """The SDK's own read time-out: after it nobody listens any more."""
    text = headers.get("x-stainless-read-timeout")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 < seconds < 86_400 else None
