"""Limits of several gateways in one Redis or Valkey."""

from llmrouter.tenancy.redis_limits.store import RedisLimits, SpentSoFar

__all__ = ["RedisLimits", "SpentSoFar"]
