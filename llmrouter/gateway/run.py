"""The record of one logical call while it is under way, and the ledger entry it ends as."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from llmrouter.backends.waiting import Ticket
from llmrouter.pricing.book import PriceBook
from llmrouter.pricing.cost import normalise_usage
from llmrouter.types import (
    Accepted,
    Attempt,
    ChatRequest,
    Decision,
    Failure,
    LatencyClass,
    LedgerEntry,
    Principal,
    Standing,
    Target,
    Usage,
)

__all__ = ["Run", "Trial", "new_request_id"]

_ANYBODY = Ticket()

_SENT = frozenset({Failure.TIMEOUT, Failure.RESET, Failure.PROTOCOL, Failure.CANCELLED})
"""Failures after which the engine may have worked on the prompt."""


def new_request_id() -> str:
    """A fresh id; those of one moment are neighbours, which keeps the ledger's index dense."""
    return f"req_{int(time.time() * 1000):012x}{os.urandom(7).hex()}"


@dataclass(slots=True)
class Trial:
    """One attempt while it is under way."""

    seq: int
    target: Target
    request: ChatRequest
    """As it is sent to this model: the output cap may be clamped."""
    started: float
    streams: bool = False
    pool_id: str = ""
    replica: str = ""
    queue_s: float = 0.0
    called: bool = False
    """The request went out to the replica."""
    first_output_at: float | None = None
    ended: float | None = None
    failure: Failure | None = None
    status: int = 0
    usage: Usage = field(default_factory=Usage)
    stated: dict[str, Any] | None = None
    """The engine's own usage of an answer that was cut while it was held back."""
    written: int = 0
    """Output tokens that were seen of it."""
    clamped: tuple[int, int] | None = None
    """Output cap asked for and cap sent, where they differ."""
    committed: bool = False
    alerts: tuple[str, ...] = ()
    """Names of usage invariants that the engine broke."""

    def count(self, raw: dict[str, Any] | None, output_chunks: int = 0) -> None:
        """Take over the engine's usage, or an estimate where it gave none and may have worked."""
        if raw is not None:
            self.usage, self.alerts = normalise_usage(raw)
            cut_short = self.failure is not None and self.usage.output_tokens < output_chunks
            if self.usage != Usage() and not cut_short:
                return
        # Nothing, zeros, or a count from before the answer broke off: what was seen is nearer the truth.
        if self.called and (output_chunks or self.failure is None or self.failure in _SENT):
            self.usage = Usage(
                input_tokens=self.request.input_tokens_bound(4.0), output_tokens=output_chunks, estimated=True
            )


