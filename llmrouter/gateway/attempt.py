"""One attempt: a slot in the model's pool, one call of one replica, and what came of it as an `Outcome`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any
from zlib import crc32

from llmrouter.backends.pool import Lease, Pool
from llmrouter.config import ClassesConfig, ModelConfig, TimeoutConfig
from llmrouter.errors import NoCapacity
from llmrouter.gateway.answer import Answer, JsonAnswer, StreamAnswer
from llmrouter.gateway.answers import (
    Refusal,
    read_completion,
    read_refusal,
    refusal_from_error,
    retry_after_s,
    stated_usage,
)
from llmrouter.gateway.output_cap import cap_to_send
from llmrouter.gateway.run import Run, Trial
from llmrouter.gateway.stream import StreamRewriter
from llmrouter.protocols import BackendFault, Reply, Timeouts
from llmrouter.types import ChatRequest, Failure, Outcome, Target

__all__ = ["ModelRoute", "attempt"]

_FAIR_S = 10.0
"""A call that its client's patience ended sooner than this is no failure of the replica: else a few clients with short
time-outs could open the breaker for everybody."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelRoute:
    """All that an attempt at one model needs."""

    model_id: str
    model: ModelConfig
    pool_id: str
    pool: Pool
    timeouts: TimeoutConfig
    clamp_output_tokens: bool
    keep_alive_s: float
    classes: ClassesConfig
    send_priority: bool


async def attempt(
    run: Run, target: Target, route: ModelRoute, *, cache_salt: str | None, now: Callable[[], float]
) -> tuple[Outcome, Answer | None]:
    """Try one target; failures come back as values.

    On success the answer is whole, or its first output has arrived; the caller delivers or discards it. Cancelling
    closes the call upstream, frees the slot and books the attempt as cancelled.
    """
    trial = run.begin(target, now())
    called_at = trial.started
    lease: Lease | None = None
    reply: Reply | None = None
    try:
        if target.wait_s > 0:
            await _pause(target.wait_s, run.deadline, now)
        lease = await _enter(run, trial, route, now)
        called_at = now()
        if called_at >= run.deadline:
            raise BackendFault(Failure.DEADLINE, "the request's deadline has passed")
        trial.request = _clamped(run, route)
        trial.called = True
        reply = await lease.replica.backend.open(
            trial.request,
            request_id=run.request_id,
            timeouts=_timeouts(run, route, called_at),
            cache_salt=cache_salt,
            priority=route.classes.of(run.latency_class).engine_priority if route.send_priority else None,
        )
        trial.status = reply.status
        if reply.status != 200:
            refusal = read_refusal(reply.status, await reply.read())
            return _failed(trial, refusal, reply, lease, now)
        if run.request.stream and run.request.endpoint != "embeddings":
            return await _begin_stream(run, trial, route, reply, lease, now)
        return await _read_whole(run, trial, reply, lease, now)
    except NoCapacity as error:
        return _ended(trial, Failure.NO_CAPACITY, now, message=error.message, retry_after=error.retry_after_s), None
    except BackendFault as fault:
        trial.called = trial.called and fault.failure is not Failure.CONNECT
        hasty = now() >= run.deadline and now() - called_at < _FAIR_S
        if hasty and fault.failure is Failure.CONNECT:
            fault = BackendFault(Failure.DEADLINE, fault.message)
        outcome = _ended(trial, fault.failure, now, message=fault.message)
        _release(lease, reply, Failure.DEADLINE if hasty else fault.failure)
        return outcome, None
    except BaseException:
        _ended(trial, Failure.CANCELLED, now)
        _release(lease, reply, Failure.CANCELLED)
        raise


async def _pause(wait_s: float, deadline: float, now: Callable[[], float]) -> None:
    until = now() + wait_s
    if until >= deadline:
        raise BackendFault(Failure.DEADLINE, "the deadline comes before the wait is over")
    # Timers may fire a little early (uvloop's by up to a millisecond), and the replica would not be ready then.
    while (left := until - now()) > 0:  # noqa: ASYNC110 - it waits for a time, not for an event
        await asyncio.sleep(left)


async def _enter(run: Run, trial: Trial, route: ModelRoute, now: Callable[[], float]) -> Lease:
    """A slot on a replica that this call has not tried yet, where there is one."""
    exclude = run.tried_replicas(route.model_id)
    affinity = crc32(run.request.conversation.encode())
    lease = route.pool.try_acquire(run.ticket, affinity=affinity, exclude=exclude)
    if lease is None:
        lease = await route.pool.acquire(run.ticket, affinity=affinity, exclude=exclude, deadline=run.deadline)
        trial.queue_s = now() - trial.started
    trial.pool_id = route.pool_id
    trial.replica = lease.replica.name
    return lease


