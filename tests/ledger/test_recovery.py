"""What a process leaves that dies: its calls are booked once, its limits come back, whoever looks first."""

import asyncio
import logging
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import pytest

from llmrouter.database import migrate, open_database, reading, writing
from llmrouter.errors import StoreUnavailable
from llmrouter.ledger.limits import standings
from llmrouter.ledger.owners import OwnerLock, dead_owner, lock_folder, sweep
from llmrouter.ledger.queries import recent_entries
from llmrouter.ledger.reservations import body_of, reservation_of
from llmrouter.ledger.sqlite import SqliteLedger
from llmrouter.types import Limit, Reservation, Spent, Usage
from tests.contracts.limit_stores import Clock, usd
from tests.ledger.books import entry, reservation

PATIENCE_S = 10.0
LIMITS = (
    Limit("key:k1", "requests_per_minute", 60, 20),
    Limit("key:k1", "tokens_per_minute", 60_000, 60_000),
    Limit("tenant:acme", "concurrent_requests", 5),
    Limit("tenant:acme", "usd_per_day", usd("0.01")),
)


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "llmrouter.db"
    migrate(path)
    return path


@pytest.fixture
def clock():
    return Clock()


def under_way(database: Path) -> set[str]:
    with reading(database) as connection:
        return {request_id for (request_id,) in connection.execute("SELECT request_id FROM reservations")}


def owners(database: Path) -> set[str]:
    with reading(database) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM owners")}


async def leave_open(database: Path, clock: Clock, *wishes: Reservation) -> str:
    """Calls of a process that has gone: closing with open calls leaves what a death leaves."""
    ledger = SqliteLedger(database, now_ms=clock)
    for wish in wishes:
        assert (await ledger.open(wish)).exceeded is None
    await ledger.aclose()
    return ledger.owner_name


def test_a_reservation_reads_back_equal():
    full = reservation(limits=LIMITS, user_id="bob", degraded_to="cheap", cost_usd=Decimal("1E-12"))
    assert reservation_of(body_of(full)) == full
    assert reservation_of(body_of(reservation())) == reservation()


async def test_a_call_of_a_dead_process_is_booked_as_unknown_at_what_was_set_aside(database, clock):
    wish = clock.wish(*LIMITS, request_id="r1", user_id="bob", degraded_to="cheap", latency_class="batch")
    await leave_open(database, clock, wish)
    ledger = SqliteLedger(database, now_ms=clock)
    await ledger.recover()
    (booked,) = recent_entries(database, 10)
    usage = Usage(2000, output_tokens=1000, estimated=True)
    assert (booked.request_id, booked.ts, booked.status, booked.error_code) == ("r1", wish.ts, 500, "unknown")
    assert (booked.model_id, booked.finish, booked.reference_cost_usd) == (None, None, None)
    assert (booked.usage, booked.cost_usd) == (usage, Decimal("0.0008"))
    assert (booked.tier, booked.user_id, booked.degraded_to, booked.latency_class) == ("auto", "bob", "cheap", "batch")
    (attempt,) = booked.attempts
    assert (attempt.model_id, attempt.price_id, attempt.outcome) == ("small", wish.price_id, "unknown")
    assert (attempt.usage, attempt.cost_usd, attempt.committed) == (usage, booked.cost_usd, False)
    assert under_way(database) == set()
    await ledger.aclose()


async def test_unknown_calls_are_billed_nothing_where_the_policy_says_so(database, clock):
    await leave_open(database, clock, clock.wish(*LIMITS))
    ledger = SqliteLedger(database, now_ms=clock, unknown="nothing")
    await ledger.recover()
    (booked,) = recent_entries(database, 10)
    assert (booked.usage, booked.cost_usd) == (Usage(estimated=True), Decimal(0))
    assert booked.attempts[0].cost_usd == 0
    assert [each.remaining for each in standings(database, LIMITS, clock.now_ms)] == [19, 60_000, 5, usd("0.01")]
    await ledger.aclose()


async def test_the_limits_of_a_dead_process_come_back_except_what_its_calls_are_billed(database, clock):
    await leave_open(database, clock, *(clock.wish(*LIMITS) for _ in range(3)))
    assert [each.remaining for each in standings(database, LIMITS, clock.now_ms)] == [17, 51_000, 2, usd("0.0076")]
    ledger = SqliteLedger(database, now_ms=clock)
    await ledger.recover()
    assert [each.remaining for each in standings(database, LIMITS, clock.now_ms)] == [17, 51_000, 5, usd("0.0076")]
    await ledger.aclose()


