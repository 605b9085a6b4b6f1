"""A store that is full, locked, read-only or damaged: a clear refusal, nothing by halves, and work again afterwards."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from llmrouter.database import migrate, open_database, reading, writing
from llmrouter.errors import StoreUnavailable
from llmrouter.ledger.queries import recent_entries
from llmrouter.ledger.sqlite import SqliteLedger
from llmrouter.types import Limit
from tests.contracts.limit_stores import Clock
from tests.ledger.books import entry

SLOTS = Limit("tenant:acme", "concurrent_requests", 1000)
impatient = partial(open_database, busy_timeout_s=0.01)


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "llmrouter.db"
    migrate(path)
    return path


@pytest.fixture
def clock():
    return Clock()


def state(database: Path) -> tuple[set[str], set[str], int]:
    """Request ids in the books, those under way, and slots taken."""
    with reading(database) as connection:
        booked = {request_id for (request_id,) in connection.execute("SELECT request_id FROM ledger")}
        under_way = {request_id for (request_id,) in connection.execute("SELECT request_id FROM reservations")}
        row = connection.execute("SELECT value FROM limit_counters").fetchone()
    return booked, under_way, 0 if row is None else row[0]


async def test_a_locked_store_admits_nobody_and_keeps_what_is_open(database, clock):
    ledger = SqliteLedger(database, connect=impatient, now_ms=clock)
    await ledger.open(clock.wish(SLOTS, request_id="r1"))
    with writing(database):
        with pytest.raises(StoreUnavailable, match="is locked by another process"):
            await ledger.open(clock.wish(SLOTS, request_id="r2"))
        with pytest.raises(StoreUnavailable, match="is locked by another process"):
            await ledger.record(entry("r1"))
    assert state(database) == (set(), {"r1"}, 1)
    await ledger.record(entry("r1"))
    assert (await ledger.open(clock.wish(SLOTS, request_id="r2"))).exceeded is None
    assert state(database) == ({"r1"}, {"r2"}, 1)
    await ledger.aclose()


async def test_g050_an_entry_that_a_locked_store_refused_is_booked_when_it_is_free(database, clock):
    """Else the call would hold its slot until it expires, and be billed at the worst case."""
    ledger = SqliteLedger(database, connect=impatient, now_ms=clock, recover_s=0.01)
    wish = clock.wish(SLOTS, request_id="r1")
    await ledger.open(wish)
    clock.turn(700)  # the store is away for longer than the call could last
    with writing(database):
        with pytest.raises(StoreUnavailable, match="is locked by another process"):
            await ledger.record(entry("r1"))
        with pytest.raises(StoreUnavailable, match="is locked by another process"):
            await ledger.open(clock.wish(SLOTS, request_id="r2"))
    async with asyncio.timeout(10):
        while state(database)[1]:
            await asyncio.sleep(0.01)
    assert state(database) == ({"r1"}, set(), 0)
    (booked,) = recent_entries(database, 10)
    assert (booked.status, booked.error_code) == (503, "store_unavailable")
    assert booked.cost_usd == entry("r1").cost_usd
    await ledger.aclose()


async def test_closing_books_what_a_locked_store_refused(database, clock):
    ledger = SqliteLedger(database, connect=impatient, now_ms=clock)
    await ledger.open(clock.wish(SLOTS, request_id="r1"))
    with writing(database), pytest.raises(StoreUnavailable, match="is locked by another process"):
        await ledger.record(entry("r1", aborted=True, status=499, error_code="client_cancelled"))
    await ledger.aclose()
    assert state(database) == ({"r1"}, set(), 0)
    assert [each.status for each in recent_entries(database, 10)] == [499]


def _capped(path: Path) -> sqlite3.Connection:
    connection = open_database(path)
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    return connection


async def test_a_database_that_cannot_grow_refuses_until_it_can(database, clock):
    ways = iter([_capped])
    ledger = SqliteLedger(database, connect=lambda path: next(ways, open_database)(path), now_ms=clock)
    large = {"note": "x" * 50_000}
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        await ledger.open(clock.wish(SLOTS, request_id="r1", tags=large))
    assert state(database) == (set(), set(), 0)
    assert (await ledger.open(clock.wish(SLOTS, request_id="r1", tags=large))).exceeded is None
    await ledger.record(entry("r1", tags=large))
    assert state(database) == ({"r1"}, set(), 0)
    await ledger.aclose()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("mounting a small file system needs root")
    command = [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this sandbox mounts nothing")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)


async def test_a_disk_that_is_really_full_loses_nothing_that_was_reported_as_done(small_disk, clock):
    database = small_disk / "llmrouter.db"
    migrate(database)
    ledger = SqliteLedger(database, now_ms=clock)
    opened: set[str] = set()
    recorded: set[str] = set()

    async def call(number: int) -> None:
        wish = clock.wish(SLOTS, request_id=f"r{number}", tags={"note": "x" * 2000})
        await ledger.open(wish)
        opened.add(wish.request_id)
        await ledger.record(entry(wish.request_id, tags={"note": "y" * 2000}))
        recorded.add(wish.request_id)

    refused: list[BaseException] = []
    for number in range(0, 2000, 8):
        outcomes = await asyncio.gather(*(call(each) for each in range(number, number + 8)), return_exceptions=True)
        refused += [outcome for outcome in outcomes if outcome is not None]
        if len(refused) > 40:
            break
    assert {type(each) for each in refused} == {StoreUnavailable}
    assert any("full" in str(each) for each in refused)
    assert recorded
    booked, under_way, slots = state(database)
    assert booked == recorded
    assert under_way == opened - recorded
    assert slots == len(under_way)
    enlarge(small_disk)
    for request_id in sorted(opened - recorded):
        await ledger.record(entry(request_id))
    await call(10_000)
    assert state(database) == (opened | {"r10000"}, set(), 0)
    await ledger.aclose()


async def test_a_read_only_store_says_so(database, clock):
    def read_only(path: Path) -> sqlite3.Connection:
        connection = open_database(path)
        connection.execute("PRAGMA query_only = ON")
        return connection

    ways = iter([read_only])
    ledger = SqliteLedger(database, connect=lambda path: next(ways, open_database)(path), now_ms=clock)
    with pytest.raises(StoreUnavailable, match="it is read-only"):
        await ledger.open(clock.wish(SLOTS, request_id="r1"))
    assert (await ledger.open(clock.wish(SLOTS, request_id="r1"))).exceeded is None
    await ledger.aclose()


async def test_a_damaged_store_says_so_and_a_restored_copy_works_without_a_restart(database, clock, caplog):
    ledger = SqliteLedger(database, now_ms=clock)
    await ledger.record(entry("r0"))
    with contextlib.closing(open_database(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    good = database.read_bytes()
    damaged = database.with_name("damaged")
    damaged.write_bytes(good[:100] + b"\xff" * (len(good) - 100))
    damaged.replace(database)
    with pytest.raises(StoreUnavailable, match=r"it is damaged|not a database"):
        await ledger.open(clock.wish(SLOTS, request_id="r1"))
    with pytest.raises(StoreUnavailable, match=r"it is damaged|not a database"):
        await ledger.record(entry("r1"))
    assert "operations of the ledger refused: the store llmrouter.db" in caplog.text
    restored = database.with_name("restored")
    restored.write_bytes(good)
    for suffix in ("-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
    restored.replace(database)
    assert (await ledger.open(clock.wish(SLOTS, request_id="r2"))).exceeded is None
    await ledger.record(entry("r2"))
    assert {found.request_id for found in recent_entries(database, 10)} == {"r0", "r2"}
    await ledger.aclose()


async def test_rubbish_in_the_place_of_a_database_says_so(tmp_path, clock):
    path = tmp_path / "llmrouter.db"
    path.write_bytes(b"this is no database at all" * 100)
    ledger = SqliteLedger(path, now_ms=clock)
    with pytest.raises(StoreUnavailable, match="it is not a database"):
        await ledger.open(clock.wish(SLOTS))
    await ledger.aclose()


@pytest.mark.parametrize(("durability", "level"), [("process", 1), ("power", 2)])
async def test_durability_says_what_a_commit_waits_for(database, durability, level):
    connections: list[sqlite3.Connection] = []

    def connect(path: Path) -> sqlite3.Connection:
        connections.append(open_database(path))
        return connections[-1]

    ledger = SqliteLedger(database, durability=durability, connect=connect)
    await ledger.record(entry())
    assert connections[0].execute("PRAGMA synchronous").fetchone() == (level,)
    await ledger.aclose()
