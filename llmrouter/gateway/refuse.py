"""What the client is told when every attempt of a plan failed."""

from __future__ import annotations

from llmrouter.errors import (
    ContextLengthExceeded,
    NoCapacity,
    RateLimited,
    RequestError,
    RouterError,
    UpstreamFailed,
    UpstreamTimeout,
)
from llmrouter.gateway.run import Run
from llmrouter.types import Failure, Outcome

__all__ = ["after"]

_SOON_S = 1.0
"""Retry hint where no engine gave one."""


def after(run: Run, last: Outcome) -> RouterError:
    """The error of a call whose last outcome was a failure.

    The engine's own words are passed on only where they concern the client's request.
    """
    tried = ", ".join(f"{t.target.model_id}: {t.failure}" for t in run.trials if t.failure is not None)
    if last.failure is Failure.BAD_REQUEST:
        error = last.error or {}
        param = error.get("param")
        code = error.get("code")
        return RequestError(
            last.message or "the engine refused the request",
            param=param if isinstance(param, str) else None,
            code=code if isinstance(code, str) and code else None,
        )
    if last.failure is Failure.CONTEXT:
        return ContextLengthExceeded(last.message or "the prompt does not fit the model's window", param="messages")
    if last.failure is Failure.RATE_LIMITED:
        wait = _SOON_S if last.retry_after_s is None else last.retry_after_s
        return RateLimited(f"every model that may answer is rate limited ({tried})", retry_after_s=wait)
    if last.failure in (Failure.NO_CAPACITY, Failure.OVERLOADED):
        wait = _SOON_S if last.retry_after_s is None else last.retry_after_s
        # Without a call the words are our own pool's, and name the limit that was met.
        why = f": {last.message}" if last.failure is Failure.NO_CAPACITY and last.message else ""
        return NoCapacity(f"no capacity now{why} ({tried})", retry_after_s=wait)
    if last.failure in (Failure.TIMEOUT, Failure.DEADLINE):
        return UpstreamTimeout(f"no answer in time ({tried})")
    return UpstreamFailed(f"every attempt failed ({tried})")
