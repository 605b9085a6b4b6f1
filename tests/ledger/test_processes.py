"""Several processes on one file against small limits: never over, and nothing lost when some of them die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from llmrouter.database import migrate, reading
from llmrouter.ledger.limits import standings
from llmrouter.ledger.queries import recent_entries, totals
from llmrouter.ledger.sqlite import SqliteLedger
from llmrouter.types import Limit
from tests.contracts.limit_stores import usd

pytestmark = pytest.mark.process

BUDGET = "0.03"
LIMITS = (
    Limit("key:k1", "requests_per_minute", 1500, 60),
    Limit("tenant:acme", "concurrent_requests", 12),
    Limit("tenant:acme", "usd_per_month", usd(BUDGET)),
    Limit("group:g", "tokens_per_minute", 10**6, 10**6),
)
TASKS = 60

PROGRAM = """
import asyncio, sys, time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from llmrouter.ledger.sqlite import SqliteLedger
from llmrouter.types import Usage
from tests.ledger.books import attempt, entry, reservation
from tests.ledger.test_processes import LIMITS, TASKS

async def caller(ledger, out, name, until):
    number = 0
    while time.monotonic() < until:
        number += 1
        now = datetime.now(UTC)
        wish = reservation(
            f"{name}.{number}", ts=now, expires_at=now + timedelta(seconds=600), limits=LIMITS,
            cost_usd=Decimal("0.0004"), input_tokens=20, output_tokens=20,
        )
        opening = asyncio.create_task(ledger.open(wish))
        if number % 7 == 0:
            await asyncio.sleep(0)
            opening.cancel()
        try:
            admission = await opening
        except asyncio.CancelledError:
            continue
        if admission.exceeded is not None:
            await asyncio.sleep(0.005)
            continue
        out.write(f"{wish.request_id}\\n".encode())
        await asyncio.sleep(0.01)
        usage, cost = Usage(20, output_tokens=number % 20), Decimal("0.0001") * (number % 5)
        await ledger.record(entry(
            wish.request_id, ts=now, usage=usage, cost_usd=cost, attempts=(attempt(usage=usage, cost_usd=cost),)
        ))

async def main(path, name, seconds):
    ledger = SqliteLedger(Path(path), recover_s=0.1)
    until = time.monotonic() + float(seconds)
    with open(1, "wb", buffering=0) as out:
        await asyncio.gather(*(caller(ledger, out, f"{name}.{each}", until) for each in range(TASKS)))
    await ledger.aclose()

asyncio.run(main(*sys.argv[1:]))
"""


@dataclass
class Worker:
    """A process that asks for more than the limits give, and says each call that was admitted."""

    process: subprocess.Popen[bytes]

    def next(self) -> str:
        """The request id of the next call that is admitted."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def rest(self) -> list[str]:
        """Those of all further ones, up to the end of the process."""
        assert self.process.stdout is not None
        return self.process.stdout.read().decode().split()


@contextmanager
def workers(database: Path, count: int, seconds: float) -> Iterator[list[Worker]]:
    made: list[Worker] = []
    try:
        for number in range(count):
            command = [sys.executable, "-c", PROGRAM, str(database), f"p{number}", str(seconds)]
            made.append(Worker(subprocess.Popen(command, stdout=subprocess.PIPE)))
        yield made
    finally:
        for worker in made:
            worker.process.kill()
            worker.process.wait()
            assert worker.process.stdout is not None
            worker.process.stdout.close()


def watched(database: Path, process: subprocess.Popen[bytes]) -> int:
    """The most slots that were held at once while a process ran, as the database itself says."""
    most = 0
    while process.poll() is None:
        with reading(database) as connection:
            (held,) = connection.execute("SELECT count(*) FROM reservations").fetchone()
            most = max(most, held)
    return most


async def test_four_processes_are_never_over_and_two_deaths_cost_no_capacity(tmp_path):
    database = tmp_path / "llmrouter.db"
    migrate(database)
    began = datetime.now(UTC)
    with workers(database, 4, 6.0) as running:
        said = [worker.next() for worker in running]
        for worker in running[2:]:
            os.kill(worker.process.pid, signal.SIGKILL)
        most_at_once = watched(database, running[0].process)
        said += [request_id for worker in running for request_id in worker.rest()]
        assert [worker.process.wait() for worker in running[:2]] == [0, 0]

    ledger = SqliteLedger(database)
    await ledger.recover()
    booked = recent_entries(database, 100_000)
    ids = [each.request_id for each in booked]
    assert len(said) > 100
    assert len(ids) == len(set(ids))
    assert set(said) <= set(ids)
    # Those that died before they could say so, and whose caller had gone when they were admitted, may be there too.
    assert len(ids) <= len(said) + 2 * TASKS
    assert 0 < most_at_once <= 12
    times = sorted(each.ts for each in booked)
    rate = LIMITS[0]
    for first, begin in enumerate(times):
        for last in range(first, len(times)):
            # `ts` is when the call asked; it was admitted up to a moment later, in a batch.
            passed_s = (times[last] - begin).total_seconds() + 0.5
            assert last - first + 1 <= rate.burst + rate.most * passed_s / 60
    (total,) = totals(database, since=began)
    assert Decimal(BUDGET) - Decimal("0.0004") < total.cost_usd  # it was spent, to the last call that could fit
    assert total.cost_usd <= Decimal(BUDGET)
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    slots, budget = standings(database, LIMITS[1:3], now_ms)
    assert slots.remaining == 12
    assert budget.remaining == usd(str(Decimal(BUDGET) - total.cost_usd))
    await ledger.aclose()
