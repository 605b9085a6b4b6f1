"""The parameters of a chat request: each checked where it is there, and what it needs of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from llmrouter.config import LimitsConfig
from llmrouter.errors import RequestError, UnsupportedParameter
from llmrouter.gateway.messages import Prompt

__all__ = ["Reading", "check_parameters", "flag", "integer"]

_MAX_STOP = 16
_SERVICE_TIERS = ("auto", "default", "flex", "scale", "priority", "fast")
_TOOL_CHOICES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class Reading:
    """A request while it is read; the checks add to `needs` and to the prompt's size."""

    fields: dict[str, Any]
    limits: LimitsConfig
    needs: set[str]
    prompt: Prompt


_Check = Callable[[Reading], None]


def check_parameters(reading: Reading) -> None:
    """Check the parameters that are there; the rest of the API costs nothing.

    Raises:
        RequestError: naming the parameter.
    """
    for name in reading.fields:
        check = _CHAT_CHECKS.get(name)
        if check is not None:
            check(reading)


def _stop(reading: Reading) -> None:
    stop = reading.fields.get("stop")
    if stop is None or isinstance(stop, str):
        return
    if not isinstance(stop, list) or not all(isinstance(s, str) for s in stop):
        raise RequestError("`stop` must be a string or a list of strings", param="stop")
    if len(stop) > _MAX_STOP:
        raise RequestError(f"`stop` has {len(stop)} sequences; at most {_MAX_STOP} are allowed", param="stop")


def _log_probabilities(reading: Reading) -> None:
    wanted = flag(reading.fields, "logprobs")
    top = integer(reading.fields, "top_logprobs", 0, 20)
    if top is not None and not wanted:
        raise RequestError("`top_logprobs` needs `logprobs: true`", param="top_logprobs")
    if wanted:
        reading.needs.add("logprobs")


def _tools(reading: Reading) -> None:
    for name in ("tools", "functions"):
        tools = reading.fields.get(name)
        if tools is None:
            continue
        if not isinstance(tools, list) or not tools:
            raise RequestError(f"`{name}` must be a list that is not empty", param=name)
        if len(tools) > reading.limits.max_tools:
            raise RequestError(
                f"`{name}` has {len(tools)} entries; at most {reading.limits.max_tools} are allowed", param=name
            )
        for position, tool in enumerate(tools):
            reading.needs.add("tools" if name == "functions" else _tool_kind(tool, f"tools[{position}]"))
        reading.prompt.text_bytes += len(orjson.dumps(tools))


def _tool_kind(tool: Any, where: str) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in ("function", "custom"):
        raise RequestError(f"`{where}.type` must be `function` or `custom`", param=f"{where}.type")
    inner = tool.get(kind)
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str) or not inner["name"]:
        raise RequestError(f"`{where}.{kind}.name` is required", param=f"{where}.{kind}.name")
    return "tools" if kind == "function" else "custom_tools"


def _tool_choice(reading: Reading) -> None:
    choice = reading.fields.get("tool_choice")
    if choice is None:
        return
    if reading.fields.get("tools") is None:
        if choice != "none":
            raise RequestError("`tool_choice` needs `tools`", param="tool_choice")
    elif isinstance(choice, str):
        if choice not in _TOOL_CHOICES:
            raise RequestError(f"`tool_choice` must be one of {', '.join(_TOOL_CHOICES)}", param="tool_choice")
    elif not isinstance(choice, dict) or choice.get("type") not in ("function", "custom", "allowed_tools"):
        raise RequestError("`tool_choice` names no function, custom tool or allowed tools", param="tool_choice")
    elif choice["type"] == "allowed_tools":
        reading.needs.add("allowed_tools")


def _response_format(reading: Reading) -> None:
    wanted = reading.fields.get("response_format")
    if wanted is None:
        return
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "text":
        return
    if kind == "json_schema":
        schema = wanted.get("json_schema")
        if not isinstance(schema, dict) or not isinstance(schema.get("name"), str):
            raise RequestError("`response_format.json_schema.name` is required", param="response_format.json_schema")
        reading.prompt.text_bytes += len(orjson.dumps(schema))
    elif kind != "json_object":
        raise RequestError(
            "`response_format.type` must be text, json_object or json_schema", param="response_format.type"
        )
    reading.needs.add(kind)


def _modalities(reading: Reading) -> None:
    wanted = reading.fields.get("modalities")
    if wanted is None:
        return
    if not isinstance(wanted, list) or not all(m in ("text", "audio") for m in wanted):
        raise RequestError("`modalities` may hold text and audio", param="modalities")
    if "audio" in wanted:
        reading.needs.add("audio_output")


def _choices(reading: Reading) -> None:
    if integer(reading.fields, "n", 1, reading.limits.max_n) not in (None, 1):
        reading.needs.add("n")


def _seed(reading: Reading) -> None:
    integer(reading.fields, "seed", -(2**63), 2**63 - 1)


def _reasoning(reading: Reading) -> None:
    if _text(reading.fields, "reasoning_effort") not in (None, "none"):
        reading.needs.add("reasoning")


def _service_tier(reading: Reading) -> None:
    tier = _text(reading.fields, "service_tier")
    if tier is not None and tier not in _SERVICE_TIERS:
        raise RequestError(f"`service_tier` must be one of {', '.join(_SERVICE_TIERS)}", param="service_tier")


def _store(reading: Reading) -> None:
    if flag(reading.fields, "store") and "store" not in reading.limits.allow_engine_fields:
        raise UnsupportedParameter("`store` is not open to clients of this gateway", param="store")


def _logit_bias(reading: Reading) -> None:
    bias = reading.fields["logit_bias"]
    if bias is not None and not isinstance(bias, dict):
        raise RequestError("`logit_bias` must map token ids to numbers", param="logit_bias")


def _needing(name: str, need: str) -> _Check:
    def check(reading: Reading) -> None:
        if reading.fields[name] is not None:
            reading.needs.add(need)

    return check


def _numeric(name: str) -> _Check:
    return lambda reading: _number(reading.fields, name)


def _textual(name: str, longest: int) -> _Check:
    def check(reading: Reading) -> None:
        _text(reading.fields, name, longest=longest)

    return check


_CHAT_CHECKS: dict[str, _Check] = {
    **{name: _numeric(name) for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty")},
    "seed": _seed,
    "stop": _stop,
    "logprobs": _log_probabilities,
    "top_logprobs": _log_probabilities,
    "tools": _tools,
    "functions": _tools,
    "tool_choice": _tool_choice,
    "response_format": _response_format,
    "modalities": _modalities,
    "n": _choices,
    "reasoning_effort": _reasoning,
    "verbosity": _needing("verbosity", "verbosity"),
    "moderation": _needing("moderation", "moderation"),
    "prediction": _needing("prediction", "prediction"),
    "web_search_options": _needing("web_search_options", "web_search"),
    "service_tier": _service_tier,
    "store": _store,
    "user": _textual("user", 1024),
    "safety_identifier": _textual("safety_identifier", 128),
    "prompt_cache_key": _textual("prompt_cache_key", 128),
    "logit_bias": _logit_bias,
}


def flag(fields: dict[str, Any], name: str) -> bool:
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


def integer(fields: dict[str, Any], name: str, low: int, high: int) -> int | None:
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
