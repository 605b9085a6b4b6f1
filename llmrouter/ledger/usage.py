"""Questions about usage and their answers, whatever the places are where the books lie.

There are two measures. `calls` counts what clients asked for: one row of the ledger each. `attempts` counts what models
did: one row for each call of a replica, failed ones too. Tokens and dollars of both add up to the same.

A place answers with whole numbers, dollars as pico-dollars, so that answers of several places add up exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from operator import add
from typing import Literal, Protocol, cast, get_args

from llmrouter.errors import UsageError
from llmrouter.types import value

__all__ = [
    "DIMENSIONS",
    "MONEY",
    "NUMBERS",
    "Group",
    "Measure",
    "Question",
    "Report",
    "UsageSource",
    "ask",
    "make_question",
    "parse_day",
    "parse_dimensions",
]

Measure = Literal["calls", "attempts"]

DIMENSIONS: dict[Measure, tuple[str, ...]] = {
    "calls": ("tenant", "key", "user", "tier", "model", "class", "month", "day", "hour"),
    "attempts": ("tenant", "key", "user", "tier", "model", "class", "month", "day", "hour", "price", "pool"),
}
"""By what groups are made, besides `tag:NAME`. `model` is the one that answered a call, or the one of the attempt."""

_TOKENS = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")

NUMBERS: dict[Measure, tuple[str, ...]] = {
    "calls": (
        *("requests", "failed", "aborted", "degraded", "unknown", "estimated"),
        *(*_TOKENS, "cost_usd", "reference_cost_usd"),
    ),
    "attempts": ("attempts", "failed", "committed", "unknown", "estimated", *_TOKENS, "cost_usd"),
}
"""What is counted, in the order of `Group.numbers`.

Of calls: `failed` got no answer from any model, of which `aborted` were left by the client before one came, and
`unknown` are those whose process died; an aborted call may also have been answered in part. `degraded` were served by a
cheaper tier. `estimated` are those whose tokens an engine did not report. Of attempts: `committed` are those whose
answer the client got.
"""

MONEY = frozenset({"cost_usd", "reference_cost_usd"})
"""Numbers that are pico-dollars."""

_LONGEST_TAG = 256
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}(-[0-9]{2})?")


@value
class Question:
    """What to add up; raises `UsageError` from `ask` where it makes no sense."""

    measure: Measure = "calls"
    by: tuple[str, ...] = ()
    since: date | None = None
    """First day, in UTC; None begins with the books."""
    until: date | None = None
    """The day after the last one; None goes on to the newest entry."""
    tenants: tuple[str, ...] = ()
    """Only these; empty means all."""
    most: int = 100_000
    """More groups than these are an error."""


@value
class Group:
    """The numbers of one group."""

    keys: tuple[str | None, ...]
    """One for each dimension of the question; None where calls have none, such as those without a user."""
    numbers: tuple[int, ...]


@value
class Report:
    """The answer to a question: its groups in the order of their keys. Every row of the books is in exactly one."""

    question: Question
    groups: tuple[Group, ...]

    def total(self) -> tuple[int, ...]:
        """The sums over all groups."""
        zero = (0,) * len(NUMBERS[self.question.measure])
        return _sum([zero, *(group.numbers for group in self.groups)])


class UsageSource(Protocol):
    """A place that holds a part of the books, seen at one moment; of one report's sources, no two hold the same row."""

    def ask(self, question: Question) -> Sequence[Group]:
        """The groups of this place, in any order, each key once; up to `question.most + 1` of them.

        The question has been checked. May block for as long as it takes.

        Raises:
            StoreUnavailable: the place cannot be read.
        """
        ...


def ask(sources: Iterable[UsageSource], question: Question) -> Report:
    """The answer of all sources together.

    Raises:
        UsageError: the question makes no sense, or has more groups for an answer than it allows.
        StoreUnavailable: a source cannot be read.
    """
    _check(question)
    groups: dict[tuple[str | None, ...], tuple[int, ...]] = {}
    for source in sources:
        for group in source.ask(question):
            known = groups.get(group.keys)
            groups[group.keys] = group.numbers if known is None else _sum([known, group.numbers])
        if len(groups) > question.most:
            raise UsageError(
                f"usage by {', '.join(question.by)} has more than {question.most} groups; "
                "narrow it down by tenant or time, or group by less"
            )
    return Report(question, tuple(Group(keys, groups[keys]) for keys in sorted(groups, key=_order)))


def make_question(
    measure: str,
    by: Iterable[str],
    since: str | None,
    until: str | None,
    tenants: Iterable[str],
    most: int,
    *,
    option: Callable[[str], str] = str,
) -> Question:
    """A checked question from texts; `option` says how an error names one of them, e.g. `--since`.

    Raises:
        UsageError: it makes no sense.
    """
    if measure not in get_args(Measure):
        raise UsageError(f"{option('measure')}: no measure {measure[:64]!r}; known: {', '.join(get_args(Measure))}")
    days = [
        None if text is None else parse_day(text, option(name)) for name, text in (("since", since), ("until", until))
    ]
    question = Question(cast(Measure, measure), parse_dimensions(by), days[0], days[1], tuple(tenants), most)
    _check(question)
    return question


def parse_dimensions(texts: Iterable[str]) -> tuple[str, ...]:
    """Dimensions from texts such as `tenant,day` or `tag:team`, not yet checked."""
    return tuple(name.strip() for text in texts for name in text.split(",") if name.strip())


def parse_day(text: str, what: str) -> date:
    """The day that `2026-11-30` names, or the first of the month `2026-11`; `what` names it in the error.

    Raises:
        UsageError: it is neither.
    """
    try:
        if not _DAY.fullmatch(text):  # Python also reads 20261130 and 2026-W48-1
            raise ValueError(text)
        return date.fromisoformat(text if len(text) == 10 else f"{text}-01")
    except ValueError:
        raise UsageError(
            f"{what} {text!r} is not a day such as 2026-11-30 or a month such as 2026-11 (calendar days in UTC)"
        ) from None


def _check_dimensions(measure: Measure, by: Sequence[str]) -> None:
    for name in by:
        if name.startswith("tag:"):
            if not 0 < len(name.removeprefix("tag:")) <= _LONGEST_TAG:
                raise UsageError(f"{name[:32]!r} names no tag; it is of the form tag:NAME")
        elif name not in DIMENSIONS[measure]:
            known = f"{', '.join(DIMENSIONS[measure])}, tag:NAME"
            raise UsageError(f"cannot group {measure} by {name[:64]!r}; known: {known}")
        if by.count(name) > 1:
            raise UsageError(f"{name!r} is there twice among what to group by")


def _check(question: Question) -> None:
    if any("\0" in name for name in (*question.by, *question.tenants)):
        raise UsageError("a tenant or a tag cannot have a NUL in its name")
    _check_dimensions(question.measure, question.by)
    if question.since is not None and question.until is not None and question.since >= question.until:
        raise UsageError(
            f"the time from {question.since} up to, not including, {question.until} is empty; "
            "`until` is the day after the last one"
        )


def _sum(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    total = rows[0]
    for row in rows[1:]:
        total = tuple(map(add, total, row))
    return total


def _order(keys: tuple[str | None, ...]) -> tuple[tuple[bool, str], ...]:
    return tuple((key is None, key or "") for key in keys)
