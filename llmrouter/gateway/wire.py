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
from llmrouter.types import ChatRequest, Endpoint

__all__ = ["Labeller", "parse"]

Labeller = Callable[[str, bool], str]
"""Text of the last user turn, whether tools are offered → intent."""

_KNOWN = {"chat": CHAT_FIELDS, "completions": COMPLETION_FIELDS, "embeddings": EMBEDDING_FIELDS}
_MAX_STOP = 16
_SERVICE_TIERS = ("auto", "default", "flex", "scale", "priority", "fast")
_TOOL_CHOICES = ("none", "auto", "required")


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
        _check_chat(fields, limits, needs, prompt)
    else:
        prompt = _plain_prompt(endpoint, fields)
        needs.add(endpoint)
    stream = _flag(fields, "stream")
    metadata = _metadata(fields)
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
        n=_integer(fields, "n", 1, limits.max_n) or 1,
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
    strange = fields.keys() - _KNOWN[endpoint]
    for name in sorted(strange):
        if name in limits.allow_engine_fields or name in ENGINE_FIELDS:
            continue
        if name in REFUSED_FIELDS:
            raise UnsupportedParameter(f"`{name}` controls the engine itself and is not open to clients", param=name)
        if limits.unknown_fields == "refuse":
            raise UnsupportedParameter(f"unknown field `{name}`", param=name)


def _check_chat(fields: dict[str, Any], limits: LimitsConfig, needs: set[str], prompt: Prompt) -> None:
    for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty"):
        _number(fields, name)
    _integer(fields, "seed", -(2**63), 2**63 - 1)
    _stop(fields)
    _log_probabilities(fields, needs)
    _tools(fields, limits, needs, prompt)
    _response_format(fields, needs, prompt)
    _modalities(fields, needs)
    if _integer(fields, "n", 1, limits.max_n) not in (None, 1):
        needs.add("n")
    if _text(fields, "reasoning_effort") not in (None, "none"):
        needs.add("reasoning")
    for name in ("verbosity", "moderation", "prediction"):
        if fields.get(name) is not None:
            needs.add(name)
    if fields.get("web_search_options") is not None:
        needs.add("web_search")
    tier = _text(fields, "service_tier")
    if tier is not None and tier not in _SERVICE_TIERS:
        raise RequestError(f"`service_tier` must be one of {', '.join(_SERVICE_TIERS)}", param="service_tier")
    if _flag(fields, "store") and "store" not in limits.allow_engine_fields:
        raise UnsupportedParameter("`store` is not open to clients of this gateway", param="store")
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        _text(fields, name, longest=1024 if name == "user" else 128)
    bias = fields.get("logit_bias")
    if bias is not None and not isinstance(bias, dict):
        raise RequestError("`logit_bias` must map token ids to numbers", param="logit_bias")


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
    old = _integer(fields, "max_tokens", 1, 2**31 - 1)
    new = _integer(fields, "max_completion_tokens", 1, 2**31 - 1)
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


def _stop(fields: dict[str, Any]) -> None:
    stop = fields.get("stop")
    if stop is None or isinstance(stop, str):
        return
    if not isinstance(stop, list) or not all(isinstance(s, str) for s in stop):
        raise RequestError("`stop` must be a string or a list of strings", param="stop")
    if len(stop) > _MAX_STOP:
        raise RequestError(f"`stop` has {len(stop)} sequences; at most {_MAX_STOP} are allowed", param="stop")


def _log_probabilities(fields: dict[str, Any], needs: set[str]) -> None:
    wanted = _flag(fields, "logprobs")
    top = _integer(fields, "top_logprobs", 0, 20)
    if top is not None and not wanted:
        raise RequestError("`top_logprobs` needs `logprobs: true`", param="top_logprobs")
    if wanted:
        needs.add("logprobs")


def _tools(fields: dict[str, Any], limits: LimitsConfig, needs: set[str], prompt: Prompt) -> None:
    for name in ("tools", "functions"):
        tools = fields.get(name)
        if tools is None:
            continue
        if not isinstance(tools, list) or not tools:
            raise RequestError(f"`{name}` must be a list that is not empty", param=name)
        if len(tools) > limits.max_tools:
            raise RequestError(f"`{name}` has {len(tools)} entries; at most {limits.max_tools} are allowed", param=name)
        for position, tool in enumerate(tools):
            needs.add("tools" if name == "functions" else _tool_kind(tool, f"tools[{position}]"))
        prompt.text_bytes += len(orjson.dumps(tools))
    choice = fields.get("tool_choice")
    if choice is None:
        return
    if fields.get("tools") is None:
        if choice != "none":
            raise RequestError("`tool_choice` needs `tools`", param="tool_choice")
    elif isinstance(choice, str):
        if choice not in _TOOL_CHOICES:
            raise RequestError(f"`tool_choice` must be one of {', '.join(_TOOL_CHOICES)}", param="tool_choice")
    elif not isinstance(choice, dict) or choice.get("type") not in ("function", "custom", "allowed_tools"):
        raise RequestError("`tool_choice` names no function, custom tool or allowed tools", param="tool_choice")
    elif choice["type"] == "allowed_tools":
        needs.add("allowed_tools")


def _tool_kind(tool: Any, where: str) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in ("function", "custom"):
        raise RequestError(f"`{where}.type` must be `function` or `custom`", param=f"{where}.type")
    inner = tool.get(kind)
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str) or not inner["name"]:
        raise RequestError(f"`{where}.{kind}.name` is required", param=f"{where}.{kind}.name")
    return "tools" if kind == "function" else "custom_tools"


def _response_format(fields: dict[str, Any], needs: set[str], prompt: Prompt) -> None:
    wanted = fields.get("response_format")
    if wanted is None:
        return
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "text":
        return
    if kind == "json_schema":
        schema = wanted.get("json_schema")
        if not isinstance(schema, dict) or not isinstance(schema.get("name"), str):
            raise RequestError("`response_format.json_schema.name` is required", param="response_format.json_schema")
        prompt.text_bytes += len(orjson.dumps(schema))
    elif kind != "json_object":
        raise RequestError(
            "`response_format.type` must be text, json_object or json_schema", param="response_format.type"
        )
    needs.add(kind)


def _modalities(fields: dict[str, Any], needs: set[str]) -> None:
    wanted = fields.get("modalities")
    if wanted is None:
        return
    if not isinstance(wanted, list) or not all(m in ("text", "audio") for m in wanted):
        raise RequestError("`modalities` may hold text and audio", param="modalities")
    if "audio" in wanted:
        needs.add("audio_output")


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


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"`{name}` must be a boolean, not {_kind(value)}", param=name)
    return bool(value)


def _text(fields: dict[str, Any], name: str, *, longest: int = 64) -> str | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > longest:
        raise RequestError(f"`{name}` must be a string of at most {longest} characters", param=name)
    return value


def _number(fields: dict[str, Any], name: str) -> None:
    value = fields.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise RequestError(f"`{name}` must be a number, not {_kind(value)}", param=name)


def _integer(fields: dict[str, Any], name: str, low: int, high: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"`{name}` must be an integer, not {_kind(value)}", param=name)
    if not low <= value <= high:
        raise RequestError(f"`{name}` must be between {low} and {high}, not {value}", param=name)
    return value


def _kind(value: Any) -> str:
    names = {
        bool: "a boolean",
        int: "an integer",
        float: "a fraction",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), "null")
