"""The writer thread: how it batches, what it does when the store fails, and that no entry is lost on the way."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from llmrouter.database import migrate, open_database, writing
from llmrouter.errors import StoreUnavailable
from llmrouter.ledger.queries import recent_entries
from llmrouter.ledger.sqlite import SqliteLedger
from llmrouter.pricing.money import MAX_STORED_USD
from tests.ledger.books import entry

PATIENCE_S = 10.0


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "llmrouter.db"
    migrate(path)
    return path


def ids(database: Path) -> set[str]:
    return {found.request_id for found in recent_entries(database, 10_000)}


class Gate:
    """A way to connect that waits until it is opened, and notes each statement that runs afterwards."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()
        self.statements: list[str] = []

    def __call__(self, path: Path) -> sqlite3.Connection:
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)
        connection = open_database(path)
        connection.set_trace_callback(self.statements.append)
        return connection

    def commits(self) -> int:
        return self.statements.count("COMMIT")


async def behind(gate: Gate, ledger: SqliteLedger, *request_ids: str) -> list[asyncio.Task[None]]:
    """Tasks that record, all of them in the queue while the writer is held at the gate by a first one."""
    first = asyncio.create_task(ledger.record(entry("first")))
    assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
    rest = [asyncio.create_task(ledger.record(entry(request_id))) for request_id in request_ids]
    await asyncio.sleep(0)
    assert ledger.queued == len(request_ids)
    return [first, *rest]


async def test_what_gathers_during_a_commit_is_written_in_one(database):
    gate = Gate()
    ledger = SqliteLedger(database, connect=gate)
    tasks = await behind(gate, ledger, *(f"r{number}" for number in range(50)))
    gate.opened.set()
    await asyncio.gather(*tasks)
    assert gate.commits() == 2
    assert len(ids(database)) == 51
    await ledger.aclose()


async def test_a_batch_has_a_limit(database):
    gate = Gate()
    ledger = SqliteLedger(database, connect=gate, max_batch=20)
    tasks = await behind(gate, ledger, *(f"r{number}" for number in range(50)))
    gate.opened.set()
    await asyncio.gather(*tasks)
    assert gate.commits() == 1 + 3
    await ledger.aclose()