async def test_recovering_again_or_by_many_at_once_books_each_call_once(database, clock):
    for number in range(3):
        await leave_open(database, clock, *(clock.wish(request_id=f"r{number}{each}") for each in range(4)))
    ledgers = [SqliteLedger(database, now_ms=clock) for _ in range(4)]
    found = await asyncio.gather(*(ledger.recover() for ledger in ledgers))
    assert await ledgers[0].recover() == 0
    assert len(recent_entries(database, 100)) == 12
    assert sum(found) <= 12  # some are found by the start of a writer
    await asyncio.gather(*(ledger.aclose() for ledger in ledgers))
    assert owners(database) == set()
    assert list(lock_folder(database).iterdir()) == []


async def test_a_start_recovers_without_being_asked(database, clock):
    await leave_open(database, clock, clock.wish(request_id="r1"))
    told = threading.Event()
    ledger = SqliteLedger(database, now_ms=clock, on_recovered=lambda _name, _left: told.set())
    assert await asyncio.to_thread(told.wait, PATIENCE_S)
    assert under_way(database) == set()
    await ledger.aclose()


async def test_a_running_process_finds_the_dead_by_itself(database, clock):
    told = threading.Event()
    ledger = SqliteLedger(database, now_ms=clock, recover_s=0.01, on_recovered=lambda _name, _left: told.set())
    await ledger.record(entry("first"))
    await leave_open(database, clock, clock.wish(request_id="r1"))
    assert await asyncio.to_thread(told.wait, PATIENCE_S)
    assert {each.request_id for each in recent_entries(database, 10)} == {"first", "r1"}
    await ledger.aclose()


async def test_a_copy_of_a_database_without_its_lock_files_is_recovered_too(database, clock):
    """A restored backup has reservations of processes that never ran on this machine."""
    name = await leave_open(database, clock, clock.wish(request_id="r1"))
    (lock_folder(database) / name).unlink()
    lock_folder(database).rmdir()
    ledger = SqliteLedger(database, now_ms=clock)
    assert await ledger.recover() == 1
    await ledger.aclose()


async def test_the_living_are_left_alone(database, clock):
    living = SqliteLedger(database, now_ms=clock)
    await living.open(clock.wish(request_id="r1"))
    other = SqliteLedger(database, now_ms=clock)
    assert await other.recover() == 0
    assert under_way(database) == {"r1"}
    await living.record(entry("r1"))
    await asyncio.gather(living.aclose(), other.aclose())
    assert owners(database) == set()


async def test_the_living_are_left_alone_by_whatever_link_the_file_is_named(database, clock, tmp_path):
    link = tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(database)
    living, other = SqliteLedger(database, now_ms=clock), SqliteLedger(link, now_ms=clock)
    await living.open(clock.wish(request_id="r1"))
    assert await other.recover() == 0
    assert under_way(database) == {"r1"}
    await living.record(entry("r1"))
    await asyncio.gather(living.aclose(), other.aclose())


async def test_the_living_make_their_lock_file_anew_when_somebody_has_deleted_it(database, clock):
    living, other = SqliteLedger(database, now_ms=clock), SqliteLedger(database, now_ms=clock)
    await living.open(clock.wish(request_id="r1"))
    shutil.rmtree(lock_folder(database))
    await living.open(clock.wish(request_id="r2"))
    assert await other.recover() == 0
    shutil.rmtree(lock_folder(database))
    await living.recover()
    assert await other.recover() == 0
    assert under_way(database) == {"r1", "r2"}
    await asyncio.gather(living.record(entry("r1")), living.record(entry("r2")))
    await asyncio.gather(living.aclose(), other.aclose())
    assert owners(database) == set()
    assert list(lock_folder(database).iterdir()) == []


async def test_who_asked_is_told_whose_calls_were_booked_and_what_they_are_billed(database, clock):
    wish = clock.wish(*LIMITS, request_id="r1")
    died = await leave_open(database, clock, wish)
    told: list[tuple[str, list[tuple[Reservation, Spent]]]] = []
    ledger = SqliteLedger(database, now_ms=clock, on_recovered=lambda name, left: told.append((name, left)))
    await ledger.recover()
    assert told == [(died, [(wish, Spent(3000, Decimal("0.0008"), 1))])]
    assert ledger.owner_name != died
    await ledger.aclose()


