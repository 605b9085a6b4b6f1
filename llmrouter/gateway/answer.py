"""An answer that an attempt produced: held until the plan accepts it, then delivered, or discarded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import orjson

from llmrouter.backends.pool import Lease
from llmrouter.errors import RouterError, UpstreamFailed, UpstreamTimeout
from llmrouter.gateway.answers import Completion, client_usage, refusal_from_error
from llmrouter.gateway.choosing import for_client
from llmrouter.gateway.logprobs import LogprobFilter
from llmrouter.gateway.run import Run, Trial
from llmrouter.gateway.stream import KEEP_ALIVE, StreamRewriter
from llmrouter.gateway.whole_stream import events_of
from llmrouter.protocols import BackendFault, Reply
from llmrouter.quality.samples import Tap
from llmrouter.types import Failure

__all__ = ["Answer", "Client", "JsonAnswer", "StreamAnswer", "Tapped", "stream_rewriter"]


class Client(Protocol):
    """The client's side of one HTTP exchange."""

    async def start_stream(self) -> None:
        """Send status 200 and the headers of a stream: the commit point."""

    async def write(self, block: bytes) -> None:
        """Send bytes of a stream that has started; waits while the client reads slowly."""


class Tapped:
    """A client whose stream is kept for a sample as it goes by."""

    def __init__(self, client: Client, tap: Tap) -> None:
        self._client = client
        self._tap = tap

    async def start_stream(self) -> None:
        await self._client.start_stream()

    async def write(self, block: bytes) -> None:
        self._tap.add(block)
        await self._client.write(block)


class Answer(Protocol):
    """What the plan may accept."""

    async def deliver(self, run: Run, client: Client) -> Ending:
        """Commit and send all but the end.

        Raises:
            RouterError: the answer broke off after the commit point.
        """

    @property
    def trial(self) -> Trial:
        """The attempt that brought it."""

    @property
    def lasts(self) -> bool:
        """It is whole, so that a plan may come back to it."""

    def choose(self, choice: int) -> None:
        """Of several choices that were asked for, deliver this one to a client that wants one.

        Raises:
            IndexError: there is no such choice.
        """

    def discard(self, failure: Failure | None = None) -> None:
        """Nobody gets it; the call upstream is ended. Repeatable.

        Args:
            failure: why, where that is not the plan's choice of another answer.
        """


class Ending:
    """What is left to send once the call is in the books."""

    __slots__ = ("body", "tail")

    def __init__(self, *, body: bytes | None = None, tail: bytes = b"") -> None:
        self.body = body
        self.tail = tail


class JsonAnswer:
    """A whole answer; nothing of it is sent before it is in the books."""

    lasts = True

    def __init__(self, completion: Completion, trial: Trial, now: Callable[[], float]) -> None:
        self.trial = trial
        self._completion = completion
        self._now = now
        self._choice = 0

    async def deliver(self, run: Run, client: Client) -> Ending:
        trial = self.trial
        completion, usage = self._completion, trial.usage
        if trial.target.ask is not None and run.request.endpoint != "embeddings":
            completion, usage = for_client(
                completion, usage, client=run.request, asked=trial.target.ask, choice=self._choice
            )
            run.client_usage = usage if usage != trial.usage else None
        trial.committed = True
        run.finish = completion.finish_reason
        body = completion.body
        told = client_usage(completion.usage, usage)
        if run.request.stream and run.request.endpoint != "embeddings":
            return await self._stream(run, client, body, told)
        body["usage"] = told
        if run.request.endpoint == "embeddings":
            del told["completion_tokens"]
        # Written before it is booked: an answer that cannot be written must not be booked as given.
        return Ending(body=orjson.dumps(body))

    async def _stream(self, run: Run, client: Client, body: dict[str, Any], usage: dict[str, Any]) -> Ending:
        """For a client that asked for a stream: all of it at once, as a stream."""
        rewriter = stream_rewriter(run)
        events = b"".join(map(rewriter.feed, events_of(body)))
        if rewriter.failed or not rewriter.complete:
            raise UpstreamFailed(f"the answer cannot be streamed: {rewriter.malformed or 'it is not whole'}")
        run.first_output_at = self._now()
        try:
            async with asyncio.timeout(run.ends_by - self._now()):
                await client.start_stream()
                await client.write(events)
        except TimeoutError:
            raise _broken_off(Failure.TIMEOUT, "it took longer than a request may take") from None
        return Ending(tail=rewriter.end(usage))

    def choose(self, choice: int) -> None:
        choices = self._completion.body.get("choices", ())
        if choice and not 0 <= choice < len(choices):
            raise IndexError(f"the plan accepted choice {choice} of an answer that has {len(choices)}")
        self._choice = choice

    def discard(self, failure: Failure | None = None) -> None:  # noqa: ARG002 - its call has ended
        return None


