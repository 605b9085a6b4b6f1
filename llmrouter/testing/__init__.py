"""A scriptable fake engine and small helpers for tests of plugins and of llmrouter itself.

A test of whatever calls an OpenAI-compatible engine takes five lines:

    async def test_a_busy_engine_is_asked_again():
        async with FakeBackend(HttpError(429, retry_after_ms=1), Answer("Paris")) as engine:
            async with AsyncOpenAI(base_url=engine.url, api_key="any") as client:
                reply = await client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Hi"}])
        assert (reply.choices[0].message.content, len(engine.calls)) == ("Paris", 2)

`FakeBackend` is a real HTTP/1.1 server in the test's own event loop; `FakeBackend.in_thread()` runs it beside a test
without one, `python -m llmrouter.testing --port 9001` in a process of its own (`llmrouter.testing.control` tells how to
script that). Each call takes the next step of the script:

- `Answer` answers well, as JSON or as a stream, in the dialect of vLLM, llama.cpp or OpenAI; `Json`, `Text`, `Bytes`
  and `RawSse` answer literally; `Decide` picks a step by the request.
- `Slow`, `Takes` and `Held` wrap a step in delays; `Held` waits for a `Signal` of the test instead of a clock.
- `Cut`, `Dribble`, `LineEnds`, `WithLines`, `WithoutSpace`, `SplitData`, `WithoutDone`, `WithoutFinalBlankLine`,
  `EndByClose` and `Gzip` wrap an answer and write it in other bytes.
- `HttpError`, `ErrorInside`, `Hang`, `Reset`, `Truncate`, `RawHttp`, `NotHttp`, `BrokenJson`, `Huge`, `Refuses` and
  `Window` go wrong; most of them wrap the answer that they spoil.

Wrappers nest from the inside out: bytes, then pacing and faults, e.g.
`Reset(Slow(LineEnds(Answer("one two")), between_chunks_s=0.01), after=2)`. What happened is in `backend.calls`
(`Call`: headers and body as they came, chunks sent, the moment the peer left) and in the backend's counters;
`await backend.until(lambda: backend.in_flight == 2)` waits for a state without sleeping.

`BlackHole` is an address that never answers a connect, `HandClock` a clock that only the test turns; `parse_sse` and
`fold_chunks` read a stream strictly and independently of any SDK.
"""

from llmrouter.testing.actions import DialectName, Engine, Plan, Step
from llmrouter.testing.answers import Answer, Bytes, Decide, Json, RawSse, Text, event
from llmrouter.testing.blackhole import BlackHole
from llmrouter.testing.clock import HandClock
from llmrouter.testing.content import ToolCall, usage
from llmrouter.testing.faults import (
    BrokenJson,
    ErrorInside,
    Hang,
    HttpError,
    Huge,
    NotHttp,
    RawHttp,
    Refuses,
    Reset,
    Truncate,
    Window,
)
from llmrouter.testing.framing import (
    Cut,
    Dribble,
    EndByClose,
    Gzip,
    LineEnds,
    SplitData,
    WithLines,
    WithoutDone,
    WithoutFinalBlankLine,
    WithoutSpace,
)
from llmrouter.testing.pacing import Held, Slow, Takes
from llmrouter.testing.records import Call, Incoming
from llmrouter.testing.server import FakeBackend
from llmrouter.testing.sse import fold_chunks, parse_sse
from llmrouter.testing.watch import Signal

__all__ = [
    "Answer",
    "BlackHole",
    "BrokenJson",
    "Bytes",
    "Call",
    "Cut",
    "Decide",
    "DialectName",
    "Dribble",
    "EndByClose",
    "Engine",
    "ErrorInside",
    "FakeBackend",
    "Gzip",
    "HandClock",
    "Hang",
    "Held",
    "HttpError",
    "Huge",
    "Incoming",
    "Json",
    "LineEnds",
    "NotHttp",
    "Plan",
    "RawHttp",
    "RawSse",
    "Refuses",
    "Reset",
    "Signal",
    "Slow",
    "SplitData",
    "Step",
    "Takes",
    "Text",
    "ToolCall",
    "Truncate",
    "Window",
    "WithLines",
    "WithoutDone",
    "WithoutFinalBlankLine",
    "WithoutSpace",
    "event",
    "fold_chunks",
    "parse_sse",
    "usage",
]
