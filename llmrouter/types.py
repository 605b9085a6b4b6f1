"""The values that pass between the stages of a request; all frozen, none with behaviour beyond its own fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal, TypeVar, dataclass_transform

__all__ = [
    "Accepted",
    "Admission",
    "Attempt",
    "Bound",
    "BoundedCall",
    "ChatRequest",
    "Decision",
    "Endpoint",
    "Exceeded",
    "Failure",
    "Hold",
    "LatencyClass",
    "LedgerEntry",
    "Limit",
    "LimitKind",
    "Observation",
    "Outcome",
    "Price",
    "Principal",
    "Reservation",
    "Role",
    "RoutingVersion",
    "Rule",
    "Spent",
    "Standing",
    "Target",
    "TokenSignals",
    "Usage",
    "value",
]

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """A frozen dataclass with slots, frozen by the type checker alone.

    At run time `frozen=True` sets every field through `object.__setattr__`: a request makes some twenty values with
    over a hundred fields, and a quarter of its instructions were spent in their `__init__`. The strict type check,
    which covers all code and tests, refuses an assignment just as well.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


Role = Literal["small", "large", "frontier", "peer"]
Endpoint = Literal["chat", "completions", "embeddings"]
LatencyClass = Literal["interactive", "standard", "batch"]
LimitKind = Literal[
    "requests_per_minute",
    "tokens_per_minute",
    "concurrent_requests",
    "usd_per_hour",
    "usd_per_day",
    "usd_per_month",
]


@value
class Limit:
    """One limit that a request counts against."""

    scope: str
    """Whose it is: `user:TENANT/USER`, `key:ID`, `tenant:ID/tier:TIER`, `tenant:ID`, `group:ID` or `tier:ID`."""
    kind: LimitKind
    most: int
    """Requests, tokens or slots; for `usd_*` whole nano-dollars (1e-9 USD)."""
    burst: int = 0
    """Rates only: how much may be taken at once after a quiet time."""


@value
class Principal:
    """Who asks, as the verified key says; nothing else in a request is identity."""

    tenant_id: str
    key_id: str
    tiers: frozenset[str] | None = None
    """Logical models the key may use; None means all."""
    admin: bool = False
    acl: frozenset[str] = frozenset()
    """Labels of the permissions that may have coloured a request's context; part of every cache scope."""
    limits: tuple[Limit, ...] = ()
    """The key's own limits; those of its tenant and group come from the configuration."""
    classes: frozenset[str] | None = None
    """Latency classes the key may ask for; None means those of its tenant."""
    latency_class: LatencyClass | None = None
    """The class of requests that ask for none; None means the tier's."""
    user_id: str | None = None
    """The one end user whom the key stands for; it wins over what a request says."""

    def may_use(self, tier: str) -> bool:
        return self.tiers is None or tier in self.tiers


@value
class ChatRequest:
    """One parsed request. `fields` is the client's JSON object as it came; nobody edits it.

    The other attributes are what routing and limits need to know, read once by `gateway.wire`.
    """

    endpoint: Endpoint
    model: str
    """The logical tier asked for."""
    fields: Mapping[str, Any]
    stream: bool = False
    include_usage: bool = False
    """The client itself asked for the usage chunk of a stream."""
    max_output_tokens: int | None = None
    n: int = 1
    needs: frozenset[str] = frozenset()
    """Capabilities a model must have to honour every parameter, e.g. `tools`, `vision`, `json_schema`, `logprobs`."""
    text_bytes: int = 0
    """UTF-8 bytes of all text that becomes prompt tokens; the token bound derives from it."""
    message_count: int = 0
    media_parts: int = 0
    last_user_text: str = ""
    conversation: str = ""
    """What a canary sticks to: the client's conversation id, else a digest of how the conversation begins."""
    intent: str = "unknown"
    tags: Mapping[str, str] = field(default_factory=dict)
    deadline_s: float | None = None
    """Seconds the client will wait, if it said so."""
    user_id: str | None = None
    """The end user as the request names him: header `x-llmrouter-user`, else `safety_identifier`, else `user`."""
    role: str | None = None
    """The role the client insists on, by the header `x-llmrouter-role`: `small`, `large` or `frontier`."""
    latency_class: LatencyClass | None = None
    """What the request asks for: header `x-llmrouter-class`, else its `service_tier`; None where it says neither."""

    def input_tokens_bound(self, bytes_per_token: float) -> int:
        """A conservative count of prompt tokens: text by bytes, 8 a message for the template, 1,500 a media part."""
        return int(self.text_bytes / bytes_per_token) + 1 + 8 * self.message_count + 1500 * self.media_parts


