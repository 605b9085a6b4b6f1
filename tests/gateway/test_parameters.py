"""Every parameter: which values are refused under which name, and what the others need of a model."""

import json
from typing import Any

import pytest

from llmrouter.config import LimitsConfig
from llmrouter.errors import RequestError
from llmrouter.gateway.messages import Prompt
from llmrouter.gateway.parameters import Reading, check_parameters
from llmrouter.types import Endpoint

FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {}}}
CUSTOM = {"type": "custom", "custom": {"name": "sh"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}}


def check(endpoint: Endpoint = "chat", limits: LimitsConfig | None = None, **fields: Any) -> Reading:
    reading = Reading(fields, limits or LimitsConfig(), set(), Prompt(0, 1, 0, "", ""))
    check_parameters(endpoint, reading)
    return reading


NOT_NUMBERS: tuple[Any, ...] = ("1", True, [], {})
NOT_INTEGERS: tuple[Any, ...] = ("1", 1.5, True, [], {})

BAD_VALUES: dict[str, tuple[Any, ...]] = {
    "temperature": NOT_NUMBERS,
    "top_p": NOT_NUMBERS,
    "frequency_penalty": NOT_NUMBERS,
    "presence_penalty": NOT_NUMBERS,
    "seed": (*NOT_INTEGERS, 2**63, -(2**63) - 1),
    "n": (*NOT_INTEGERS, 0, -1, 9, 1000),
    "stop": (1, {}, [1], ["a", None], ["a"] * 17),
    "logit_bias": ([], "x", {"5": "1"}, {"5": True}, {"5": None}),
    "user": (1, [], "u" * 1025),
    "safety_identifier": (1, "u" * 129),
    "prompt_cache_key": (1, "u" * 129),
    "logprobs": (1, "true", []),
    "top_logprobs": (3, 0),
    "tools": ([], {}, "f", [FUNCTION] * 257),
    "functions": ([], {}, "f"),
    "tool_choice": ("auto", "required", {"type": "function"}),
    "parallel_tool_calls": (1, "true"),
    "modalities": ("text", {}, ["video"], [None], [["text"]]),
    "reasoning_effort": (1, [], "x" * 65),
    "service_tier": (1, "gold", []),
    "store": (1, "yes", True),
}
"""Values that are refused by themselves, under the name of the parameter."""

BAD_INSIDE: tuple[tuple[str, dict[str, Any], tuple[Any, ...], str], ...] = (
    ("top_logprobs", {"logprobs": True}, (*NOT_INTEGERS, -1, 21), "top_logprobs"),
    ("top_logprobs", {"logprobs": False}, (0,), "top_logprobs"),
    ("tools", {}, (["f"], [{}], [{"type": "web"}], [{"type": ["function"]}]), "tools[0].type"),
    (
        "tools",
        {},
        tuple([FUNCTION, {"type": "function", "function": f}] for f in (None, {}, {"name": 7})),
        "tools[1].function.name",
    ),
    ("tools", {}, ([{"type": "custom"}],), "tools[0].custom.name"),
    ("functions", {}, (["f"], [{}], [{"name": ""}]), "functions[0].name"),
    ("tool_choice", {"tools": [FUNCTION]}, ("any", 7, [], {}, {"type": "web"}), "tool_choice"),
    (
        "tool_choice",
        {"tools": [FUNCTION]},
        ({"type": "function"}, {"type": "function", "function": {}}),
        "tool_choice.function.name",
    ),
    ("response_format", {}, ("json", 7, [], {}, {"type": "xml"}, {"type": []}), "response_format.type"),
    (
        "response_format",
        {},
        ({"type": "json_schema"}, {"type": "json_schema", "json_schema": {"name": 7}}),
        "response_format.json_schema",
    ),
)
"""A parameter, what stands beside it, values, and the name under which they are refused."""

BAD_CHAT: list[tuple[dict[str, Any], str]] = [
    *(({name: value}, name) for name, values in BAD_VALUES.items() for value in values),
    *(({**beside, name: value}, param) for name, beside, values, param in BAD_INSIDE for value in values),
]


@pytest.mark.parametrize(("fields", "param"), BAD_CHAT, ids=lambda value: str(value)[:60])
def test_a_bad_parameter_of_a_chat_is_a_400_that_names_it(fields, param):
    with pytest.raises(RequestError) as caught:
        check(**fields)
    assert (caught.value.param, caught.value.status) == (param, 400)
    assert caught.value.message


BAD_OTHER: list[tuple[Endpoint, dict[str, Any], str]] = [
    ("completions", {"temperature": "hot"}, "temperature"),
    ("completions", {"n": 1000}, "n"),
    ("completions", {"best_of": 1000}, "best_of"),
    ("completions", {"best_of": 0}, "best_of"),
    ("completions", {"logprobs": True}, "logprobs"),
    ("completions", {"logprobs": 21}, "logprobs"),
    ("completions", {"echo": "yes"}, "echo"),
    ("completions", {"stop": ["a"] * 17}, "stop"),
    ("embeddings", {"dimensions": 0}, "dimensions"),
    ("embeddings", {"dimensions": "8"}, "dimensions"),
    ("embeddings", {"encoding_format": "hex"}, "encoding_format"),
    ("embeddings", {"encoding_format": []}, "encoding_format"),
    ("embeddings", {"stream": True}, "stream"),
    ("embeddings", {"user": 7}, "user"),
]


