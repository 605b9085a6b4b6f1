"""What is wrong with a set of rules: every problem with the path of its key, raised together as one error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmrouter.errors import UsageError

__all__ = ["InvalidRules", "Problem", "did_you_mean"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault in a set of rules."""

    param: str
    """Path of the key at fault, e.g. `rules[3].match.regex`."""
    message: str

    def __str__(self) -> str:
        return f"{self.param}: {self.message}"


class InvalidRules(UsageError):
    """The rules cannot be used; names all their problems, not the first one only.

    A usage error, so that one class serves the admin API (400, `param` is the first key at fault) and a shell (exit 2).
    """

    default_code = "invalid_rules"

    def __init__(self, problems: Sequence[Problem]) -> None:
        lines = [str(problem) for problem in problems]
        head = [f"{len(lines)} problems in the rules:"] if len(lines) > 1 else []
        super().__init__("\n".join((*head, *lines)), param=problems[0].param)
        self.problems = tuple(problems)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The tail of a message about an unknown name: the nearest known one, else all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names) or 'none'}"