async def _begin_stream(
    run: Run, trial: Trial, route: ModelRoute, reply: Reply, lease: Lease, now: Callable[[], float]
) -> tuple[Outcome, Answer | None]:
    """Read until the first output; role chunks and preambles before it commit nothing."""
    request = trial.request
    rewriter = StreamRewriter(
        chunk_id=_answer_id(run),
        created=run.created,
        model=request.model,
        include_usage=request.include_usage,
        n=request.n,
        chat=request.endpoint == "chat",
    )
    held = b""
    try:
        # Role chunks and comments are bytes but no output: they must not push the time limit out.
        async with asyncio.timeout(min(_first_byte_s(run, route), max(run.deadline - now(), 0.0))):
            while not rewriter.begun and not rewriter.over:
                block = await reply.next_block()
                held += rewriter.feed(block) if block else rewriter.drain()
                if not block:
                    break
    except TimeoutError:
        raise BackendFault(Failure.TIMEOUT, "no output within the time limit") from None
    if rewriter.error is not None:
        return _failed(trial, refusal_from_error(rewriter.error), reply, lease, now)
    if not rewriter.begun:
        reason = rewriter.malformed or "the stream ended before any output"
        return _failed(trial, Refusal(Failure.PROTOCOL, 502, reason, {}), reply, lease, now)
    lease.confirm()
    trial.first_output_at = run.first_output_at = now()
    answer = StreamAnswer(reply, rewriter, held, trial=trial, lease=lease, now=now, keep_alive_s=route.keep_alive_s)
    return Outcome(trial.target, status=200), answer


async def _read_whole(
    run: Run, trial: Trial, reply: Reply, lease: Lease, now: Callable[[], float]
) -> tuple[Outcome, Answer | None]:
    raw = await reply.read()
    envelope: dict[str, Any] = {"id": _answer_id(run), "created": run.created, "model": run.request.model}
    completion = read_completion(raw, trial.request, envelope=envelope)
    if isinstance(completion, Refusal):
        # The engine has worked for an answer that cannot be given, if it says so.
        usage = stated_usage(raw)
        if usage:
            trial.count(usage)
        return _failed(trial, completion, reply, lease, now)
    reply.close()
    lease.succeed()
    trial.ended = now()
    trial.count(completion.usage, output_chunks=0 if completion.usage else len(raw) // 4)
    return Outcome(trial.target, status=200), JsonAnswer(completion, trial)


def _failed(
    trial: Trial, refusal: Refusal, reply: Reply, lease: Lease, now: Callable[[], float]
) -> tuple[Outcome, None]:
    wait = retry_after_s(reply.header)
    trial.status = refusal.status
    outcome = _ended(
        trial,
        refusal.failure,
        now,
        message=refusal.message,
        retry_after=wait,
        error=refusal.error,
        status=refusal.status,
    )
    reply.close()
    lease.fail(refusal.failure, wait)
    return outcome, None


def _ended(
    trial: Trial,
    failure: Failure,
    now: Callable[[], float],
    *,
    message: str = "",
    retry_after: float | None = None,
    error: Mapping[str, Any] | None = None,
    status: int = 0,
) -> Outcome:
    trial.failure = failure
    trial.ended = now()
    if status == 0:
        # No status means that the call went out and broke: the engine may have read the prompt.
        trial.count(None)
    return Outcome(
        trial.target, failure=failure, status=status, message=message, retry_after_s=retry_after, error=error
    )


def _release(lease: Lease | None, reply: Reply | None, failure: Failure) -> None:
    if reply is not None:
        reply.close()
    if lease is None:
        return
    if failure in (Failure.CANCELLED, Failure.DEADLINE):
        lease.release()
    else:
        lease.fail(failure, None)


def _clamped(run: Run, route: ModelRoute) -> ChatRequest:
    """The request with an output cap that this model can honour."""
    request = run.request
    asked = request.max_output_tokens
    cap = cap_to_send(request, route.model, clamp=route.clamp_output_tokens, keep=run.keeps_reservation)
    run.clamped = None
    if cap == asked:
        return request
    if asked is not None and cap is not None:
        run.clamped = (asked, cap)
    return dataclasses.replace(request, max_output_tokens=cap)


def _first_byte_s(run: Run, route: ModelRoute) -> float:
    return route.classes.of(run.latency_class).first_byte_s or route.timeouts.first_byte_s


def _timeouts(run: Run, route: ModelRoute, now: float) -> Timeouts:
    configured = route.timeouts
    patience = run.deadline - now
    return Timeouts(
        connect_s=min(configured.connect_s, patience),
        first_byte_s=min(_first_byte_s(run, route), patience),
        between_chunks_s=configured.between_chunks_s,
        total_s=run.ends_by - now,
    )


def _answer_id(run: Run) -> str:
    prefix = {"chat": "chatcmpl", "completions": "cmpl", "embeddings": "embd"}[run.request.endpoint]
    return f"{prefix}-{run.request_id.removeprefix('req_')}"