@pytest.mark.parametrize(("endpoint", "fields", "param"), BAD_OTHER)
def test_a_bad_parameter_of_another_endpoint_is_a_400_that_names_it(endpoint, fields, param):
    with pytest.raises(RequestError) as caught:
        check(endpoint, **fields)
    assert (caught.value.param, caught.value.status) == (param, 400)


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({"tools": [FUNCTION]}, {"tools"}),
        ({"tools": [CUSTOM]}, {"custom_tools"}),
        ({"tools": [FUNCTION, CUSTOM]}, {"tools", "custom_tools"}),
        ({"functions": [{"name": "f"}]}, {"tools"}),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
            {"tools", "allowed_tools"},
        ),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "f"}}}, {"tools"}),
        ({"tools": [FUNCTION], "tool_choice": "required", "parallel_tool_calls": False}, {"tools"}),
        ({"response_format": {"type": "json_object"}}, {"json_object"}),
        ({"response_format": SCHEMA}, {"json_schema"}),
        ({"response_format": {"type": "text"}}, set()),
        ({"logprobs": True}, {"logprobs"}),
        ({"logprobs": True, "top_logprobs": 20}, {"logprobs"}),
        ({"logprobs": False}, set()),
        ({"n": 2}, {"n"}),
        ({"n": 1}, set()),
        ({"modalities": ["text", "audio"]}, {"audio_output"}),
        ({"modalities": ["text"]}, set()),
        ({"audio": {"voice": "a", "format": "wav"}}, {"audio_output"}),
        ({"reasoning_effort": "low"}, {"reasoning"}),
        ({"reasoning_effort": "none"}, set()),
        ({"verbosity": "low"}, {"verbosity"}),
        ({"moderation": {"model": "m"}}, {"moderation"}),
        ({"prediction": {"type": "content", "content": "x"}}, {"prediction"}),
        ({"web_search_options": {}}, {"web_search"}),
        ({"tool_choice": "none"}, set()),
        ({"store": False, "service_tier": "flex", "seed": -1, "stop": ["a"] * 4, "logit_bias": {"5": -100}}, set()),
        ({"temperature": 0, "top_p": 0.5, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k"}, set()),
    ],
    ids=str,
)
def test_g030_what_a_parameter_needs_of_a_model(fields, needs):
    assert check(**fields).needs == needs


def test_g030_logprobs_of_a_plain_completion_are_a_need_too():
    assert check("completions", logprobs=0).needs == {"logprobs"}
    assert check("completions", n=2, best_of=2, echo=True).needs == {"n"}


@pytest.mark.parametrize(
    "name",
    [*BAD_VALUES, "response_format", "audio", "verbosity", "moderation", "prediction", "web_search_options"],
)
def test_null_is_as_good_as_nothing(name):
    nothing: dict[str, Any] = {name: None}
    assert check(**nothing).needs == set()


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh", "max", "whatever a vendor adds"])
def test_efforts_are_the_vendors_to_name(effort):
    assert check(reasoning_effort=effort).needs == {"reasoning"}


@pytest.mark.parametrize("tier", ["auto", "default", "flex", "scale", "priority", "fast"])
def test_the_service_tiers_of_the_api_pass(tier):
    check(service_tier=tier)


def test_tools_and_schemas_are_prompt_once_each():
    functions = [{"name": "f"}]
    sizes = {
        "tools": len(json.dumps([FUNCTION], separators=(",", ":"))),
        "functions": len(json.dumps(functions, separators=(",", ":"))),
        "schema": len(json.dumps(SCHEMA["json_schema"], separators=(",", ":"))),
    }
    assert check(tools=[FUNCTION]).prompt.text_bytes == sizes["tools"]
    assert check(response_format=SCHEMA).prompt.text_bytes == sizes["schema"]
    both = check(tools=[FUNCTION], functions=functions, response_format=SCHEMA)
    assert both.prompt.text_bytes == sum(sizes.values())
    documents = [{"title": "é", "text": "a page"}]
    assert check(documents=documents).prompt.text_bytes == len(
        json.dumps(documents, ensure_ascii=False, separators=(",", ":")).encode()
    )


def test_g033_the_caps_are_the_configured_ones():
    limits = LimitsConfig(max_n=2, max_tools=1)
    check(limits=limits, n=2, tools=[FUNCTION])
    for fields in ({"n": 3}, {"tools": [FUNCTION] * 2}):
        with pytest.raises(RequestError):
            check(limits=limits, **fields)


def test_an_operator_may_open_the_storing_of_answers():
    assert check(limits=LimitsConfig(allow_engine_fields=("store",)), store=True).needs == set()
