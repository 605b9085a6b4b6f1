"""An answer that an attempt produced: held until the plan accepts it, then delivered, or discarded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import orjson

from llmrouter.backends.pool import Lease
from llmrouter.errors import RouterError, UpstreamFailed, UpstreamTimeout
from llmrouter.gateway.answers import Completion, client_usage, refusal_from_error
from llmrouter.gateway.run import Run, Trial
from llmrouter.gateway.stream import KEEP_ALIVE, StreamRewriter
from llmrouter.protocols import BackendFault, Reply
from llmrouter.quality.samples import Tap
from llmrouter.types import Failure

__all__ = ["Answer", "Client", "JsonAnswer", "StreamAnswer", "Tapped"]


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

    def discard(self) -> None:
        """The plan chose another answer; the call upstream is ended."""


class Ending:
    """What is left to send once the call is in the books."""

    __slots__ = ("body", "tail")

    def __init__(self, *, body: bytes | None = None, tail: bytes = b"") -> None:
        self.body = body
        self.tail = tail


class JsonAnswer:
    """A whole answer; nothing of it is sent before it is in the books."""

    def __init__(self, completion: Completion, trial: Trial) -> None:
        self._completion = completion
        self._trial = trial

    async def deliver(self, run: Run, client: Client) -> Ending:  # noqa: ARG002 - nothing goes out yet
        self._trial.committed = True
        run.finish = self._completion.finish_reason
        body = self._completion.body
        usage = body["usage"] = client_usage(self._completion.usage, self._trial.usage)
        if run.request.endpoint == "embeddings":
            del usage["completion_tokens"]
        # Written before it is booked: an answer that cannot be written must not be booked as given.
        return Ending(body=orjson.dumps(body))

    def discard(self) -> None:
        return None


class StreamAnswer:
    """A stream whose first output has arrived and is held back."""

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
        self._trial = trial
        self._lease = lease
        self._now = now
        self._keep_alive_s = keep_alive_s

    async def deliver(self, run: Run, client: Client) -> Ending:
        self._trial.committed = True
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
        return Ending(tail=self._rewriter.end(client_usage(self._rewriter.usage, self._trial.usage)))

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

    def discard(self) -> None:
        self._finish_trial(Failure.CANCELLED)
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
        trial = self._trial
        trial.ended = self._now()
        trial.failure = failure
        trial.count(self._rewriter.usage, self._rewriter.output_chunks)


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


def _broken_off(failure: Failure, message: str) -> RouterError:
    kind = UpstreamTimeout if failure is Failure.TIMEOUT else UpstreamFailed
    return kind(f"the answer broke off: {message}")
