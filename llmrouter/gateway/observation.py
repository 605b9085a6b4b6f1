"""What a plan may see of an answer, or of the part of a stream that has been held back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmrouter.gateway.logprobs import entries_of
from llmrouter.pricing.cost import normalise_usage
from llmrouter.quality.folding import fold
from llmrouter.routing.confidence import signals_from_logprobs
from llmrouter.routing.selfcheck import alternatives
from llmrouter.types import Observation, TokenSignals, Usage

__all__ = ["observe_prefix", "observe_whole"]

_Choices = Sequence[Mapping[str, Any]]


def observe_whole(choices: list[dict[str, Any]], usage: Usage) -> Observation:
    """What the choices of a whole answer look like."""
    entries = {position: entries_of(choice) for position, choice in enumerate(choices)}
    return _observe(choices, entries, usage, whole=True)


def observe_prefix(
    held: bytes, entries: Mapping[int, list[Any]], stated: dict[str, Any] | None, written: int, *, whole: bool
) -> Observation:
    """What has come of a stream.

    Args:
        held: the client's events so far.
        entries: the log-probabilities of each choice so far.
        stated: the usage that the engine has told.
        written: tokens that were seen.
        whole: every choice has ended.
    """
    try:
        choices: _Choices = fold(held)
    except (ValueError, TypeError, KeyError, AttributeError):  # an engine's own field that does not fold
        choices = ()
    usage = Usage(output_tokens=written, estimated=True) if stated is None else normalise_usage(stated)[0]
    return _observe(choices or ({},), entries, usage, whole=whole)


def _observe(choices: _Choices, entries: Mapping[int, list[Any]], usage: Usage, *, whole: bool) -> Observation:
    return Observation(
        texts=tuple(_text(choice) for choice in choices),
        finish=tuple(choice.get("finish_reason") for choice in choices),
        tool_calls=tuple(_calls(_message(choice)) for choice in choices),
        refused=tuple(_refused(choice) for choice in choices),
        signals=tuple(_signals(entries.get(position) or []) for position in range(len(choices))),
        first_token=alternatives(entries.get(0) or []),
        usage=usage,
        whole=whole,
    )


def _message(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    message = choice.get("message")
    return message if isinstance(message, Mapping) else {}


def _text(choice: Mapping[str, Any]) -> str:
    text = choice.get("text") if "text" in choice else _message(choice).get("content")
    if isinstance(text, list):
        parts = (part.get("text") for part in text if isinstance(part, Mapping))
        return "".join(part for part in parts if isinstance(part, str))
    return text if isinstance(text, str) else ""


def _calls(message: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Name and arguments of each call, also of the older `function_call` and of custom tools."""
    calls = message.get("tool_calls")
    bodies = [
        call.get("function") or call.get("custom")
        for call in (calls if isinstance(calls, list) else ())
        if isinstance(call, Mapping)
    ]
    bodies.append(message.get("function_call"))
    return tuple(
        (str(body.get("name") or ""), str(body.get("arguments") or body.get("input") or ""))
        for body in bodies
        if isinstance(body, Mapping)
    )


def _refused(choice: Mapping[str, Any]) -> bool:
    return bool(_message(choice).get("refusal")) or choice.get("finish_reason") == "content_filter"


def _signals(entries: list[Any]) -> TokenSignals | None:
    return signals_from_logprobs(entries) if entries else None