async def test_a_listener_that_fails_does_not_undo_the_recovery(database, clock, caplog):
    await leave_open(database, clock, clock.wish(request_id="r1"))

    def fail(_name: str, _left: object) -> None:
        raise RuntimeError("the shared store is away")

    ledger = SqliteLedger(database, now_ms=clock, on_recovered=fail)
    await ledger.recover()
    assert under_way(database) == set()
    assert "was not taken back" in caplog.text
    await ledger.aclose()


async def test_g050_a_call_that_was_never_booked_ends_when_it_expires(database, clock, caplog):
    """Its process lives on, but the store could not take the entry."""
    ledger = SqliteLedger(database, now_ms=clock)
    wish = clock.wish(*LIMITS)
    await ledger.open(wish)
    with pytest.raises(StoreUnavailable):
        await ledger.record(entry(wish.request_id, total_s=float("nan")))
    clock.turn(660)
    assert await ledger.recover() == 0
    clock.turn(1)
    with caplog.at_level(logging.ERROR, "llmrouter.ledger"):
        assert await ledger.recover() == 1
    assert "1 calls were never booked" in caplog.text
    assert under_way(database) == set()
    assert standings(database, LIMITS[2:3], clock.now_ms)[0].remaining == 5
    # A late entry changes nothing: what is billed is billed.
    await ledger.record(entry(wish.request_id))
    assert [each.error_code for each in recent_entries(database, 10)] == ["unknown"]
    assert await ledger.recover() == 0
    await ledger.aclose()


async def test_recovery_that_fails_says_so_and_is_done_later(database, clock):
    await leave_open(database, clock, clock.wish(request_id="r1"))

    def connect(path: Path) -> sqlite3.Connection:
        return open_database(path, busy_timeout_s=0.01)

    with writing(database):
        ledger = SqliteLedger(database, now_ms=clock, connect=connect)
        with pytest.raises(StoreUnavailable, match="locked"):
            await ledger.recover()
        assert under_way(database) == {"r1"}
    assert await ledger.recover() == 1
    await ledger.aclose()


async def test_the_folder_and_files_of_owners_are_private_and_go(database, clock):
    ledger = SqliteLedger(database, now_ms=clock)
    await ledger.open(clock.wish(request_id="r1"))
    folder = lock_folder(database)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (file,) = folder.iterdir()
    assert file.name == ledger.owner_name
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    await ledger.record(entry("r1"))
    await ledger.aclose()
    assert list(folder.iterdir()) == []


async def test_a_ledger_that_opens_nothing_owns_nothing(database, clock):
    ledger = SqliteLedger(database, now_ms=clock)
    await ledger.record(entry("r1"))
    await ledger.aclose()
    assert owners(database) == set()
    assert not lock_folder(database).exists()


async def test_a_folder_that_cannot_be_made_admits_nobody(database, clock):
    lock_folder(database).write_text("in the way")
    ledger = SqliteLedger(database, now_ms=clock)
    with pytest.raises(StoreUnavailable, match=r"llmrouter\.db cannot be used"):
        await ledger.open(clock.wish(request_id="r1"))
    lock_folder(database).unlink()
    assert (await ledger.open(clock.wish(request_id="r1"))).exceeded is None
    await ledger.aclose()


async def test_a_new_file_in_the_place_of_the_database_gets_to_know_its_owner(database, clock):
    ledger = SqliteLedger(database, now_ms=clock)
    await ledger.open(clock.wish(request_id="r1"))
    for suffix in ("", "-wal", "-shm"):
        database.with_name(database.name + suffix).rename(database.with_name(f"moved{suffix}"))
    migrate(database)
    await ledger.open(clock.wish(request_id="r2"))
    assert under_way(database) == {"r2"}
    assert owners(database) == {ledger.owner_name}
    await ledger.record(entry("r1"))
    await ledger.record(entry("r2"))
    await ledger.aclose()


def test_a_lock_is_free_only_when_its_holder_has_gone(tmp_path):
    lock = OwnerLock(tmp_path / "owners", "one")
    lock.acquire()
    lock.acquire()
    with dead_owner(tmp_path / "owners", "one") as dead:
        assert not dead
    lock.abandon()
    with dead_owner(tmp_path / "owners", "one") as dead:
        assert dead
        with dead_owner(tmp_path / "owners", "one") as twice:
            assert not twice
    assert list((tmp_path / "owners").iterdir()) == []


