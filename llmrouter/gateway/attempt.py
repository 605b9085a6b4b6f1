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
from llmrouter.gateway.answer import Answer, JsonAnswer, StreamAnswer, stream_rewriter
from llmrouter.gateway.answers import (
    Refusal,
    read_completion,
    read_refusal,
    refusal_from_error,
    retry_after_s,
    stated_usage,
)
from llmrouter.gateway.logprobs import LogprobFilter
from llmrouter.gateway.observation import observe_prefix, observe_whole
from llmrouter.gateway.output_cap import cap_to_send
from llmrouter.gateway.run import Run, Trial
from llmrouter.gateway.stream import StreamRewriter
from llmrouter.protocols import BackendFault, Reply, Timeouts
from llmrouter.types import Failure, Hold, Outcome

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
    run: Run, trial: Trial, route: ModelRoute, *, cache_salt: str | None, now: Callable[[], float]
) -> tuple[Outcome, Answer | None]:
    """Make one call that `run.begin` has noted; failures come back as values.

    On success the answer is whole, or its first output has arrived, or as much as its target holds back; the caller
    delivers or discards it. Cancelling closes the call upstream, frees the slot and books the attempt as cancelled.
    """
    target = trial.target
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
        _clamp(trial, route, keep=run.keeps_reservation)
        trial.called = True
        reply = await lease.replica.backend.open(
            trial.request,
            request_id=run.request_id,
            timeouts=_timeouts(run, trial, route, called_at),
            cache_salt=cache_salt,
            priority=route.classes.of(run.latency_class).engine_priority if route.send_priority else None,
        )
        trial.status = reply.status
        if reply.status != 200:
            refusal = read_refusal(reply.status, await reply.read())
            return _failed(trial, refusal, reply, lease, now)
        if trial.streams:
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
    """A slot on a replica that has not failed this call yet, where there is one."""
    exclude = run.failed_replicas(route.model_id)
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
    """Read until the first output; role chunks and preambles before it commit nothing. Then hold back what is to be."""
    target = trial.target
    sees = target.observe or target.hold is not None
    logprobs = LogprobFilter(run.request, trial.request) if sees or target.ask is not None else None
    rewriter = stream_rewriter(run, logprobs)
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
    trial.first_output_at = now()
    if target.hold is not None:
        held += await _withhold(run, trial, target.hold, reply, rewriter, now)
        fault = _fault(rewriter)
        if fault is not None:
            trial.stated, trial.written = rewriter.usage, rewriter.written
            return _failed(trial, fault, reply, lease, now)
    seen = None
    if logprobs is not None:
        logprobs.keeps = False
        if sees:
            written, whole = rewriter.written, rewriter.complete
            seen = observe_prefix(held, logprobs.entries, rewriter.usage, written, whole=whole)
    answer = StreamAnswer(reply, rewriter, held, trial=trial, lease=lease, now=now, keep_alive_s=route.keep_alive_s)
    return Outcome(target, status=200, seen=seen), answer


async def _withhold(
    run: Run, trial: Trial, hold: Hold, reply: Reply, rewriter: StreamRewriter, now: Callable[[], float]
) -> bytes:
    """Read on until the plan can judge: so many tokens, the deadline, or the end.

    Parts of a tool call, or of several choices, tell nothing: those are held until their end or the deadline.
    """
    held: list[bytes] = []
    until = min(run.started + hold.deadline_s, run.deadline)
    try:
        async with asyncio.timeout(max(until - now(), 0.0)):
            while not rewriter.over and not rewriter.complete:
                if rewriter.written >= hold.tokens and run.request.n == 1 and not rewriter.calls_tools:
                    break
                block = await reply.next_block()
                if not block:
                    held.append(rewriter.drain())
                    rewriter.done = True
                    break
                held.append(rewriter.feed(block))
    except TimeoutError:
        pass
    except BaseException:
        trial.stated, trial.written = rewriter.usage, rewriter.written
        raise
    return b"".join(held)


def _fault(rewriter: StreamRewriter) -> Refusal | None:
    """What went wrong with a stream while it was held back."""
    if rewriter.error is not None:
        return refusal_from_error(rewriter.error)
    if rewriter.malformed is not None:
        return Refusal(Failure.PROTOCOL, 502, rewriter.malformed, {})
    if rewriter.done and not rewriter.complete:
        return Refusal(Failure.PROTOCOL, 502, "the answer ended before it was finished", {})
    return None


async def _read_whole(
    run: Run, trial: Trial, reply: Reply, lease: Lease, now: Callable[[], float]
) -> tuple[Outcome, Answer | None]:
    raw = await reply.read()
    envelope: dict[str, Any] = {"id": run.answer_id, "created": run.created, "model": run.request.model}
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
    seen = None
    if trial.target.observe and run.request.endpoint != "embeddings":
        seen = observe_whole(completion.body["choices"], trial.usage)
    return Outcome(trial.target, status=200, seen=seen), JsonAnswer(completion, trial, now)


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
    if status == 0 or trial.written:
        # No status means that the call went out and broke: the engine may have read the prompt.
        trial.count(trial.stated, trial.written)
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


def _clamp(trial: Trial, route: ModelRoute, *, keep: bool) -> None:
    """Lower the output cap to one that this model can honour."""
    request = trial.request
    asked = request.max_output_tokens
    cap = cap_to_send(request, route.model, clamp=route.clamp_output_tokens, keep=keep)
    if cap == asked:
        return
    if asked is not None and cap is not None:
        trial.clamped = (asked, cap)
    trial.request = dataclasses.replace(request, max_output_tokens=cap)


def _first_byte_s(run: Run, route: ModelRoute) -> float:
    return route.classes.of(run.latency_class).first_byte_s or route.timeouts.first_byte_s


def _timeouts(run: Run, trial: Trial, route: ModelRoute, now: float) -> Timeouts:
    configured = route.timeouts
    patience = run.deadline - now
    return Timeouts(
        connect_s=min(configured.connect_s, patience),
        first_byte_s=min(_first_byte_s(run, route), patience),
        between_chunks_s=configured.between_chunks_s,
        # A client that streams must have its first byte by its deadline, also where it is answered whole.
        total_s=run.ends_by - now if trial.streams else patience,
    )