@value
class Usage:
    """Tokens of one call. `cached` and `cache_write` are parts of `input`, `reasoning` is a part of `output`."""

    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False
    """True when the engine reported nothing and the gateway counted chunks or bytes."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.output_tokens + other.output_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.estimated or other.estimated,
        )


@value
class Price:
    """What one model costs from a date on: list prices per million tokens, or GPU time of an own pool.

    The row is kept with the ledger entry as `price_id`, so a later change never re-prices the past.
    """

    price_id: str
    """Stable name of the row: source, model and start date, e.g. `genai-prices:openai/gpt-4o@2026-12-01`."""
    input_usd_per_mtok: Decimal = Decimal(0)
    cached_usd_per_mtok: Decimal = Decimal(0)
    cache_write_usd_per_mtok: Decimal = Decimal(0)
    output_usd_per_mtok: Decimal = Decimal(0)
    gpu_usd_per_hour: Decimal | None = None
    """Set for an own pool; then the two `pool_s` rates price GPU time and the list prices are unused."""
    gpus: int = 1
    input_pool_s_per_token: Decimal = Decimal(0)
    output_pool_s_per_token: Decimal = Decimal(0)


class Failure(StrEnum):
    """Why an attempt gave no answer; policies match on this, never on an exception class."""

    CONNECT = "connect"
    RESET = "reset"
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    SERVER = "server_error"
    REFUSED = "refused"
    """The pool refused the gateway itself (401, 403, 404): our key or model name is wrong there."""
    BAD_REQUEST = "bad_request"
    """The engine says that the client's request is wrong; no other model would take it."""
    CONTEXT = "context_length"
    PROTOCOL = "protocol"
    """Bytes that are not an answer: bad JSON, an error inside a 200, an end without a finish."""
    NO_CAPACITY = "no_capacity"
    """Nothing was called: no healthy replica, every breaker open, or the queue is full."""
    DEADLINE = "deadline"
    """Nothing was called: the request's own deadline has passed."""
    CANCELLED = "client_cancelled"


@value
class Hold:
    """A hold-back window: how much of a streamed answer is withheld until its plan has judged it."""

    tokens: int
    """Judge it after so many output tokens,"""
    deadline_s: float
    """or so many seconds after the request came in, if any output has arrived by then, or at its end."""


@value
class Target:
    """One step of a plan: call this model."""

    model_id: str
    role: str
    reason: str
    """Why this model, in words for `explain` and the ledger, e.g. `rule:code-to-large` or `fallback:timeout`."""
    wait_s: float = 0.0
    """Seconds to wait before the call, e.g. an engine's Retry-After."""
    ask: ChatRequest | None = None
    """What is sent instead of the client's request: more choices, log-probabilities, a question about an answer."""
    observe: bool = False
    """The plan wants to see the answer, as `Outcome.seen`."""
    hold: Hold | None = None
    """Of a stream: withhold so much; `seen` then tells of the prefix. A stream without it is observed at its first
    output."""
    verifier: str | None = None
    """Name of the verifier that is to score the answer's text, as `Observation.verdict`."""
    beside: tuple[Target, ...] = ()
    """Further calls made at the same time, whole answers each; the outcomes come together, in this order. None of them
    has a `beside` of its own, and none streams."""
    linger_s: float | None = None
    """How long those beside may go on when this call has ended; then they are cancelled and count as timed out. None
    waits for them until the request's deadline."""
    paced: bool = False
    """This call itself and those beside it may take as long as the slowest call that has been answered, and `linger_s`
    more; then they are cancelled and count as timed out."""


@value
class TokenSignals:
    """What the log-probabilities (natural, of the tokens seen so far) of one answer say; None where not reported."""

    tokens: int
    mean_logprob: float
    min_logprob: float
    first_logprob: float
    """Mean of the first five tokens."""
    mean_margin: float | None = None
    """Mean difference between the best and the second-best token."""
    mean_entropy: float | None = None
    """Mean entropy in nats over the reported alternatives, renormalised."""


