"""The one error tree; every class says how it looks to an HTTP client and to a shell.

RouterError
├── UsageError                2     wrong command line, wrong or contradictory configuration
│   ├── ArtefactError         2     a learned artefact that cannot be used
│   └── ConfigError           2
├── RequestError              400   the client's request is at fault; repeating it does not help
│   ├── UnsupportedParameter  400
│   ├── ContextLengthExceeded 400
│   ├── RequestTooLarge       413
│   ├── NotFound              404   unknown path
│   └── ModelNotFound         404   unknown tier
├── AuthenticationFailed      401
├── PermissionDenied          403
├── VersionConflict           409   somebody else published first
├── RateLimited               429
│   ├── LimitReached          429   a limit of the tenant, key, user, group or tier; time will help
│   └── BudgetSpent           429   a dollar budget, or a request larger than its whole limit; repeating will not help
├── NoCapacity                503   nothing can take the request now
├── StoreUnavailable          503   the ledger, key or rule store is down
├── Draining                  503
├── UpstreamFailed            502   the pools answered badly
│   └── UpstreamTimeout       504
├── ClientGone                499   never sent: the client hung up
└── InternalError             500   a bug of ours
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

__all__ = [
    "ArtefactError",
    "AuthenticationFailed",
    "BudgetSpent",
    "ClientGone",
    "ConfigError",
    "ContextLengthExceeded",
    "Draining",
    "InternalError",
    "LimitReached",
    "ModelNotFound",
    "NoCapacity",
    "NotFound",
    "PermissionDenied",
    "RateLimited",
    "RequestError",
    "RequestTimeout",
    "RequestTooLarge",
    "RouterError",
    "StoreUnavailable",
    "UnsupportedParameter",
    "UpstreamFailed",
    "UpstreamTimeout",
    "UsageError",
    "VersionConflict",
]


class RouterError(Exception):
    """Base of all errors that llmrouter raises on purpose.

    The message is shown to the client as it is: it names what was wrong, which value and what to do, and holds no
    secret and no other tenant's data.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str] = "internal_error"
    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.retry_after_s = retry_after_s
        self.details = details
        """More members of the error object, for machines."""

    def body(self) -> dict[str, Any]:
        """The OpenAI-style error object that clients parse."""
        own = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {**own, **(self.details or {})}}


class UsageError(RouterError):
    """The command line or a file given to it is wrong."""

    status = 400
    type = "invalid_request_error"
    default_code = "usage_error"
    exit_code = 2


class ArtefactError(UsageError):
    """An artefact cannot be used: incomplete, changed, of another version, or for other models."""

    default_code = "invalid_artefact"


class ConfigError(UsageError):
    """The configuration cannot be used; the message names the key and the file."""

    default_code = "invalid_config"


class RequestError(RouterError):
    """The client's request is at fault."""

    status = 400
    type = "invalid_request_error"
    default_code = "invalid_value"


class UnsupportedParameter(RequestError):
    """No model that may answer can honour a parameter of the request, or policy forbids it."""

    default_code = "unsupported_parameter"


class ContextLengthExceeded(RequestError):
    """The prompt, or prompt and output cap together, does not fit any model of the tier."""

    default_code = "context_length_exceeded"


class RequestTooLarge(RequestError):
    """The body is larger than the configured limit."""

    status = 413
    default_code = "request_too_large"


class RequestTimeout(RequestError):
    """The client did not send its body in time."""

    status = 408
    default_code = "request_timeout"
    retryable = True


class NotFound(RequestError):
    """The path does not exist."""

    status = 404
    default_code = "not_found"


class ModelNotFound(RequestError):
    """The logical model does not exist, or this key may not know of it."""

    status = 404
    default_code = "model_not_found"


class AuthenticationFailed(RouterError):
    """No valid API key came with the request."""

    status = 401
    type = "authentication_error"
    default_code = "invalid_api_key"


class PermissionDenied(RouterError):
    """The key is valid but lacks the scope."""

    status = 403
    type = "permission_error"
    default_code = "permission_denied"


class VersionConflict(RouterError):
    """A compare-and-set on the routing version lost against another publisher."""

    status = 409
    type = "invalid_request_error"
    default_code = "version_conflict"


class RateLimited(RouterError):
    """A limit of ours, or of every pool that could answer, is used up for now."""

    status = 429
    type = "rate_limit_error"
    default_code = "rate_limit_exceeded"
    retryable = True


class LimitReached(RateLimited):
    """A limit on requests, tokens or concurrency is used up for now."""


class BudgetSpent(RateLimited):
    """A dollar budget is used up, or the request is larger than the whole limit: repeating it does not help."""

    type = "insufficient_quota"
    default_code = "insufficient_quota"
    retryable = False


class NoCapacity(RouterError):
    """No pool can take the request now: queues full, breakers open, or the gateway sheds load."""

    status = 503
    default_code = "no_capacity"
    retryable = True


class StoreUnavailable(RouterError):
    """A store that the request needs is down; never reported as a bad key."""

    status = 503
    default_code = "store_unavailable"
    retryable = True


class Draining(RouterError):
    """This gateway is shutting down; another replica or a retry will answer."""

    status = 503
    default_code = "draining"
    retryable = True


class UpstreamFailed(RouterError):
    """Every attempt failed at the pools; the gateway has used up its own retries."""

    status = 502
    default_code = "upstream_error"


class UpstreamTimeout(UpstreamFailed):
    """The pools did not answer within the deadline."""

    status = 504
    default_code = "upstream_timeout"


class ClientGone(RouterError):
    """The client hung up; used for the books only."""

    status = 499
    default_code = "client_cancelled"


class InternalError(RouterError):
    """A bug of ours; the details are in the log, never in the answer."""

    retryable = True
