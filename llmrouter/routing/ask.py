"""What a router looks at: the ask of a request, apart from the history and the boilerplate around it."""

from __future__ import annotations

from llmrouter.types import value

__all__ = ["Ask"]


@value
class Ask:
    """The parts of a request that its difficulty may depend on; all text as it came, in Unicode."""

    text: str
    """The last user turn, without what is recognised as an agent harness's boilerplate."""
    history: str = ""
    """A short extract of the earlier turns and of the system prompt, most recent last."""
    tools: str = ""
    """Names and descriptions of the tools offered; empty when none are."""
    turns: int = 1
    """User turns, with the last one."""
    boilerplate: int = 0
    """Characters of the last user turn that were left out of `text`."""
    max_output_tokens: int | None = None