@value
class Observation:
    """What a plan may see of an answer; a held-back stream is one choice whose text is not over."""

    texts: tuple[str, ...]
    """Of each choice, by index; `""` where it has none."""
    finish: tuple[str | None, ...]
    """Finish reason of each choice; None while it goes on."""
    tool_calls: tuple[tuple[tuple[str, str], ...], ...] = ()
    """Of each choice: name and arguments (JSON text, as the model wrote it) of each call."""
    refused: tuple[bool, ...] = ()
    """The engine itself marks the choice as a refusal."""
    signals: tuple[TokenSignals | None, ...] = ()
    first_token: Mapping[str, float] = field(default_factory=dict)
    """Log-probability of each reported alternative of the first choice's first token."""
    usage: Usage = Usage()
    whole: bool = True
    verdict: float | None = None
    """A verifier's score of the first choice, from 0 to 1; None where none was asked or it gave none."""


@value
class Outcome:
    """What came of one step, as it is sent back into the plan; failures are values here, not exceptions."""

    target: Target
    failure: Failure | None = None
    status: int = 0
    message: str = ""
    retry_after_s: float | None = None
    error: Mapping[str, Any] | None = None
    """The engine's own error object, for a client-side fault that must be passed on."""
    seen: Observation | None = None
    """Where the target asked to observe and there is an answer."""
    beside: tuple[Outcome, ...] = ()
    """Of `target.beside`, in that order."""

    @property
    def ok(self) -> bool:
        return self.failure is None


@value
class Accepted:
    """The answer that a plan settles on, where that is not simply the last one."""

    outcome: Outcome
    """One that was sent into the plan or lay in a `beside`; it is `ok`, and no stream that the plan left behind."""
    choice: int = 0
    """Which of its choices, where the request was asked with more than the client wants."""
    reason: str = ""
    """Replaces the target's reason in the ledger and in the headers."""
    check: str = ""
    """What the checks said, in one short line for the ledger and the headers, e.g. `agreement 3/4 0.93`."""


@value
class BoundedCall:
    """The worst case of one model in a plan; tokens are those of a single call."""

    model_id: str
    calls: int
    input_tokens: int
    output_tokens: int


@value
class Bound:
    """Worst case of a whole plan, for reservations; `PriceBook.bound_usd` prices it."""

    calls: tuple[BoundedCall, ...]
    repeats: int = 0
    """Further calls, each of any one of the models."""

    @property
    def attempts(self) -> int:
        return sum(each.calls for each in self.calls) + self.repeats

    @property
    def input_tokens(self) -> int:
        """Prompt tokens of all attempts together."""
        longest = max((each.input_tokens for each in self.calls), default=0)
        return sum(each.calls * each.input_tokens for each in self.calls) + self.repeats * longest

    @property
    def output_tokens(self) -> int:
        """Written tokens of all attempts together."""
        longest = max((each.output_tokens for each in self.calls), default=0)
        return sum(each.calls * each.output_tokens for each in self.calls) + self.repeats * longest


@value
class Reservation:
    """The worst case of one call, set aside before it: durable before any engine is asked."""

    request_id: str
    ts: datetime
    tenant_id: str
    key_id: str
    user_id: str | None
    endpoint: str
    tier: str
    latency_class: LatencyClass
    model_id: str
    """The model that the plan starts with; an orphan is booked on it."""
    price_id: str
    routing_version: int
    config_version: int
    stream: bool
    tags: Mapping[str, str]
    input_tokens: int
    output_tokens: int
    cost_usd: Decimal
    expires_at: datetime
    """By then the call has ended, whatever happened."""
    limits: tuple[Limit, ...] = ()
    """All that it counts against, the innermost scope first."""
    degraded_to: str | None = None
    """The cheaper tier that serves it because a budget is spent."""

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@value
class Spent:
    """What a call really used; settles its reservation."""

    tokens: int = 0
    cost_usd: Decimal = Decimal(0)
    requests: int = 1
    """0 gives the request itself back: nothing was called."""


@value
class Standing:
    """Where a limit stands after a reservation."""

    limit: Limit
    remaining: int
    """In the limit's unit, what could still be reserved now."""
    reset_s: float
    """Seconds until all of it is there again if nothing else comes."""


