"""Faults of memory: nothing of a request stays behind, whether it went well or not."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
from collections import Counter, deque
from pathlib import Path

from llmrouter.gateway.exchange import Exchange
from llmrouter.gateway.run import Run, Trial
from llmrouter.testing import Answer, Decide, ErrorInside, FakeBackend, HttpError, Incoming, Reset, Step
from llmrouter.types import ChatRequest
from tests.gateway.rig import Wire, one, request, until
from tests.support import Running, running

LARGE = "x" * 100_000


async def flood(gateway: Running, requests: list[bytes], *, connections: int = 8) -> None:
    """Send all of them over a few connections, each answered before the next on its connection."""
    left = deque(requests)

    async def send() -> None:
        async with Wire(gateway) as client:
            while left:
                client.writer.write(left.popleft())
                _, headers, _ = await client.answer()
                if headers.get("connection") == "close":
                    return

    while left:
        await asyncio.gather(*(send() for _ in range(connections)))


def held() -> dict[str, int]:
    """How many things of requests are alive; modules of other tests may hold some of their own."""
    gc.collect()
    kinds = (Run, Trial, ChatRequest, Exchange)
    counts = dict.fromkeys((kind.__name__ for kind in kinds), 0)
    for each in gc.get_objects():
        # Not isinstance: lazily loaded modules load when they are asked for their class.
        if type(each) in kinds:
            counts[type(each).__name__] += 1
    return counts


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def ours() -> int:
    """How many objects of llmrouter's own classes are alive, those of the rig left out."""
    gc.collect()
    modules = Counter(str(type(each).__module__) for each in gc.get_objects())
    return sum(n for name, n in modules.items() if name.startswith("llmrouter.") and ".testing." not in name)


def as_told(incoming: Incoming) -> Step:
    """The step that the request's `user` names."""
    steps: dict[str, Step] = {
        "refused": HttpError(400, LARGE),
        "broken": HttpError(500, LARGE),
        "reset": Reset(),
        "inside": ErrorInside({"message": LARGE}, Answer("one two"), after=2),
    }
    return steps.get(incoming.fields.get("user", ""), Answer("one two three"))


async def test_g108_many_requests_leave_nothing_behind(tmp_path):
    nothing = held()
    async with (
        FakeBackend(default=Decide(as_told), keep_calls=1) as engine,
        running(one(engine), tmp_path) as gateway,
    ):
        text = [{"role": "user", "content": "word " * 6000}]
        mix = [request(gateway, messages=text), request(gateway, messages=text, stream=True)]
        await flood(gateway, mix * 50)
        before, tasks, resident = ours(), len(asyncio.all_tasks()), resident_bytes()
        await flood(gateway, mix * 250)
        await until(lambda: gateway.gateway.active == 0)
        assert held() == nothing
        assert len(asyncio.all_tasks()) <= tasks
        # One object kept of every tenth request would show, and a third of the 30 KB of each.
        assert ours() - before < 50
        assert resident_bytes() - resident < 5_000_000


async def test_g109_failures_keep_no_prompt(tmp_path):
    nothing = held()
    async with (
        FakeBackend(default=Decide(as_told), keep_calls=1) as engine,
        running(one(engine), tmp_path) as gateway,
    ):
        text = [{"role": "user", "content": LARGE}]
        broken = json.dumps({"model": "auto", "messages": text}).encode()[:-1]
        failing = [
            request(gateway, messages=text, user="refused"),
            request(gateway, messages=text, user="broken"),
            request(gateway, messages=text, user="reset"),
            request(gateway, messages=text, user="reset", stream=True),
            request(gateway, messages=text, user="inside", stream=True),
            request(gateway, messages=text, n=1000),
            request(gateway, messages=[{"role": LARGE}]),
            request(gateway, messages=text, model="nobody"),
            request(gateway, body=broken),
            request(gateway, messages=text, headers={"Authorization": "Bearer lr-0-x"}),
        ]
        await flood(gateway, failing * 5)
        before, resident = ours(), resident_bytes()
        await flood(gateway, failing * 20)
        assert held() == nothing
        # 200 failures with 100 KB each: an object of every fourth and a third of the bodies would show.
        assert ours() - before < 50
        assert resident_bytes() - resident < 7_000_000


async def test_g109_clients_that_left_leave_no_prompt(tmp_path: Path):
    nothing = held()
    async with FakeBackend(keep_calls=1) as engine, running(one(engine), tmp_path) as gateway:
        for round_number in range(1, 21):
            async with Wire(gateway) as client:
                client.writer.write(request(gateway, messages=[{"role": "user", "content": LARGE}], stream=True))
                await client.until(b"\r\n\r\n")
                client.leave("reset")
            await gateway.settled(round_number)
        await until(lambda: gateway.gateway.active == 0)
        assert held() == nothing
