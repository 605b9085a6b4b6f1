"""The fake itself: listens, records, takes the next step of the script and plays it."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Self, TypeVar

from llmrouter.testing.actions import DialectName, Drop, Engine, Freeze, HoldFor, Plan, Step, Wait, Write, lower
from llmrouter.testing.answers import Answer, Text
from llmrouter.testing.connection import Connection, Exchange, RawRequest
from llmrouter.testing.control import CONTROL_PREFIX, answer_control
from llmrouter.testing.endpoints import DEFAULT_ROUTES, INFERENCE_PATHS, PROBE_PATHS, metrics_text
from llmrouter.testing.faults import HttpError
from llmrouter.testing.recorder import Recorder
from llmrouter.testing.records import Call, Incoming
from llmrouter.testing.thread import LoopThread

__all__ = ["FakeBackend"]

T = TypeVar("T")


class FakeBackend(Recorder):
    """A scriptable engine on 127.0.0.1, used as `async with FakeBackend(Answer("hi"), HttpError(503)) as backend:`.

    Each inference call takes the next step of the script when it arrives; when the script is used up, `default`
    answers. Leaving the block breaks what is still open, and raises what kept a step from being played.
    """

    def __init__(
        self,
        *steps: Step,
        default: Step | None = None,
        dialect: DialectName = "vllm",
        models: tuple[str, ...] = ("fake-model",),
        slots: int | None = None,
        stale_after: int | None = None,
        keep_calls: int | None = None,
        port: int = 0,
    ) -> None:
        """`slots` calls are worked on at once and further ones wait, as in an engine.

        A connection that has served `stale_after` requests is reset by the next one, which takes no step and is not
        recorded: what a client meets that reuses a connection the server has just given up. `keep_calls` bounds the
        records.
        """
        super().__init__(keep_calls)
        self._script = deque(steps)
        self.default: Step = default or Answer()
        """What answers when the script is used up."""
        self.routes: dict[str, Step] = {}
        """Steps that always answer their path, e.g. `backend.routes["/health"] = HttpError(503)`."""
        self._engine = Engine(dialect, models, created=1_700_000_000)
        self._slots = slots
        self._semaphore: asyncio.Semaphore | None = None
        self._stale_after = stale_after
        self._port = port
        self._open: set[Connection] = set()
        self._errors: list[Exception] = []
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def port(self) -> int:
        """The port in use, from the first start on."""
        return self._port

    @property
    def root_url(self) -> str:
        """Where `/health` and `/metrics` are."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        """The base URL for an OpenAI client, ending in `/v1`."""
        return f"{self.root_url}/v1"

    @property
    def unplayed(self) -> tuple[Step, ...]:
        """What is left of the script."""
        return tuple(self._script)

    def script(self, *steps: Step) -> None:
        """Append steps for calls to come."""
        self._script.extend(steps)

    def forget(self) -> None:
        """Drop what is left of the script, and the records; the counters go on."""
        self._script.clear()
        super().forget()

    async def start(self) -> None:
        """Listen; `async with` does this. A second start takes the port of the first."""
        self._loop = asyncio.get_running_loop()
        self._semaphore = None if self._slots is None else asyncio.Semaphore(self._slots)
        self._server = await self._loop.create_server(
            lambda: Connection(self), "127.0.0.1", self._port, family=socket.AF_INET, backlog=4096
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections from now on and break those that are open: the engine is down until `start`."""
        assert self._server is not None, "start() comes first"
        self._server.close()
        for connection in tuple(self._open):
            connection.abort()
        await self.until(lambda: not self._open and not self.in_flight)
        await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if not self._errors:
            return
        if error is None:
            raise ExceptionGroup("the fake backend could not play its script", self._errors)
        error.add_note(f"the fake backend could not play its script: {self._errors!r}")

    @classmethod
    @contextmanager
    def in_thread(cls, *steps: Step, **options: Any) -> Iterator[Self]:
        """The same in a thread of its own, for tests without an event loop; takes the constructor's arguments."""
        with LoopThread() as thread:
            backend = cls(*steps, **options)
            thread.run(backend.__aenter__())
            error: BaseException | None = None
            try:
                yield backend
            except BaseException as raised:
                error = raised
                raise
            finally:
                thread.run(backend.__aexit__(type(error) if error else None, error, None))

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 10.0) -> T:
        """Run a coroutine in the backend's loop from another thread, e.g. `backend.run(backend.stop())`."""
        assert self._loop is not None, "start() comes first"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    async def close_idle(self) -> int:
        """Close the connections on which nothing is going on, without a word; returns how many those were."""
        idle = [connection for connection in self._open if connection.idle]
        for connection in idle:
            connection.drop("close")
        return len(idle)

    def opened(self, connection: Connection) -> int:
        self._open.add(connection)
        self.connections_made += 1
        self.connections = len(self._open)
        self._watch.notify()
        return self.connections_made

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        self.connections = len(self._open)
        self._watch.notify()

    def failed(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self._errors.append(error)

    def misread(self) -> None:
        self.malformed_requests += 1
        self._watch.notify()

    def accept(self, connection: Connection, request: RawRequest) -> Exchange:
        """Record a request and say what to do with it; `Connection` calls this."""
        if request.target.startswith(CONTROL_PREFIX):
            return Exchange(self._control(connection, request), gone=_nothing, done=_nothing)
        if self._stale_after is not None and connection.served >= self._stale_after:
            return Exchange(self._drop_stale(connection), gone=_nothing, done=_nothing)
        self.requests += 1
        incoming = Incoming(
            self.requests, request.method, request.target, request.headers, request.body, _parsed(request.body)
        )
        call = Call(incoming, connection.number, time.monotonic(), step=self._step(incoming))
        probe = call.path in PROBE_PATHS
        self._record(call, probe=probe)

        def gone() -> None:
            call.disconnected.set()
            self._watch.notify()

        work = self._answer(call, connection, keep_alive=request.keep_alive, probe=probe)
        return Exchange(work, gone, _nothing if probe else self._left)

    async def _control(self, connection: Connection, request: RawRequest) -> None:
        status, body = answer_control(self, request)
        await connection.write(_plain_answer(status, body))

    async def _drop_stale(self, connection: Connection) -> None:
        self.stale_drops += 1
        connection.drop("reset")
        self._watch.notify()

    async def _answer(self, call: Call, connection: Connection, *, keep_alive: bool, probe: bool) -> None:
        async with nullcontext() if probe else self._slot():
            await self._play(call, connection)
        if not keep_alive:
            connection.drop("close")

    def _step(self, request: Incoming) -> Step:
        path = request.path
        if path in self.routes:
            return self.routes[path]
        if path in INFERENCE_PATHS and request.method == "POST":
            if not request.fields:
                return HttpError(400, "the body is not a JSON object")
            return self._script.popleft() if self._script else self.default
        if path == "/metrics" and (body := metrics_text(self._engine, running=self.running, waiting=self.waiting)):
            return Text(body)
        return DEFAULT_ROUTES.get(path, HttpError(404, f"no {request.method} {path} here"))

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        if self._semaphore is not None:
            await self._semaphore.acquire()
        self._started()
        try:
            yield
        finally:
            self._stopped()
            if self._semaphore is not None:
                self._semaphore.release()

    async def _play(self, call: Call, connection: Connection) -> None:
        assert call.step is not None
        plan: Plan = lower(call.step.plan(call.request, self._engine))
        for action in plan:
            match action:
                case Write():
                    call.status = action.status or call.status
                    call.bytes_sent += len(action.data)
                    call.chunks_sent += action.counts
                    await connection.write(action.data)
                    self._watch.notify()
                case Wait():
                    await asyncio.sleep(action.seconds)
                case HoldFor():
                    await action.gate.wait(timeout_s=None)
                case Freeze():
                    await asyncio.get_running_loop().create_future()
                case Drop():
                    connection.drop(action.how)
        call.finished_s = time.monotonic()
        self._watch.notify()


def _nothing() -> None:
    pass


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _plain_answer(status: int, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body