@value
class Exceeded:
    """The limit that refused a reservation; of several, the one that lasts longest."""

    limit: Limit
    current: int
    """What was used or set aside when it was asked, in the limit's unit."""
    wanted: int
    """What the reservation needed of it."""
    reset_s: float | None
    """Seconds until it would fit if nothing else came; None for one that is larger than the whole limit."""
    reserved: int = 0
    """Of a dollar limit: the part of `current`, as far as is known, that calls under way have set aside and that comes
    back unless they use it."""

    @property
    def passes(self) -> bool:
        """Whether it might fit when calls under way have ended."""
        return self.reset_s is not None and self.current - self.reserved + self.wanted <= self.limit.most


@value
class Admission:
    """The answer to a reservation: taken whole, or refused and nothing taken."""

    exceeded: Exceeded | None = None
    standings: tuple[Standing, ...] = ()
    """Of the rate limits, when admitted."""


@value
class Decision:
    """Why a plan starts where it does."""

    strategy: str
    reason: str
    rule_id: str | None = None
    routing_version: int = 0
    route: str = ""
    """What a learned policy chose: a role, or `cascade`; empty for plain rules."""
    score: float | None = None
    """Its prediction, before any call, that the first model's answer is good."""


@value
class Rule:
    """Send what matches to a model; the highest priority whose match holds wins, equals share by weight."""

    rule_id: str
    match: Mapping[str, Any]
    model_id: str | None = None
    tier_role: str | None = None
    weight: float = 1.0
    priority: int = 0


@value
class RoutingVersion:
    """An immutable, numbered set of rules, with what the learned tiers go by."""

    version: int
    rules: tuple[Rule, ...]
    created_at: datetime
    author: str
    note: str = ""
    base_version: int = 0
    rolled_back_to: int | None = None
    artefact_digest: str | None = None
    """Of the published artefact; None leaves learned tiers the generic one."""
    point: int | None = None
    """Which of the artefact's operating points is in force; None is the one that it was trained to choose."""


@value
class Attempt:
    """One call of one replica, as it goes into the books."""

    seq: int
    model_id: str
    pool_id: str
    replica: str
    role: str
    reason: str
    outcome: str
    """`ok`, or a `Failure` value."""
    status: int
    usage: Usage
    cost_usd: Decimal
    price_id: str
    queue_s: float
    ttft_s: float | None
    total_s: float
    committed: bool = False
    """Whether this attempt's bytes are what the client got."""


@value
class LedgerEntry:
    """One logical call with all its attempts; written once, never updated."""

    request_id: str
    ts: datetime
    tenant_id: str
    key_id: str
    endpoint: str
    tier: str
    model_id: str | None
    """The model whose answer the client got; None when none did."""
    strategy: str
    reason: str
    rule_id: str | None
    routing_version: int
    config_version: int
    intent: str
    tags: Mapping[str, str]
    stream: bool
    status: int
    """HTTP status of the call; 499 when the client left."""
    finish: str | None
    """Finish reason of the answer, or None."""
    error_code: str | None
    aborted: bool
    """The client left before the end."""
    usage: Usage
    """Tokens of all attempts together."""
    cost_usd: Decimal
    """Dollars of all attempts together."""
    reference_model_id: str | None
    reference_cost_usd: Decimal | None
    """What the committed answer's tokens would have cost on the reference model."""
    queue_s: float
    ttft_s: float | None
    total_s: float
    attempts: tuple[Attempt, ...] = ()
    latency_class: LatencyClass = "standard"
    user_id: str | None = None
    degraded_to: str | None = None
    """The cheaper tier that served it because a budget was spent; `tier` is the one that was asked for."""
    route: str = ""
    """What a learned policy chose, as `Decision.route`."""
    score: float | None = None
    """What it expected of the first model's answer, as `Decision.score`."""
    checks: str = ""
    """What the checks of the answer said, as `Accepted.check`."""

    def spent(self) -> Spent:
        """What settles this call's reservation."""
        called = any(attempt.replica or attempt.outcome == "unknown" for attempt in self.attempts)
        return Spent(self.usage.input_tokens + self.usage.output_tokens, self.cost_usd, int(called))
