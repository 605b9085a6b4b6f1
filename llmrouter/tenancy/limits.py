"""Which limits a request counts against, in which latency class it runs, and how both are named to people.

A scope's text is the name of a counter, so no two scopes may share one: a tenant's `/` is written `%2F` and a user id
is percent-encoded, which leaves the `/` between the parts to us.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from decimal import Decimal
from typing import Any
from urllib.parse import quote, unquote

from llmrouter.config import CLASSES, LIMIT_KINDS, Config, LimitSet, TenantConfig
from llmrouter.errors import PermissionDenied
from llmrouter.types import ChatRequest, LatencyClass, Limit, LimitKind, Principal, value

__all__ = [
    "LimitBook",
    "amount_as_json",
    "amount_text",
    "describe",
    "key_scope",
    "limit_as_json",
    "limits_in",
    "tenant_scope",
    "tier_scope",
    "user_scope",
    "whose",
]

_BURST: dict[LimitKind, str] = {"requests_per_minute": "requests_burst", "tokens_per_minute": "tokens_burst"}
_LONGEST_USER = 128
_NANO = Decimal(10) ** 9


@value
class _Allowance:
    """One limit before it is known whose."""

    kind: LimitKind
    most: int
    burst: int


@value
class _TenantTerms:
    """What the configuration grants a tenant."""

    each_key: tuple[_Allowance, ...]
    each_user: tuple[_Allowance, ...]
    classes: frozenset[LatencyClass]
    weight: float


class LimitBook:
    """The limits of one configuration; a reload makes a new book."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._terms = {tenant_id: _terms(tenant) for tenant_id, tenant in config.tenants.items()}
        self._shared: dict[tuple[str, str], tuple[Limit, ...]] = {}

    def of(self, principal: Principal, tier_id: str, user_id: str | None) -> tuple[Limit, ...]:
        """Every limit of a request that `tier_id` serves, the innermost scope first: user, key, tenant on the tier,
        tenant, group, tier.

        A key with limits of its own has those instead of its tenant's `key_limits`. A tenant that the configuration
        no longer names has no limits of its own; those of the key and the tier hold.
        """
        shared = self._shared.get((principal.tenant_id, tier_id))
        if shared is None:
            shared = self._shared_of(principal.tenant_id, tier_id)
            # Only what the file names is kept, so that the cache cannot grow with what clients send.
            if principal.tenant_id in self._terms and tier_id in self._config.tiers:
                self._shared[principal.tenant_id, tier_id] = shared
        inner = self.of_key(principal)
        user_id = principal.user_id or user_id
        if user_id:
            inner = (*self.of_user(principal.tenant_id, user_id), *inner)
        return (*inner, *shared) if inner else shared

    def class_of(self, principal: Principal, request: ChatRequest) -> LatencyClass:
        """The latency class that a request runs in.

        What it asks for, where the key and its tenant allow that; without a wish the key's default, else the tier's.
        A default that is not allowed becomes the next less urgent class that is.

        Raises:
            PermissionDenied: it asks for a class that it may not have; the message names those it may.
        """
        allowed = self.allowed_classes(principal)
        wish = request.latency_class
        if wish is not None:
            if wish not in allowed:
                names = ", ".join(each for each in CLASSES if each in allowed) or "none"
                raise PermissionDenied(
                    f"this key may not ask for latency class `{wish}`; it may ask for: {names}",
                    param="latency_class",
                    code="latency_class_not_allowed",
                )
            return wish
        default = principal.latency_class or self._config.tiers[request.model].latency_class
        return default if default in allowed else _lowered(default, allowed)

    def allowed_classes(self, principal: Principal) -> frozenset[str]:
        """The classes that both the key and its tenant allow."""
        terms = self._terms.get(principal.tenant_id)
        of_tenant: frozenset[str] = terms.classes if terms is not None else frozenset(CLASSES)
        return of_tenant if principal.classes is None else principal.classes & of_tenant

    def weight_of(self, tenant_id: str) -> float:
        """A tenant's share of a full pool against others; 1 for one that the configuration does not name."""
        terms = self._terms.get(tenant_id)
        return terms.weight if terms is not None else 1.0

    def of_key(self, principal: Principal) -> tuple[Limit, ...]:
        """The limits of a key by itself: its own, else those that its tenant gives each key."""
        if principal.limits:
            return principal.limits
        terms = self._terms.get(principal.tenant_id)
        return _limits(key_scope(principal.key_id), terms.each_key) if terms is not None and terms.each_key else ()

    def of_user(self, tenant_id: str, user_id: str) -> tuple[Limit, ...]:
        """The limits of an end user by himself."""
        terms = self._terms.get(tenant_id)
        return _limits(user_scope(tenant_id, user_id), terms.each_user) if terms is not None and terms.each_user else ()

    def configured(self) -> tuple[Limit, ...]:
        """The limits whose scope the file itself names: of tenants on tiers, tenants, groups and tiers."""
        config = self._config
        found: list[Limit] = []
        for tenant_id, tenant in config.tenants.items():
            for tier_id, limits in tenant.tier_limits.items():
                found += limits_in(tenant_scope(tenant_id, tier_id), limits)
            found += limits_in(tenant_scope(tenant_id), tenant.limits)
        for group_id, group in config.groups.items():
            found += limits_in(f"group:{group_id}", group.limits)
        for tier_id, tier in config.tiers.items():
            found += limits_in(tier_scope(tier_id), tier.limits)
        return tuple(found)

    def _shared_of(self, tenant_id: str, tier_id: str) -> tuple[Limit, ...]:
        config = self._config
        tenant = config.tenants.get(tenant_id, _UNNAMED)
        limits: list[Limit] = []
        if tier_id in tenant.tier_limits:
            limits += limits_in(tenant_scope(tenant_id, tier_id), tenant.tier_limits[tier_id])
        limits += limits_in(tenant_scope(tenant_id), tenant.limits)
        if tenant.group is not None:
            limits += limits_in(f"group:{tenant.group}", config.groups[tenant.group].limits)
        if tier_id in config.tiers:
            limits += limits_in(tier_scope(tier_id), config.tiers[tier_id].limits)
        return tuple(limits)


