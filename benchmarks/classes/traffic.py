"""Paced calls of three classes, and what their clients and the gateway's gauges saw."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import httpx

from benchmarks.classes.gateway import Gateway, slots_in
from llmrouter.testing import Answer, Decide, FakeBackend, Slow
from llmrouter.testing.records import Incoming

__all__ = ["LOADS", "Load", "Phase", "Seen", "engine", "play"]

_GAUGES_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Load:
    """How the engine serves a class's calls, and how many come."""

    first_output_s: float
    service_s: float
    per_s: float | None = None
    """Arrivals at random, independent of answers; None keeps `depth` calls under way or waiting."""
    depth: int = 0


LOADS: Mapping[str, Load] = {
    "interactive": Load(0.2, 0.25, per_s=4),
    "standard": Load(0.2, 0.4, per_s=2),
    "batch": Load(0.2, 0.8, depth=40),
}
_CHUNKS_AFTER_FIRST = 6
"""Of every stream: three further tokens, the reason of its end, the usage, the end mark."""


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    classes: tuple[str, ...]
    seconds: float
    warm_up_s: float = 2.0
    sent_as: str | None = None
    """The class that all calls claim; None sends each as what it is."""


@dataclass(slots=True)
class Seen:
    """What came of one class's calls in one phase; calls that began in the warm-up are left out."""

    ttft_s: list[float] = field(default_factory=list)
    refused: int = 0
    slots: list[float] = field(default_factory=list)
    """Slots in use, sampled; none of a class under whose name nothing is sent."""


def engine() -> FakeBackend:
    """Serves each call as the load that its prompt names."""
    steps = {name: _paced(load) for name, load in LOADS.items()}

    def choose(call: Incoming) -> Slow:
        return steps[call.fields["messages"][-1]["content"]]

    return FakeBackend(default=Decide(choose), models=("m",), keep_calls=10)


def _paced(load: Load) -> Slow:
    between_s = (load.service_s - load.first_output_s) / _CHUNKS_AFTER_FIRST
    # The first chunk tells the role only.
    return Slow(
        Answer(pieces=("one", " two", " three", " four")),
        before_first_chunk_s=load.first_output_s - between_s,
        between_chunks_s=between_s,
    )


async def play(gateway: Gateway, phase: Phase, seed: int) -> dict[str, Seen]:
    """Send a phase's traffic; returns when its time is over and its last calls are answered."""
    seen = {name: Seen() for name in phase.classes}
    limits = httpx.Limits(max_connections=None)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=gateway.root,
                headers={"authorization": f"Bearer {gateway.key}"},
                limits=limits,
                timeout=30,
                trust_env=False,
            )
        )
        began = time.perf_counter()
        client = _Client(http, phase, began + phase.warm_up_s, began + phase.warm_up_s + phase.seconds)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        for number, name in enumerate(phase.classes):
            load = LOADS[name]
            if load.per_s is not None:
                tasks.create_task(client.arrivals(name, load.per_s, seen[name], random.Random(seed + number), tasks))
            for _ in range(load.depth):
                tasks.create_task(client.again_and_again(name, seen[name]))
        tasks.create_task(client.watch(seen))
    return seen


class _Client:
    def __init__(self, http: httpx.AsyncClient, phase: Phase, since: float, until: float) -> None:
        self._http = http
        self._phase = phase
        self._since = since
        self._until = until

    async def arrivals(self, name: str, per_s: float, seen: Seen, rng: random.Random, tasks: asyncio.TaskGroup) -> None:
        at = time.perf_counter()
        while (at := at + rng.expovariate(per_s)) < self._until:
            await asyncio.sleep(max(at - time.perf_counter(), 0))
            tasks.create_task(self._call(name, seen))

    async def again_and_again(self, name: str, seen: Seen) -> None:
        while time.perf_counter() < self._until:
            await self._call(name, seen)

    async def watch(self, seen: dict[str, Seen]) -> None:
        await asyncio.sleep(max(self._since - time.perf_counter(), 0))
        while time.perf_counter() < self._until:
            slots = slots_in((await self._http.get("/metrics")).raise_for_status().text)
            for name, each in seen.items():
                if self._phase.sent_as in (None, name):
                    each.slots.append(slots.get(name, 0.0))
            await asyncio.sleep(_GAUGES_EVERY_S)

    async def _call(self, name: str, seen: Seen) -> None:
        sent = time.perf_counter()
        body = {"model": "auto", "stream": True, "messages": [{"role": "user", "content": name}]}
        headers = {"x-llmrouter-class": self._phase.sent_as or name}
        async with self._http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            # Nothing of a stream is sent before its first output.
            pieces = answer.aiter_raw()
            await anext(pieces)
            ttft_s = time.perf_counter() - sent
            async for _ in pieces:
                pass
        if sent >= self._since:
            if answer.status_code == 200:
                seen.ttft_s.append(ttft_s)
            else:
                seen.refused += 1
                await asyncio.sleep(LOADS[name].service_s)
