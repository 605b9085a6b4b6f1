"""What a key may use beyond its scopes: limits of its own, latency classes, the one end user it stands for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import orjson
from pydantic import ValidationError

from llmrouter.config import CLASSES, LimitSet
from llmrouter.errors import PermissionDenied, UsageError
from llmrouter.sections import suggest
from llmrouter.tenancy.limits import amount_text, describe, key_scope, limits_in
from llmrouter.types import LatencyClass, Limit, Principal

__all__ = ["KeyPolicy", "make_policy", "read_limits", "refuse_wider_policy", "shown_limits"]

_LONGEST_USER = 256


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """Fixed when the key is made, as its scopes are; the default grants what the tenant has."""

    limits: LimitSet = field(default_factory=LimitSet)
    classes: frozenset[LatencyClass] | None = None
    """Latency classes that it may ask for; None means those of its tenant."""
    latency_class: LatencyClass | None = None
    """The class of requests that ask for none; None means the tier's."""
    user_id: str | None = None
    """The one end user it stands for, whatever a request says."""

    def limits_of(self, key_id: str) -> tuple[Limit, ...]:
        """The key's own limits."""
        return limits_in(key_scope(key_id), self.limits)

    def as_json(self) -> dict[str, Any]:
        """All of it, ready for JSON; dollars are text, so that none is rounded."""
        return {
            "limits": {name: _plain(amount) for name, amount in self.limits.model_dump(exclude_none=True).items()},
            "classes": None if self.classes is None else sorted(self.classes, key=CLASSES.index),
            "latency_class": self.latency_class,
            "user_id": self.user_id,
        }

    def to_text(self) -> str:
        """As the store keeps it: JSON of what is set."""
        return orjson.dumps({name: given for name, given in self.as_json().items() if given not in (None, {})}).decode()

    @classmethod
    def from_text(cls, text: str) -> KeyPolicy:
        """Raises `UsageError` for a text that no `to_text` has written."""
        given = orjson.loads(text)
        return make_policy(**given)


def make_policy(
    limits: LimitSet | Mapping[str, Any] | None = None,
    classes: Collection[str] | None = None,
    latency_class: str | None = None,
    user_id: str | None = None,
) -> KeyPolicy:
    """Check what somebody asks for a key.

    Raises:
        UsageError: an unknown limit or class, an amount that is none, or a default class that the key may not use.
    """
    if classes is not None and not classes:
        raise UsageError("a key without any latency class could serve no request; leave classes out to allow all")
    known = None if classes is None else frozenset(_class(name) for name in classes)
    default = None if latency_class is None else _class(latency_class)
    if default is not None and known is not None and default not in known:
        raise UsageError(f"the default class {default} is not among the classes of the key: {', '.join(sorted(known))}")
    if user_id is not None and not (0 < len(user_id) <= _LONGEST_USER and user_id.isprintable()):
        raise UsageError(f"a user id is 1 to {_LONGEST_USER} printable characters")
    return KeyPolicy(read_limits(limits or {}), known, default, user_id)


def read_limits(given: LimitSet | Mapping[str, Any]) -> LimitSet:
    """Limits by name, e.g. `{"requests_per_minute": 60}`; raises `UsageError` naming the one at fault."""
    if isinstance(given, LimitSet):
        return given
    try:
        return LimitSet.model_validate(dict(given))
    except ValidationError as error:
        raise UsageError("; ".join(_fault(item) for item in error.errors())) from error


def shown_limits(limits: LimitSet) -> str:
    """For a table cell: `requests_per_minute=60, usd_per_day=5`."""
    return ", ".join(f"{name}={_plain(amount)}" for name, amount in limits.model_dump(exclude_none=True).items())


def refuse_wider_policy(child: KeyPolicy, parent: Principal) -> None:
    """Raises `PermissionDenied` where a key would get more than the one that makes it.

    Both then count for themselves: many children of a limited key may together use more than it may.
    """
    wished = {limit.kind: limit for limit in child.limits_of("new")}
    for limit in parent.limits:
        own = wished.get(limit.kind)
        if own is None or own.most > limit.most or own.burst > limit.burst:
            burst = f" and a burst of {limit.burst}" if limit.burst not in (0, limit.most) else ""
            raise PermissionDenied(
                f"{describe(limit)}, which asks, is {amount_text(limit, limit.most)}{burst}; "
                f"give the new key a {limit.kind} of at most that"
            )
    if parent.classes is not None and (child.classes is None or not child.classes <= parent.classes):
        raise PermissionDenied(
            f"this key may only pass on its own latency classes: {', '.join(sorted(parent.classes)) or 'none'}"
        )
    if parent.user_id is not None and child.user_id != parent.user_id:
        raise PermissionDenied("this key stands for one user and may only make keys for that user")


def _class(name: str) -> LatencyClass:
    for known in CLASSES:
        if name == known:
            return known
    raise UsageError(f"no latency class {name[:64]!r}; known: {', '.join(CLASSES)}")


def _fault(item: Any) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"no limit {where[:64]!r}{suggest(where, LimitSet.model_fields)}"
    message = item["msg"].removeprefix("Value error, ")
    return f"limit {where}: {message} (got {str(item.get('input'))[:64]!r})" if where else message


def _plain(amount: int | Decimal) -> int | str:
    return f"{amount:f}" if isinstance(amount, Decimal) else amount
