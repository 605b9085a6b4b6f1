"""The parameters of a request: each checked where it is there, and what it needs of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from llmrouter.config import LimitsConfig
from llmrouter.errors import RequestError, UnsupportedParameter
from llmrouter.gateway.messages import Prompt
from llmrouter.types import Endpoint, value

__all__ = ["Reading", "check_parameters", "flag", "integer"]

_MAX_STOP = 16
_NUMBERS = (int, float)
_SERVICE_TIERS = ("auto", "default", "flex", "scale", "priority", "fast")
_TOOL_CHOICES = ("none", "auto", "required")


@value
class Reading:
    """A request while it is read; the checks add to `needs` and to the prompt's size."""

    fields: dict[str, Any]
    limits: LimitsConfig
    needs: set[str]
    prompt: Prompt


_Check = Callable[[Reading], None]


def check_parameters(endpoint: Endpoint, reading: Reading) -> None:
    """Check the parameters that are there; the rest of the API costs nothing.

    Raises:
        RequestError: naming the parameter.
    """
    checks = _CHECKS[endpoint]
    for name in reading.fields:
        check = checks.get(name)
        if check is not None:
            check(reading)


def flag(fields: Mapping[str, Any], name: str) -> bool:
    """A boolean that may be missing or null."""
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"`{name}` must be a boolean, not {_kind(value)}", param=name)
    return bool(value)