async def test_a_batch_wakes_the_loop_once(database, monkeypatch):
    gate = Gate()
    ledger = SqliteLedger(database, connect=gate)
    tasks = await behind(gate, ledger, *(f"r{number}" for number in range(50)))
    loop = asyncio.get_running_loop()
    wake_ups: list[Callable[..., object]] = []
    wake = loop.call_soon_threadsafe

    def counted(callback: Callable[..., object], *args: object) -> asyncio.Handle:
        wake_ups.append(callback)
        return wake(callback, *args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    gate.opened.set()
    await asyncio.gather(*tasks)
    assert len(wake_ups) == 2
    monkeypatch.undo()
    await ledger.aclose()


async def test_record_returns_when_another_connection_can_read_the_entry(database):
    ledger = SqliteLedger(database)
    for number in range(20):
        await ledger.record(entry(f"r{number}"))
        assert f"r{number}" in ids(database)
    await ledger.aclose()


async def test_an_entry_that_cannot_be_stored_fails_alone(database):
    gate = Gate()
    ledger = SqliteLedger(database, connect=gate)
    tasks = await behind(gate, ledger, "r1", "r2")
    bad = asyncio.create_task(ledger.record(entry("bad", cost_usd=MAX_STORED_USD * 2)))
    also = asyncio.create_task(ledger.record(entry("r3")))
    await asyncio.sleep(0)
    gate.opened.set()
    with pytest.raises(StoreUnavailable, match=r"cannot store this entry \(OverflowError\)"):
        await bad
    await asyncio.gather(*tasks, also)
    assert ids(database) == {"first", "r1", "r2", "r3"}
    await ledger.aclose()


async def test_a_locked_store_fails_what_waited_for_it_and_then_works_again(database):
    ledger = SqliteLedger(database, connect=partial(open_database, busy_timeout_s=0.01))
    with writing(database), pytest.raises(StoreUnavailable, match="locked"):
        await ledger.record(entry("during"))
    await ledger.record(entry("after"))
    assert ids(database) == {"after"}
    await ledger.aclose()


async def test_a_full_disk_fails_the_entries_it_could_not_take_and_none_after_it(database):
    limits = iter([True, False])

    def connect(path: Path) -> sqlite3.Connection:
        connection = open_database(path)
        if next(limits):
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    ledger = SqliteLedger(database, connect=connect)
    large = "x" * 50_000
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await ledger.record(entry("too much", reason=large))
    await ledger.record(entry("enough again", reason=large))
    assert ids(database) == {"enough again"}
    await ledger.aclose()


async def test_a_store_that_is_gone_fails_entries_until_it_is_back(database):
    ledger = SqliteLedger(database)
    await ledger.record(entry("before"))
    elsewhere = database.rename(database.with_suffix(".moved"))
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        await ledger.record(entry("during"))
    elsewhere.rename(database)
    await ledger.record(entry("after"))
    assert ids(database) == {"before", "after"}
    await ledger.aclose()


async def test_entries_go_to_the_file_that_is_there_not_to_one_that_was_moved_away(database):
    ledger = SqliteLedger(database)
    await ledger.record(entry("old"))
    with closing(open_database(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for suffix in ("", "-wal", "-shm"):
        database.with_name(database.name + suffix).rename(database.with_name(f"moved{suffix}"))
    migrate(database)
    await ledger.record(entry("new"))
    assert ids(database) == {"new"}
    await ledger.aclose()


async def test_the_thread_outlives_an_error_that_nobody_foresaw(database):
    failures = iter([RuntimeError("never seen before")])

    def connect(path: Path) -> sqlite3.Connection:
        for failure in failures:
            raise failure
        return open_database(path)

    ledger = SqliteLedger(database, connect=connect)
    with pytest.raises(StoreUnavailable, match="RuntimeError"):
        await ledger.record(entry("r1"))
    await ledger.record(entry("r2"))
    assert ids(database) == {"r2"}
    await ledger.aclose()


async def test_a_full_queue_refuses_at_once(database):
    gate = Gate()
    ledger = SqliteLedger(database, connect=gate, max_queue=2)
    tasks = await behind(gate, ledger, "r1", "r2")
    with pytest.raises(StoreUnavailable, match="2 entries behind"):
        await ledger.record(entry("one too many"))
    gate.opened.set()
    await asyncio.gather(*tasks)
    await ledger.record(entry("r3"))
    assert ids(database) == {"first", "r1", "r2", "r3"}
    await ledger.aclose()


async def test_cancelling_the_waiting_task_loses_nothing(database):
    gate = Gate()
    ledger = SqliteLedger(database, connect=gate)
    tasks = await behind(gate, ledger, "r1", "r2")
    tasks[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
    gate.opened.set()
    await asyncio.gather(tasks[0], tasks[2])
    assert ids(database) == {"first", "r1", "r2"}
    await ledger.aclose()


async def test_g105_closing_writes_everything_that_is_queued(database):
    gate = Gate()
    ledger = SqliteLedger(database, connect=gate, max_batch=7)
    tasks = await behind(gate, ledger, *(f"r{number}" for number in range(99)))
    closing_down = asyncio.create_task(ledger.aclose())
    await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.gather(closing_down, *tasks)
    assert len(ids(database)) == 100


def test_a_loop_that_is_gone_does_not_stop_the_writer(database):
    gate = Gate()
    ledger = SqliteLedger(database, connect=gate)

    async def leave() -> None:
        await behind(gate, ledger, "r1")

    asyncio.run(leave())  # cancels the recording tasks and closes its loop
    gate.opened.set()
    asyncio.run(ledger.aclose())
    assert ids(database) == {"first", "r1"}


class CheckpointSeen:
    """A way to connect that tells when a checkpoint runs."""

    def __init__(self) -> None:
        self.seen = threading.Event()
        self.statements: list[str] = []

    def __call__(self, path: Path) -> sqlite3.Connection:
        connection = open_database(path)
        connection.set_trace_callback(self._note)
        return connection

    def _note(self, statement: str) -> None:
        self.statements.append(statement)
        if "wal_checkpoint" in statement:
            self.seen.set()


async def test_the_log_is_merged_when_nothing_comes(database):
    watch = CheckpointSeen()
    ledger = SqliteLedger(database, connect=watch, idle_s=0.001)
    await ledger.record(entry())
    assert await asyncio.to_thread(watch.seen.wait, PATIENCE_S)
    await ledger.aclose()


async def test_the_log_is_merged_after_so_many_entries_and_not_by_a_commit(database):
    watch = CheckpointSeen()
    ledger = SqliteLedger(database, connect=watch, idle_s=PATIENCE_S, checkpoint_entries=3)
    await ledger.record(entry("r1"))
    await ledger.record(entry("r2"))
    assert not watch.seen.is_set()
    await ledger.record(entry("r3"))
    assert await asyncio.to_thread(watch.seen.wait, PATIENCE_S)
    assert watch.statements[0] == "PRAGMA wal_autocheckpoint = 0"
    await ledger.aclose()


def test_a_recorded_entry_survives_the_sudden_death_of_the_process(database):
    program = """
import asyncio, os, sys
from pathlib import Path
from llmrouter.ledger.sqlite import SqliteLedger
from tests.ledger.books import entry

async def main():
    ledger = SqliteLedger(Path(sys.argv[1]))
    await asyncio.gather(*(ledger.record(entry(f"r{number}")) for number in range(10)))
    os._exit(9)

asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", program, str(database)], check=False).returncode == 9
    assert len(ids(database)) == 10
