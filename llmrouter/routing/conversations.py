"""Which role served a conversation last, so that a change of model pays for the prompt cache that it loses."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["ConversationMemory"]


class ConversationMemory:
    """The most recent conversations of one worker; the least recently used are forgotten first.

    Keys hold the tenant, so that one tenant's conversation id says nothing about another's.
    """

    def __init__(self, most: int = 20_000) -> None:
        self._most = most
        self._roles: OrderedDict[tuple[str, str], str] = OrderedDict()

    def role(self, tenant_id: str, conversation: str) -> str | None:
        """The role whose answer the conversation got last; None when that is not known."""
        return self._roles.get((tenant_id, conversation))

    def keep(self, tenant_id: str, conversation: str, role: str) -> None:
        """Note whose answer it got now."""
        key = (tenant_id, conversation)
        self._roles[key] = role
        self._roles.move_to_end(key)
        if len(self._roles) > self._most:
            self._roles.popitem(last=False)