def integer(fields: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """A whole number between two bounds, or None where it is missing or null."""
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


def _text(fields: Mapping[str, Any], name: str, longest: int) -> str | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > longest:
        raise RequestError(f"`{name}` must be a string of at most {longest} characters", param=name)
    return value


def _numeric(name: str) -> _Check:
    def check(reading: Reading) -> None:
        value = reading.fields[name]
        if value is not None and type(value) not in _NUMBERS:
            raise RequestError(f"`{name}` must be a number, not {_kind(value)}", param=name)

    return check


def _whole(name: str, low: int, high: int, *, need: str | None = None) -> _Check:
    def check(reading: Reading) -> None:
        if integer(reading.fields, name, low, high) is not None and need is not None:
            reading.needs.add(need)

    return check


def _boolean(name: str) -> _Check:
    def check(reading: Reading) -> None:
        flag(reading.fields, name)

    return check


def _textual(name: str, longest: int) -> _Check:
    def check(reading: Reading) -> None:
        _text(reading.fields, name, longest)

    return check


def _needing(name: str, need: str) -> _Check:
    def check(reading: Reading) -> None:
        if reading.fields[name] is not None:
            reading.needs.add(need)

    return check


def _choices(reading: Reading) -> None:
    if integer(reading.fields, "n", 1, reading.limits.max_n) not in (None, 1):
        reading.needs.add("n")


def _best_of(reading: Reading) -> None:
    integer(reading.fields, "best_of", 1, reading.limits.max_n)


def _stop(reading: Reading) -> None:
    stop = reading.fields["stop"]
    if stop is None or isinstance(stop, str):
        return
    if not isinstance(stop, list) or not all(isinstance(text, str) for text in stop):
        raise RequestError("`stop` must be a string or a list of strings", param="stop")
    if len(stop) > _MAX_STOP:
        raise RequestError(f"`stop` has {len(stop)} sequences; at most {_MAX_STOP} are allowed", param="stop")


def _logit_bias(reading: Reading) -> None:
    bias = reading.fields["logit_bias"]
    if bias is None:
        return
    if not isinstance(bias, dict) or not all(type(weight) in _NUMBERS for weight in bias.values()):
        raise RequestError("`logit_bias` must map token ids to numbers", param="logit_bias")


def _log_probabilities(reading: Reading) -> None:
    wanted = flag(reading.fields, "logprobs")
    top = integer(reading.fields, "top_logprobs", 0, 20)
    if top is not None and not wanted:
        raise RequestError("`top_logprobs` needs `logprobs: true`", param="top_logprobs")
    if wanted:
        reading.needs.add("logprobs")


def _tools(reading: Reading) -> None:
    for position, tool in enumerate(_listed(reading, "tools")):
        where = f"tools[{position}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind not in ("function", "custom"):
            raise RequestError(f"`{where}.type` must be `function` or `custom`", param=f"{where}.type")
        _check_named(tool.get(kind), f"{where}.{kind}")
        reading.needs.add("tools" if kind == "function" else "custom_tools")


def _functions(reading: Reading) -> None:
    for position, function in enumerate(_listed(reading, "functions")):
        _check_named(function, f"functions[{position}]")
        reading.needs.add("tools")


def _listed(reading: Reading, name: str) -> list[Any]:
    """The tools of a list, their size added to the prompt's."""
    tools = reading.fields[name]
    if tools is None:
        return []
    if not isinstance(tools, list) or not tools:
        raise RequestError(f"`{name}` must be a list that is not empty", param=name)
    most = reading.limits.max_tools
    if len(tools) > most:
        raise RequestError(f"`{name}` has {len(tools)} entries; at most {most} are allowed", param=name)
    reading.prompt.text_bytes += len(orjson.dumps(tools))
    return tools


def _check_named(tool: Any, where: str) -> None:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or not tool["name"]:
        raise RequestError(f"`{where}.name` is required", param=f"{where}.name")


def _prompt_part(name: str) -> _Check:
    """A field that engines put into the prompt as it is."""

    def check(reading: Reading) -> None:
        value = reading.fields[name]
        if value is not None:
            reading.prompt.text_bytes += len(orjson.dumps(value))

    return check


def _tool_choice(reading: Reading) -> None:
    choice = reading.fields["tool_choice"]
    if choice is None:
        return
    if reading.fields.get("tools") is None:
        if choice != "none":
            raise RequestError("`tool_choice` needs `tools`", param="tool_choice")
        return
    if isinstance(choice, str):
        if choice not in _TOOL_CHOICES:
            raise RequestError(f"`tool_choice` must be one of {', '.join(_TOOL_CHOICES)}", param="tool_choice")
        return
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "allowed_tools":
        reading.needs.add("allowed_tools")
    elif kind in ("function", "custom"):
        _check_named(choice.get(kind), f"tool_choice.{kind}")
    else:
        raise RequestError("`tool_choice` names no function, custom tool or allowed tools", param="tool_choice")


def _response_format(reading: Reading) -> None:
    wanted = reading.fields["response_format"]
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
    wanted = reading.fields["modalities"]
    if wanted is None:
        return
    if not isinstance(wanted, list) or not all(kind in ("text", "audio") for kind in wanted):
        raise RequestError("`modalities` may hold text and audio", param="modalities")
    if "audio" in wanted:
        reading.needs.add("audio_output")


def _reasoning(reading: Reading) -> None:
    if _text(reading.fields, "reasoning_effort", 64) not in (None, "none"):
        reading.needs.add("reasoning")


def _service_tier(reading: Reading) -> None:
    tier = _text(reading.fields, "service_tier", 64)
    if tier is not None and tier not in _SERVICE_TIERS:
        raise RequestError(f"`service_tier` must be one of {', '.join(_SERVICE_TIERS)}", param="service_tier")


def _store(reading: Reading) -> None:
    if flag(reading.fields, "store") and "store" not in reading.limits.allow_engine_fields:
        raise UnsupportedParameter("`store` is not open to clients of this gateway", param="store")


def _encoding(reading: Reading) -> None:
    if reading.fields["encoding_format"] not in (None, "float", "base64"):
        raise RequestError("`encoding_format` must be float or base64", param="encoding_format")


def _no_stream(reading: Reading) -> None:
    if flag(reading.fields, "stream"):
        raise UnsupportedParameter("embeddings are not streamed", param="stream")


_GENERATION: dict[str, _Check] = {
    **{name: _numeric(name) for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty")},
    "seed": _whole("seed", -(2**63), 2**63 - 1),
    "stop": _stop,
    "n": _choices,
    "logit_bias": _logit_bias,
    "user": _textual("user", 1024),
}

_CHECKS: dict[Endpoint, dict[str, _Check]] = {
    "chat": {
        **_GENERATION,
        "logprobs": _log_probabilities,
        "top_logprobs": _log_probabilities,
        "tools": _tools,
        "functions": _functions,
        "tool_choice": _tool_choice,
        "parallel_tool_calls": _boolean("parallel_tool_calls"),
        "response_format": _response_format,
        "modalities": _modalities,
        "audio": _needing("audio", "audio_output"),
        "reasoning_effort": _reasoning,
        "verbosity": _needing("verbosity", "verbosity"),
        "moderation": _needing("moderation", "moderation"),
        "prediction": _needing("prediction", "prediction"),
        "web_search_options": _needing("web_search_options", "web_search"),
        "service_tier": _service_tier,
        "store": _store,
        "safety_identifier": _textual("safety_identifier", 128),
        "prompt_cache_key": _textual("prompt_cache_key", 128),
        "documents": _prompt_part("documents"),
    },
    "completions": {
        **_GENERATION,
        "logprobs": _whole("logprobs", 0, 20, need="logprobs"),
        "best_of": _best_of,
        "echo": _boolean("echo"),
        "suffix": _prompt_part("suffix"),
    },
    "embeddings": {
        "dimensions": _whole("dimensions", 1, 1_000_000),
        "encoding_format": _encoding,
        "stream": _no_stream,
        "user": _textual("user", 1024),
    },
}
