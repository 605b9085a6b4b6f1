"""What the demo asks: its own prompts, each for one thing that the gateway does, or a file of the user's."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from llmrouter.errors import UsageError

__all__ = ["PROMPTS", "Prompt", "askable", "read_prompts"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of the demo."""

    text: str
    tier: str = "auto"
    max_tokens: int = 48
    conversation: str | None = None
    """What a canary's share sticks to; a digest of the text where it is None."""


_NOTE = (
    "Summarize this in one sentence: The ferry to the island runs four times a day from April to October and twice a "
    "day in winter. Tickets are sold at the pier from an hour before departure, and bicycles travel free of charge "
    "except on Sundays, when there is room for ten of them only. Dogs must be kept on a leash. In strong wind the "
    "company may cancel a trip, and then the next one is free for everybody who holds a ticket."
)

PROMPTS = (
    Prompt("Hello! Who are you?"),
    Prompt("Suggest a good name for a cat."),
    Prompt("Write a Python function that squares a number.", max_tokens=120),
    Prompt("What is 17 + 25?", max_tokens=24),
    Prompt(_NOTE),
    Prompt("Name the three primary colours.", tier="failover", max_tokens=32),
    # Shares are drawn from rule and conversation alone: the first of these is always stable, the second always canary.
    Prompt("What do bees make?", tier="canary", max_tokens=32, conversation="conversation-1"),
    Prompt("What do bees make?", tier="canary", max_tokens=32, conversation="conversation-5"),
)


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a text file, one a line; blank lines and lines that begin with `#` are left out.

    Raises:
        UsageError: the file cannot be read or holds none.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prompts {path}: cannot be read: {error}") from error
    texts = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not texts:
        raise UsageError(f"--prompts {path}: holds no prompt; write one a line")
    return tuple(Prompt(text, max_tokens=96) for text in texts)


def askable(prompts: Collection[Prompt], tiers: Collection[str]) -> list[Prompt]:
    """The prompts whose tier the configuration has.

    Raises:
        UsageError: it has none of them.
    """
    found = [prompt for prompt in prompts if prompt.tier in tiers]
    if not found:
        wanted = ", ".join(sorted({prompt.tier for prompt in prompts}))
        raise UsageError(f"the configuration has no tier {wanted}; take another --dir for a fresh one")
    return found
