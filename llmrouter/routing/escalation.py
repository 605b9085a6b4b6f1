"""A cap on how many of a tenant's requests may be escalated, so that crafted prompts cannot move all of them upwards.

Short adversarial prefixes can make any learned router choose the strong model (arXiv 2501.01818). The cap does not
judge prompts: it bounds the damage.
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["EscalationShare"]

_MOST_TENANTS = 10_000


class EscalationShare:
    """A token bucket a tenant: each request brings `share` of an escalation, each escalation takes one.

    Over any run of n requests of one tenant at most `share * n + burst` are escalated. Counts are those of one worker.
    """

    def __init__(self, share: float, burst: float = 20.0) -> None:
        self.share = share
        self._burst = burst
        self._left: OrderedDict[str, float] = OrderedDict()

    def came(self, tenant_id: str) -> None:
        """A request came in."""
        self._left[tenant_id] = min(self._burst, self._left.get(tenant_id, self._burst) + self.share)
        self._left.move_to_end(tenant_id)
        if len(self._left) > _MOST_TENANTS:
            self._left.popitem(last=False)

    def take(self, tenant_id: str) -> bool:
        """Take one escalation; False when the tenant has none left."""
        if self.share >= 1:
            return True
        left = self._left.get(tenant_id, self._burst)
        if left < 1:
            return False
        self._left[tenant_id] = left - 1
        return True