@dataclass(slots=True)
class Run:
    """One logical call from admission to its ledger entry."""

    request_id: str
    ts: datetime
    started: float
    request: ChatRequest
    principal: Principal
    config_version: int
    deadline: float
    """When the client's patience ends, on the clock of `started`: by then a stream must have begun and any other
    answer be whole."""
    ends_by: float
    """When a stream is cut off."""
    latency_class: LatencyClass = "standard"
    may_spill: bool = True
    """Its class may go to hosted pools."""
    ticket: Ticket = _ANYBODY
    """What pools order it by."""
    tier_id: str = ""
    """The tier that serves it; another than the one asked for when it was degraded."""
    keeps_reservation: bool = False
    """A limit counts its tokens or dollars, so no engine may write more than was reserved."""
    standings: tuple[Standing, ...] = ()
    decision: Decision | None = None
    trials: list[Trial] = field(default_factory=list)
    first_output_at: float | None = None
    answering: Trial | None = None
    """The attempt whose answer the plan accepted."""
    accepted: Accepted | None = None
    """What the plan said of it, where it said anything."""
    client_usage: Usage | None = None
    """What the client is told that it used, where that is not all that the accepted attempt did."""
    finish: str | None = None
    status: int = 200
    error_code: str | None = None
    aborted: bool = False
    cost_usd: Decimal | None = None
    """Known once the call is in the books."""

    @classmethod
    def open(
        cls,
        *,
        request_id: str,
        request: ChatRequest,
        principal: Principal,
        config_version: int,
        longest_s: float,
        now: Callable[[], float],
        latency_class: LatencyClass = "standard",
        may_spill: bool = True,
    ) -> Run:
        started = now()
        patience = min(longest_s, request.deadline_s or longest_s)
        return cls(
            request_id=request_id,
            ts=datetime.now(UTC),
            started=started,
            request=request,
            principal=principal,
            config_version=config_version,
            deadline=started + patience,
            ends_by=started + (longest_s if request.stream else patience),
            latency_class=latency_class,
            may_spill=may_spill,
            tier_id=request.model,
        )

    @property
    def user_id(self) -> str | None:
        """The end user: the key's own, else the one that the request names."""
        return self.principal.user_id or self.request.user_id

    @property
    def degraded_to(self) -> str | None:
        return self.tier_id if self.tier_id != self.request.model else None

    @property
    def created(self) -> int:
        return int(self.ts.timestamp())

    @property
    def answer_id(self) -> str:
        prefix = {"chat": "chatcmpl", "completions": "cmpl", "embeddings": "embd"}[self.request.endpoint]
        return f"{prefix}-{self.request_id.removeprefix('req_')}"

    def begin(self, target: Target, now: float, *, whole: bool = False) -> Trial:
        """Note a call that is about to be made.

        Args:
            whole: never stream it. A plan's own question is not streamed either where the client could not be given
                that stream: it did not ask for one, or for other choices.
        """
        request = self.request if target.ask is None else target.ask
        if request.stream and (whole or not self.request.stream or request.n != self.request.n):
            request = _unstreamed(request)
        streams = request.stream and request.endpoint != "embeddings"
        trial = Trial(len(self.trials) + 1, target, request, now, streams)
        self.trials.append(trial)
        return trial

    def failed_replicas(self, model_id: str) -> list[str]:
        """Those that gave this call no answer; one that did has the prompt in its cache."""
        return [
            trial.replica
            for trial in self.trials
            if trial.failure is not None and trial.replica and trial.target.model_id == model_id
        ]

    def committed(self) -> Trial | None:
        return next((trial for trial in self.trials if trial.committed), None)

    def overhead_s(self, now: float) -> float:
        """Time that was ours: neither queueing nor waiting for an engine."""
        upstream = _covered([(trial.started, trial.ended or now) for trial in self.trials])
        return max(now - self.started - upstream, 0.0)

    @property
    def reason(self) -> str:
        """Why the answer is the one that it is; before there is one, why the plan starts where it does."""
        if self.accepted is not None and self.accepted.reason:
            return self.accepted.reason
        if self.answering is not None:
            return self.answering.target.reason
        return self.decision.reason if self.decision is not None else ""

    def entry(self, prices: PriceBook, reference_model: str, now: float) -> LedgerEntry:
        """Close the books of this call."""
        attempts = tuple(_attempt(trial, prices, now) for trial in self.trials)
        winner = self.committed()
        reference_cost = _reference_cost(attempts, self.client_usage, prices, reference_model)
        decision = self.decision or Decision(strategy="", reason="")
        if len(attempts) == 1:
            usage, cost = attempts[0].usage, attempts[0].cost_usd
        else:
            usage = sum((attempt.usage for attempt in attempts), Usage())
            cost = sum((attempt.cost_usd for attempt in attempts), Decimal(0))
        return LedgerEntry(
            request_id=self.request_id,
            ts=self.ts,
            tenant_id=self.principal.tenant_id,
            key_id=self.principal.key_id,
            endpoint=self.request.endpoint,
            tier=self.request.model,
            model_id=winner.target.model_id if winner is not None else None,
            strategy=decision.strategy,
            reason=self.reason if winner is not None else decision.reason,
            rule_id=decision.rule_id,
            routing_version=decision.routing_version,
            config_version=self.config_version,
            intent=self.request.intent,
            tags=self.request.tags,
            stream=self.request.stream,
            status=self.status,
            finish=self.finish,
            error_code=self.error_code,
            aborted=self.aborted,
            usage=usage,
            cost_usd=cost,
            reference_model_id=reference_model,
            reference_cost_usd=reference_cost,
            queue_s=_covered([(trial.started, trial.started + trial.queue_s) for trial in self.trials]),
            ttft_s=self.first_output_at - self.started if self.first_output_at is not None else None,
            total_s=now - self.started,
            attempts=attempts,
            latency_class=self.latency_class,
            user_id=self.user_id,
            degraded_to=self.degraded_to,
            route=decision.route,
            score=decision.score,
            checks=self.accepted.check if self.accepted is not None else "",
        )


def _unstreamed(request: ChatRequest) -> ChatRequest:
    fields = {name: given for name, given in request.fields.items() if name not in ("stream", "stream_options")}
    return replace(request, fields=fields, stream=False, include_usage=False)


def _reference_cost(
    attempts: tuple[Attempt, ...], told: Usage | None, prices: PriceBook, reference_model: str
) -> Decimal | None:
    """What the tokens that the client got cost on the reference model."""
    for attempt in attempts:
        if attempt.committed:
            same = attempt.model_id == reference_model and told is None
            return attempt.cost_usd if same else prices.cost(reference_model, told or attempt.usage)
    return None


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Seconds that lie in at least one of several spans, given as start and end."""
    if len(spans) == 1:
        return spans[0][1] - spans[0][0]
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return covered


def _attempt(trial: Trial, prices: PriceBook, now: float) -> Attempt:
    model_id = trial.target.model_id
    return Attempt(
        seq=trial.seq,
        model_id=model_id,
        pool_id=trial.pool_id,
        replica=trial.replica,
        role=trial.target.role,
        reason=trial.target.reason,
        outcome=trial.failure.value if trial.failure is not None else "ok",
        status=trial.status,
        usage=trial.usage,
        cost_usd=prices.cost(model_id, trial.usage),
        price_id=prices.price(model_id, trial.usage.input_tokens).price_id,
        queue_s=trial.queue_s,
        ttft_s=trial.first_output_at - trial.started if trial.first_output_at is not None else None,
        total_s=(trial.ended or now) - trial.started,
        committed=trial.committed,
    )