def limits_in(scope: str, given: LimitSet) -> tuple[Limit, ...]:
    """The limits that a section sets, for one scope."""
    return _limits(scope, _allowances(given))


def key_scope(key_id: str) -> str:
    return f"key:{key_id}"


def tier_scope(tier_id: str) -> str:
    return f"tier:{tier_id}"


def tenant_scope(tenant_id: str, tier_id: str | None = None) -> str:
    """The scope of a tenant, or of its part in one tier."""
    whole = f"tenant:{_escaped(tenant_id)}"
    return whole if tier_id is None else f"{whole}/tier:{tier_id}"


def user_scope(tenant_id: str, user_id: str) -> str:
    """The scope of one end user of a tenant, of bounded length whatever a client calls him."""
    name = quote(user_id, safe="@", errors="surrogatepass")
    if len(name) > _LONGEST_USER:
        # No encoded name holds a colon.
        name = f"sha256:{hashlib.sha256(user_id.encode(errors='surrogatepass')).hexdigest()}"
    return f"user:{_escaped(tenant_id)}/{name}"


def describe(limit: Limit) -> str:
    """A limit in words, e.g. `requests_per_minute of tenant acme`."""
    return f"{limit.kind} of {whose(limit.scope)}"


def whose(scope: str) -> str:
    """A scope in words, e.g. `user bob of tenant acme`."""
    what, _, name = scope.partition(":")
    first, slash, rest = name.partition("/")
    if what == "user" and slash:
        return f"user {_printable(rest)} of tenant {unquote(first)}"
    if what == "tenant":
        on = f" on tier {rest.removeprefix('tier:')}" if slash else ""
        return f"tenant {unquote(first)}{on}"
    return f"{what} {name}"


def amount_text(limit: Limit, amount: int) -> str:
    """An amount in a limit's unit: whole requests, tokens or slots, and dollars as in `$0.25`."""
    if not limit.kind.startswith("usd"):
        return str(amount)
    whole, _, part = f"{Decimal(amount) / _NANO:.9f}".partition(".")
    return f"${whole}.{part.rstrip('0'):0<2}"


def limit_as_json(limit: Limit) -> dict[str, Any]:
    """A limit as `--json` and the admin API show it; dollars are text, so that none is rounded."""
    return {
        "scope": limit.scope,
        "whose": whose(limit.scope),
        "kind": limit.kind,
        "limit": amount_as_json(limit, limit.most),
        "burst": limit.burst or None,
    }


def amount_as_json(limit: Limit, amount: int) -> int | str:
    """An amount in a limit's unit: a number, or dollars as text."""
    return amount_text(limit, amount).removeprefix("$") if limit.kind.startswith("usd") else amount


_UNNAMED = TenantConfig()


def _terms(tenant: TenantConfig) -> _TenantTerms:
    return _TenantTerms(
        each_key=_allowances(tenant.key_limits),
        each_user=_allowances(tenant.user_limits),
        classes=frozenset(tenant.classes),
        weight=tenant.weight,
    )


def _allowances(given: LimitSet) -> tuple[_Allowance, ...]:
    found = []
    for kind in LIMIT_KINDS:
        most = getattr(given, kind)
        if most is None:
            continue
        if kind.startswith("usd"):
            # Rounded down: never more than what is written.
            found.append(_Allowance(kind, int(most * _NANO), 0))
        else:
            burst = getattr(given, _BURST[kind]) or most if kind in _BURST else 0
            found.append(_Allowance(kind, most, burst))
    return tuple(found)


def _limits(scope: str, allowances: Iterable[_Allowance]) -> tuple[Limit, ...]:
    return tuple([Limit(scope, each.kind, each.most, each.burst) for each in allowances])


def _lowered(default: LatencyClass, allowed: frozenset[str]) -> LatencyClass:
    """The nearest class that is allowed, less urgent ones first."""
    at = CLASSES.index(default)
    for name in (*CLASSES[at + 1 :], *reversed(CLASSES[:at])):
        if name in allowed:
            return name
    raise PermissionDenied(
        "this key and its tenant have no latency class in common; ask for another key", code="latency_class_not_allowed"
    )


def _escaped(tenant_id: str) -> str:
    return tenant_id.replace("%", "%25").replace("/", "%2F")


def _printable(name: str) -> str:
    """A user id as it was given, unless it holds what should not reach a terminal or log."""
    plain = unquote(name)
    return plain if plain.isprintable() else name
