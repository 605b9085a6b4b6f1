"""Log-probabilities that a plan asked for: kept for the plan, passed on only as far as the client asked for them."""

from __future__ import annotations

from typing import Any

from llmrouter.types import ChatRequest

__all__ = ["LogprobFilter", "as_asked", "entries_of", "most_alternatives"]


def most_alternatives(request: ChatRequest) -> int | None:
    """How many alternatives a token a request asks for; None where it asks for no log-probabilities at all."""
    wanted = request.fields.get("logprobs")
    if request.endpoint == "completions":
        return wanted if type(wanted) is int else None
    return (request.fields.get("top_logprobs") or 0) if wanted else None


def as_asked(logprobs: Any, most: int | None) -> Any:
    """The log-probabilities of a choice, or of a part of one, with at most so many alternatives a token.

    Args:
        most: as `most_alternatives` says; None leaves nothing.
    """
    if most is None or not isinstance(logprobs, dict):
        return None
    return {name: [_reduced(each, most) for each in _list(told)] or told for name, told in logprobs.items()}


def entries_of(choice: dict[str, Any]) -> list[Any]:
    """One entry a token of a chat's choice, or of a part of it; empty where the engine told none."""
    logprobs = choice.get("logprobs")
    return _list(logprobs.get("content")) if isinstance(logprobs, dict) else []


class LogprobFilter:
    """Reads the log-probabilities in the parts of a stream, and cuts them to what the client asked for.

    Args:
        client: the request as it came.
        asked: what is sent instead; where it is the client's own, nothing is cut.
    """

    __slots__ = ("_cuts", "_most", "entries", "keeps", "tokens")

    def __init__(self, client: ChatRequest, asked: ChatRequest) -> None:
        self.entries: dict[int, list[Any]] = {}
        """Of each choice, by index, while it `keeps` them."""
        self.keeps = True
        self.tokens = 0
        """Tokens of all choices that came with log-probabilities."""
        self._most = most_alternatives(client)
        self._cuts = self._most != most_alternatives(asked)

    def pass_on(self, part: dict[str, Any]) -> dict[str, Any]:
        """The part as the client may see it; the argument is left as it is."""
        entries = entries_of(part)
        self.tokens += len(entries)
        if self.keeps and entries:
            index = part.get("index")
            self.entries.setdefault(index if type(index) is int else 0, []).extend(entries)
        if not self._cuts or part.get("logprobs") is None:
            return part
        return {**part, "logprobs": as_asked(part["logprobs"], self._most)}


def _reduced(entry: Any, most: int) -> Any:
    alternatives = entry.get("top_logprobs") if isinstance(entry, dict) else None
    if not isinstance(alternatives, list) or len(alternatives) <= most:
        return entry
    # Some engines put the token that was sampled first, however unlikely it was.
    return {**entry, "top_logprobs": sorted(alternatives, key=_likely, reverse=True)[:most]}


def _likely(alternative: Any) -> float:
    logprob = alternative.get("logprob") if isinstance(alternative, dict) else None
    return float(logprob) if isinstance(logprob, int | float) else float("-inf")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