def test_a_dead_owners_file_stays_when_its_calls_could_not_be_booked(tmp_path):
    OwnerLock(tmp_path, "one").acquire()  # collected at once, which is as good as dead
    lock = OwnerLock(tmp_path, "two")
    lock.acquire()
    lock.abandon()
    with pytest.raises(ZeroDivisionError), dead_owner(tmp_path, "two"):
        raise ZeroDivisionError
    assert (tmp_path / "two").exists()


def test_files_of_owners_that_no_table_knows_are_swept_away(tmp_path):
    living, dead = OwnerLock(tmp_path, "living"), OwnerLock(tmp_path, "dead")
    living.acquire()
    dead.acquire()
    dead.abandon()
    assert sweep(tmp_path, set()) == ["dead"]
    assert [path.name for path in tmp_path.iterdir()] == ["living"]
    living.release()
    assert sweep(tmp_path / "nowhere", set()) == []


async def test_an_owner_that_died_before_it_booked_anything_is_told_of(database, clock):
    """It may have taken slots in a store elsewhere, which nobody else would give back."""
    died = OwnerLock(lock_folder(database), "died early")
    died.acquire()
    died.abandon()
    told: list[tuple[str, object]] = []
    ledger = SqliteLedger(database, now_ms=clock, on_recovered=lambda name, left: told.append((name, left)))
    await ledger.recover()
    assert told == [("died early", [])]
    await ledger.aclose()


async def test_who_has_limits_elsewhere_is_known_to_live_before_it_books(database, clock):
    living = SqliteLedger(database, now_ms=clock, limits=False)
    with dead_owner(lock_folder(database), living.owner_name) as dead:
        assert not dead
    assert (lock_folder(database) / living.owner_name).exists()
    await living.aclose()
    assert list(lock_folder(database).iterdir()) == []


PROGRAM = """
import asyncio, sys, time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from llmrouter.ledger.sqlite import SqliteLedger
from llmrouter.types import Limit
from tests.ledger.books import entry, reservation

LIMITS = (Limit("tenant:acme", "concurrent_requests", 10**6), Limit("tenant:acme", "requests_per_minute", 10**6, 10**6))

async def call(ledger, out, name, number):
    now = datetime.now(UTC)
    wish = reservation(f"{name}-{number}", ts=now, expires_at=now + timedelta(seconds=600), limits=LIMITS)
    assert (await ledger.open(wish)).exceeded is None
    out.write(f"{wish.request_id}\\n".encode())
    await asyncio.sleep(0)
    if number % 3:
        await ledger.record(entry(wish.request_id, ts=now))

async def caller(ledger, out, name):
    for number in range(10**9):
        await call(ledger, out, name, number)

async def main(path, name):
    ledger = SqliteLedger(Path(path), recover_s=0.05)
    with open(1, "wb", buffering=0) as out:
        await asyncio.gather(*(caller(ledger, out, f"{name}.{each}") for each in range(8)))

asyncio.run(main(*sys.argv[1:]))
"""


@contextmanager
def caller(database: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that opens and records as fast as it can, and says each id that was admitted."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(database), name], stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.process
async def test_every_call_that_was_admitted_is_booked_once_after_kill_9(database):
    """Twenty deaths at random moments; a third of the calls were open, others half booked."""
    rng = random.Random(7)
    said: list[str] = []
    for number in range(20):
        with caller(database, f"p{number}") as process:
            assert process.stdout is not None
            lines = rng.randrange(1, 400)
            said += [process.stdout.readline().decode().strip() for _ in range(lines)]
            os.kill(process.pid, signal.SIGKILL)
            said += process.stdout.read().decode().split()
    ledger = SqliteLedger(database)
    await ledger.recover()
    found = [each.request_id for each in recent_entries(database, 10**6)]
    assert len(found) == len(set(found))
    assert set(said) <= set(found)
    # Beyond those there are only calls whose word did not get through.
    assert len(found) - len(said) <= 20 * 8
    assert under_way(database) == set()
    limit = Limit("tenant:acme", "concurrent_requests", 10**6)
    assert standings(database, [limit], 0)[0].remaining == 10**6
    await ledger.aclose()
    assert owners(database) == set()
    assert list(lock_folder(database).iterdir()) == []
