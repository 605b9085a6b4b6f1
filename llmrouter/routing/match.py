"""The condition side of a rule: what a request is like, and a compiled match that says whether it holds for it.

`conditions.py` compiles the keys of a rule's `match` into `Condition`s; here they are only asked. A request is asked by
many rules, so what costs something (the text as UTF-8, the local time of a zone) is worked out once, at first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from llmrouter.types import ChatRequest

__all__ = ["REGEX_TEXT_LIMIT", "Condition", "Facts", "Match"]

REGEX_TEXT_LIMIT = 4096
"""Characters of the last user turn, from its start, that a `regex` condition looks at."""


class Facts:
    """What rules may know of one request; made per request and shared by all its rules."""

    __slots__ = (
        "_any_regex",
        "_local",
        "_some_regex",
        "_text",
        "_utf8",
        "input_tokens",
        "intent",
        "needs",
        "now",
        "stream",
        "tags",
        "tenant_id",
        "tier_id",
    )

    def __init__(
        self,
        request: ChatRequest,
        *,
        tenant_id: str,
        tier_id: str,
        input_tokens: int,
        now: datetime,
        any_regex: Callable[[bytes], object] | None = None,
    ) -> None:
        self.intent = request.intent
        self.tenant_id = tenant_id
        self.tier_id = tier_id
        self.tags: Mapping[str, str] = request.tags
        self.input_tokens = input_tokens
        self.stream = request.stream
        self.needs = request.needs
        self.now = now
        self._text = request.last_user_text
        self._utf8: bytes | None = None
        self._any_regex = any_regex
        self._some_regex: bool | None = None
        self._local: dict[str, tuple[int, int]] = {}

    @property
    def text(self) -> bytes:
        """The searched part of the last user turn as UTF-8, which spares RE2 a conversion for every rule."""
        if self._utf8 is None:
            self._utf8 = self._text[:REGEX_TEXT_LIMIT].encode("utf-8", "replace")
        return self._utf8

    @property
    def some_regex_may_hold(self) -> bool:
        """False when one search for all patterns together has found nothing, so no single one can hold."""
        if self._some_regex is None:
            self._some_regex = self._any_regex is None or self._any_regex(self.text) is not None
        return self._some_regex

    def local(self, zone: ZoneInfo) -> tuple[int, int]:
        """Weekday (Monday is 0) and minute of the day in a time zone."""
        found = self._local.get(zone.key)
        if found is None:
            local = self.now.astimezone(zone)
            found = self._local[zone.key] = (local.weekday(), 60 * local.hour + local.minute)
        return found


@dataclass(frozen=True, slots=True)
class Condition:
    """One key of a match, compiled."""

    key: str
    """As in the rule, e.g. `intent` or `tag.team`."""
    test: Callable[[Facts], bool]
    wanted: str
    """What the rule asks for, in words."""
    found: Callable[[Facts], str]
    """What the request has instead, in words that quote no prompt."""


@dataclass(frozen=True, slots=True)
class Match:
    """All conditions of a rule, ANDed; one without conditions holds for every request."""

    conditions: tuple[Condition, ...]
    tests: tuple[Callable[[Facts], bool], ...]

    @classmethod
    def of(cls, conditions: tuple[Condition, ...]) -> Match:
        return cls(conditions, tuple(condition.test for condition in conditions))

    def holds(self, facts: Facts) -> bool:
        for test in self.tests:  # noqa: SIM110 - a loop is half the price of all() over a generator
            if not test(facts):
                return False
        return True

    def failures(self, facts: Facts) -> tuple[str, ...]:
        """Why it doesn't hold, one sentence for each condition that fails; empty when it holds."""
        return tuple(
            f"{condition.key}: wants {condition.wanted}, request has {condition.found(facts)}"
            for condition in self.conditions
            if not condition.test(facts)
        )
