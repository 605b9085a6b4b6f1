"""The answer to what a plan asked, made into the answer to what the client asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from llmrouter.gateway.answers import Completion
from llmrouter.gateway.logprobs import as_asked, entries_of, most_alternatives
from llmrouter.types import ChatRequest, Usage

__all__ = ["for_client"]

_SAID = ("content", "reasoning", "reasoning_content", "refusal")


def for_client(
    completion: Completion, usage: Usage, *, client: ChatRequest, asked: ChatRequest, choice: int
) -> tuple[Completion, Usage]:
    """The completion and the usage that the client gets; the arguments are left as they are.

    Of several sampled choices a client that wants one gets `choice`, and its share of the written tokens: counted by
    its log-probabilities if the engine told them, else estimated by length. Log-probabilities are cut to what the
    client asked for.
    """
    choices: list[dict[str, Any]] = completion.body["choices"]
    given, told = choices[: client.n], completion.usage
    if client.n == 1 and len(choices) > 1:
        given = [{**choices[choice], "index": 0}]
        usage = _share(choices, choice, usage)
        told = {name: count for name, count in (told or {}).items() if name != "completion_tokens_details"} or None
    most = most_alternatives(client)
    if most != most_alternatives(asked):
        given = [{**each, "logprobs": as_asked(each.get("logprobs"), most)} for each in given]
    body = {**completion.body, "choices": given}
    return Completion(body, told, given[0]["finish_reason"]), usage


def _share(choices: Sequence[dict[str, Any]], choice: int, usage: Usage) -> Usage:
    counted = len(entries_of(choices[choice]))
    lengths = [_length(each) for each in choices]
    share = lengths[choice] / sum(lengths) if sum(lengths) else 1 / len(choices)
    output = min(counted or round(usage.output_tokens * share), usage.output_tokens)
    reasoning = min(round(usage.reasoning_tokens * share), output)
    return dataclasses.replace(usage, output_tokens=output, reasoning_tokens=reasoning, estimated=True)


def _length(choice: Mapping[str, Any]) -> int:
    """Characters of all that a model wrote for a choice."""
    message = choice.get("message")
    if not isinstance(message, Mapping):
        return len(choice.get("text") or "")
    said = sum(len(str(message.get(name) or "")) for name in _SAID)
    calls = message.get("tool_calls")
    return said + sum(len(str(call)) for call in (calls if isinstance(calls, list) else ()))
