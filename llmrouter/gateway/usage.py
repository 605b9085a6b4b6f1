"""The usage of a stream, gathered from wherever an engine reports it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["UsageTally"]

_COUNTS = ("prompt_tokens", "completion_tokens")


class UsageTally:
    """Usage of the whole answer.

    Most engines send it once at the end, some with every chunk, counting up; llama.cpp sends it for each of several
    choices apart, in chunks without a choice (chat) or with the choice's last text (completions).

    Args:
        n: number of choices.
        one_prompt: every choice answers the same prompt, so its tokens count once.
    """

    __slots__ = ("_by_choice", "_n", "_one_prompt", "_whole")

    def __init__(self, n: int, *, one_prompt: bool) -> None:
        self._n = n
        self._one_prompt = one_prompt
        self._whole: list[dict[str, Any]] = []
        self._by_choice: dict[Any, dict[str, Any]] = {}

    def note(self, usage: dict[str, Any], choices: Any) -> None:
        """Take the usage of one event together with the event's choices."""
        if self._n == 1 or (isinstance(choices, list) and len(choices) > 1):
            self._whole = [usage]
        elif isinstance(choices, list) and choices and isinstance(choices[0], dict):
            self._by_choice[str(choices[0].get("index"))] = usage
        else:
            self._whole.append(usage)

    def total(self) -> dict[str, Any] | None:
        """What the engine reported; None when it did not."""
        parts = self._whole or list(self._by_choice.values())
        if len(parts) < 2:
            return parts[0] if parts else None
        return _together(parts, one_prompt=self._one_prompt)


def _together(parts: Sequence[dict[str, Any]], *, one_prompt: bool) -> dict[str, Any]:
    counts = {name: [part[name] for part in parts if type(part.get(name)) is int] for name in _COUNTS}
    prompts, completions = counts.values()
    prompt = max(prompts, default=0) if one_prompt else sum(prompts)
    completion = sum(completions)
    whole = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    if not one_prompt:
        # Details of single prompts do not describe their sum; cached tokens do, and they have a price.
        details = [part.get("prompt_tokens_details") for part in parts]
        cached = [d["cached_tokens"] for d in details if isinstance(d, dict) and type(d.get("cached_tokens")) is int]
        return {**whole, "prompt_tokens_details": {"cached_tokens": sum(cached)}} if cached else whole
    return {**parts[-1], **whole}
