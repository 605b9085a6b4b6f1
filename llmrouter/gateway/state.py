"""One immutable snapshot of everything a request reads; a reload builds a new one and swaps it in whole."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from llmrouter.config import Config
from llmrouter.errors import ModelNotFound, PermissionDenied
from llmrouter.gateway.artefacts import InForce
from llmrouter.gateway.attempt import ModelRoute
from llmrouter.gateway.drift_watch import DriftWatch
from llmrouter.gateway.tiers import Tier
from llmrouter.gateway.wire import Labeller
from llmrouter.pricing.book import PriceBook
from llmrouter.routing.verifier import Verifier
from llmrouter.tenancy.keys import KeyRing
from llmrouter.tenancy.limits import LimitBook
from llmrouter.types import Principal, RoutingVersion

__all__ = ["Keys", "State"]


class Keys:
    """The key ring with its clock."""

    def __init__(self, ring: KeyRing) -> None:
        self.ring = ring

    def authenticate(self, authorization: bytes | None) -> Principal:
        """Raises `AuthenticationFailed` for every bad key, `StoreUnavailable` when no key could ever be loaded."""
        return self.ring.authenticate(authorization, time.time())


@dataclass(frozen=True)
class State:
    """What the requests of one moment see."""

    version: int
    """Of the configuration: counts reloads since start."""
    config: Config
    routing: RoutingVersion
    keys: Keys
    tiers: Mapping[str, Tier]
    routes: Mapping[str, ModelRoute]
    """By model id."""
    prices: PriceBook
    reference_model: str
    limits: LimitBook
    label: Labeller | None
    learned: Mapping[str, InForce]
    """By tier, what each learned one goes by."""
    watches: Mapping[str, DriftWatch]
    """By tier, the drift monitors of those that are watched."""
    salt_secret: bytes = field(repr=False)
    verifiers: Mapping[str, Verifier] = field(default_factory=dict)
    """Those that the tiers name."""
    created: int = field(default_factory=lambda: int(time.time()))
    _salts: dict[tuple[str, frozenset[str]], str] = field(default_factory=dict, repr=False)

    def tier(self, name: str, principal: Principal) -> Tier:
        """The tier a client asked for.

        Raises:
            ModelNotFound: there is none of that name.
            PermissionDenied: the key may not use it.
        """
        tier = self.tiers.get(name)
        if tier is None:
            allowed = ", ".join(sorted(t for t in self.tiers if principal.may_use(t))) or "none"
            raise ModelNotFound(f"no model `{name[:128]}`; this key may use: {allowed}", param="model")
        if not principal.may_use(name):
            raise PermissionDenied(f"this key may not use `{name}`", param="model", code="model_not_allowed")
        return tier

    def cache_salt(self, principal: Principal) -> str:
        """Separates tenants and ACL scopes in an engine's prefix cache; tells nothing about either."""
        known = self._salts.get((principal.tenant_id, principal.acl))
        if known is None:
            scope = "\x1f".join((principal.tenant_id, *sorted(principal.acl)))
            known = hmac.new(self.salt_secret, scope.encode(), hashlib.sha256).hexdigest()[:32]
            self._salts[principal.tenant_id, principal.acl] = known
        return known
