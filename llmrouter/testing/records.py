"""What the fake saw: each request as it came, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmrouter.testing.watch import Signal

if TYPE_CHECKING:
    from llmrouter.testing.actions import Step

__all__ = ["Call", "Incoming"]


@dataclass(frozen=True, slots=True)
class Incoming:
    """One HTTP request as it came over the wire."""

    seq: int
    """Counts all requests to this backend from 1; ids of answers derive from it."""
    method: str
    target: str
    """Path and query string."""
    headers: tuple[tuple[str, str], ...]
    """In the order and the spelling of the wire, repeats included."""
    raw_body: bytes
    body: Any
    """The parsed JSON, or None when there is none or it cannot be parsed."""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        """The first header of that name in any spelling."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def fields(self) -> Mapping[str, Any]:
        """The JSON object of the body; empty when the body is something else."""
        return self.body if isinstance(self.body, dict) else {}

    @property
    def stream(self) -> bool:
        return self.fields.get("stream") is True

    @property
    def stream_options(self) -> Mapping[str, Any]:
        options = self.fields.get("stream_options")
        return options if isinstance(options, dict) else {}

    @property
    def include_usage(self) -> bool:
        return self.stream_options.get("include_usage") is True

    @property
    def n(self) -> int:
        return self._int("n") or 1

    @property
    def output_cap(self) -> int | None:
        """The most tokens a choice may have; `max_completion_tokens` wins, as it does in vLLM."""
        cap = self._int("max_completion_tokens")
        return self._int("max_tokens") if cap is None else cap

    @property
    def top_logprobs(self) -> int | None:
        """How many alternatives a token were asked for; None when no logprobs were."""
        return (self._int("top_logprobs") or 0) if self.fields.get("logprobs") is True else None

    @property
    def last_user_text(self) -> str:
        """Text of the last user message, or the prompt of a completion call."""
        users = [m for m in self._messages() if m.get("role") == "user"]
        return _text_of(users[-1].get("content")) if users else _text_of(self.fields.get("prompt"))

    @property
    def prompt_words(self) -> int:
        """Words of everything that was sent; stands in for a tokenizer, at least 1."""
        parts = [_text_of(m.get("content")) for m in self._messages()]
        parts += [_text_of(self.fields.get(name)) for name in ("prompt", "input", "content")]
        return max(1, sum(len(part.split()) for part in parts))

    def _messages(self) -> list[Mapping[str, Any]]:
        messages = self.fields.get("messages")
        return [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []

    def _int(self, name: str) -> int | None:
        value = self.fields.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return " ".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content if part)


@dataclass(slots=True, eq=False)
class Call:
    """One recorded exchange; the backend fills it in while it happens."""

    request: Incoming
    connection: int
    """Which connection it came on, counted from 1."""
    arrived_s: float
    """When the whole request had arrived, on the monotonic clock."""
    step: Step | None = None
    """What the script answered with."""
    status: int | None = None
    """Status of the head that was sent; None while none was."""
    chunks_sent: int = 0
    """SSE events, or bodies of plain answers, that were written."""
    bytes_sent: int = 0
    finished_s: float | None = None
    """When the backend had done all that its step says; None when the peer left before, or it is still at it."""
    disconnected: Signal = field(default_factory=lambda: Signal("the peer goes away"))
    """Happens at the moment the peer goes away before the backend has finished."""

    @property
    def method(self) -> str:
        return self.request.method

    @property
    def path(self) -> str:
        return self.request.path

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return self.request.headers

    @property
    def body(self) -> Any:
        return self.request.body

    def header(self, name: str) -> str | None:
        """The first request header of that name in any spelling."""
        return self.request.header(name)

    @property
    def finished(self) -> bool:
        return self.finished_s is not None

    @property
    def disconnected_after_s(self) -> float | None:
        """Seconds from the arrival to the moment the peer went away; None if it stayed."""
        gone_s = self.disconnected.at_s
        return None if gone_s is None else gone_s - self.arrived_s