class StreamAnswer:
    """A stream whose first output has arrived and is held back."""

    lasts = False

    def __init__(
        self,
        reply: Reply,
        rewriter: StreamRewriter,
        held: bytes,
        *,
        trial: Trial,
        lease: Lease,
        now: Callable[[], float],
        keep_alive_s: float,
    ) -> None:
        self._reply = reply
        self._rewriter = rewriter
        self._held = held
        self.trial = trial
        self._lease = lease
        self._now = now
        self._keep_alive_s = keep_alive_s

    async def deliver(self, run: Run, client: Client) -> Ending:
        self.trial.committed = True
        run.first_output_at = self._now()
        failure: Failure | None = Failure.CANCELLED
        try:
            # Over reads and writes alike: a client that stops reading holds up the writes.
            async with asyncio.timeout(run.ends_by - self._now()):
                await self._pass_on(client)
            failure = self._verdict()
        except BackendFault as fault:
            # Some engines finish every choice and then neither say so nor hang up; a cut is a cut all the same.
            silent = fault.failure is Failure.TIMEOUT and self._rewriter.complete and not self._rewriter.failed
            failure = None if silent else fault.failure
            if failure is not None:
                raise _broken_off(failure, fault.message) from fault
        except TimeoutError:
            failure = Failure.TIMEOUT
            raise _broken_off(failure, "it took longer than a request may take") from None
        finally:
            self._close(run, failure)
        if failure is not None:
            raise _broken_off(failure, self._fault_message())
        return Ending(tail=self._rewriter.end(client_usage(self._rewriter.usage, self.trial.usage)))

    async def _pass_on(self, client: Client) -> None:
        rewriter, next_block = self._rewriter, self._reply.next_block
        await client.start_stream()
        await client.write(self._held)
        keep_alive = _KeepAlive(client.write, self._keep_alive_s)
        try:
            while not rewriter.over:
                block = await next_block()
                if not block:
                    break
                out = rewriter.feed(block)
                if out:
                    keep_alive.touch()
                    await client.write(out)
        finally:
            keep_alive.stop()
        last = rewriter.drain()
        if last:
            await client.write(last)

    def choose(self, choice: int) -> None:
        """It has what the client asked for, so there is nothing to choose."""

    def discard(self, failure: Failure | None = None) -> None:
        if self.trial.ended is None:
            self._finish_trial(failure)
            self._reply.close()
            self._lease.succeed()

    def _verdict(self) -> Failure | None:
        if self._rewriter.error is not None:
            return refusal_from_error(self._rewriter.error).failure
        return None if self._rewriter.complete and self._rewriter.malformed is None else Failure.PROTOCOL

    def _fault_message(self) -> str:
        if self._rewriter.error is not None:
            return str(self._rewriter.error.get("message") or "the engine reported an error")
        return self._rewriter.malformed or "the answer ended before it was finished"

    def _close(self, run: Run, failure: Failure | None) -> None:
        run.finish = self._rewriter.finish_reason
        self._finish_trial(failure)
        self._reply.close(abort=failure is not None)
        if failure is None:
            self._lease.succeed()
        elif failure is Failure.CANCELLED or self._now() >= run.ends_by:
            # The client left, or the answer was too long for any replica.
            self._lease.release()
        else:
            self._lease.fail(failure, None)

    def _finish_trial(self, failure: Failure | None) -> None:
        trial = self.trial
        trial.ended = self._now()
        trial.failure = failure
        trial.count(self._rewriter.usage, self._rewriter.written)


class _KeepAlive:
    """Sends a comment when a committed stream has been silent, so that intermediaries keep the connection."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]], every_s: float) -> None:
        self._write = write
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._sending: asyncio.Future[None] | None = None
        self._timer = self._loop.call_later(every_s, self._check)

    def touch(self) -> None:
        self._last = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()

    def _check(self) -> None:
        silent = self._loop.time() - self._last
        if silent >= self._every_s:
            # While one waits for a client that reads slowly, another would only wait behind it.
            if self._sending is None or self._sending.done():
                self._sending = asyncio.ensure_future(self._write(KEEP_ALIVE))
            self._last = self._loop.time()
            silent = 0.0
        self._timer = self._loop.call_later(self._every_s - silent, self._check)


def stream_rewriter(run: Run, logprobs: LogprobFilter | None = None) -> StreamRewriter:
    """What makes the client's stream of an engine's."""
    request = run.request
    return StreamRewriter(
        chunk_id=run.answer_id,
        created=run.created,
        model=request.model,
        include_usage=request.include_usage,
        n=request.n,
        chat=request.endpoint == "chat",
        logprobs=logprobs,
    )


def _broken_off(failure: Failure, message: str) -> RouterError:
    kind = UpstreamTimeout if failure is Failure.TIMEOUT else UpstreamFailed
    return kind(f"the answer broke off: {message}")
