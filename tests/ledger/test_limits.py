"""The limits in the SQLite file: a transaction a batch, where dollar limits begin, what cancelled calls leave."""

import asyncio
import hashlib
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from llmrouter.database import migrate, open_database, reading, writing
from llmrouter.errors import StoreUnavailable
from llmrouter.ledger import limits, spending
from llmrouter.ledger.limits import drop_idle, idle, standings
from llmrouter.ledger.queries import recent_entries
from llmrouter.ledger.spending import spent_nano
from llmrouter.ledger.sqlite import SqliteLedger
from llmrouter.tenancy.limits import key_scope, tenant_scope, tier_scope, user_scope
from llmrouter.types import Admission, Limit, LimitKind
from tests.contracts.limit_stores import Clock, usd
from tests.ledger.books import attempt, entry

PATIENCE_S = 10.0
RATE = Limit("key:k1", "requests_per_minute", 100, 100)
SLOTS = Limit("tenant:acme", "concurrent_requests", 3)
MONTH = Limit("tenant:acme", "usd_per_month", usd("0.0020"))


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "llmrouter.db"
    migrate(path)
    return path


@pytest.fixture
def clock():
    return Clock()


def counters(database: Path) -> dict[tuple[str, str], int]:
    with reading(database) as connection:
        rows = connection.execute("SELECT scope, kind, value FROM limit_counters").fetchall()
    return {(scope, kind): value for scope, kind, value in rows}


def under_way(database: Path) -> set[str]:
    with reading(database) as connection:
        return {request_id for (request_id,) in connection.execute("SELECT request_id FROM reservations")}


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

    def count(self, begin: str) -> int:
        return sum(statement.lstrip().startswith(begin) for statement in self.statements)


async def test_a_batch_reads_and_writes_each_counter_once(database, clock):
    gate = Gate()
    ledger = SqliteLedger(database, connect=gate, now_ms=clock)
    first = asyncio.create_task(ledger.record(entry("first")))
    assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
    tasks = [asyncio.create_task(ledger.open(clock.wish(RATE, request_id=f"r{number}"))) for number in range(50)]
    await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.gather(first, *tasks)
    assert gate.statements.count("COMMIT") == 2
    assert gate.count("SELECT value, mark FROM limit_counters") == 1
    assert gate.count("INSERT INTO limit_counters") == 1
    assert len(under_way(database)) == 50
    await ledger.aclose()


async def test_within_a_batch_who_came_first_is_admitted_first(database, clock):
    gate = Gate()
    ledger = SqliteLedger(database, connect=gate, now_ms=clock)
    wishes = [clock.wish(SLOTS, request_id=f"r{number}") for number in range(6)]
    tasks = [asyncio.create_task(ledger.open(wish)) for wish in wishes[:4]]
    await asyncio.sleep(0)
    ended = asyncio.create_task(ledger.record(entry("r1")))
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(ledger.open(wish)) for wish in wishes[4:]]
    await asyncio.sleep(0)
    gate.opened.set()
    answers = await asyncio.gather(*tasks)
    await ended
    assert [answer.exceeded is None for answer in answers] == [True, True, True, False, True, False]
    assert under_way(database) == {"r0", "r2", "r4"}
    await ledger.aclose()


async def test_a_refusal_leaves_the_rest_of_the_batch_alone_and_writes_nothing(database, clock):
    ledger = SqliteLedger(database, now_ms=clock)
    rates = [Limit(f"key:k{number}", "requests_per_minute", 10, 10) for number in range(6)]
    answers = await asyncio.gather(*(ledger.open(clock.wish(rate, SLOTS)) for rate in rates))
    assert [answer.exceeded is None for answer in answers] == [True] * 3 + [False] * 3
    assert set(counters(database)) == {(f"key:k{number}", RATE.kind) for number in range(3)} | {
        (SLOTS.scope, SLOTS.kind)
    }
    await ledger.aclose()


async def test_an_opening_that_cannot_be_stored_takes_nothing(database, clock):
    ledger = SqliteLedger(database, now_ms=clock)
    outcomes = await asyncio.gather(
        ledger.open(clock.wish(SLOTS)),
        ledger.open(clock.wish(SLOTS, cost_usd=Decimal(10) ** 9)),
        ledger.open(clock.wish(SLOTS)),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [Admission, StoreUnavailable, Admission]
    assert "cannot store this reservation (OverflowError)" in str(outcomes[1])
    assert counters(database) == {(SLOTS.scope, SLOTS.kind): 2}
    await ledger.aclose()


async def test_a_repeat_of_a_booked_call_takes_nothing(database, clock):
    ledger = SqliteLedger(database, now_ms=clock)
    await ledger.record(entry("r1"))
    assert (await ledger.open(clock.wish(SLOTS, request_id="r1"))).exceeded is None
    assert counters(database) == {}
    assert under_way(database) == set()
    await ledger.aclose()


async def test_without_limits_only_the_reservation_is_written(database, clock):
    """The limits are elsewhere then."""
    ledger = SqliteLedger(database, now_ms=clock, limits=False)
    assert await ledger.open(clock.wish(Limit("key:k1", "concurrent_requests", 0), request_id="r1")) == Admission()
    assert under_way(database) == {"r1"}
    await ledger.record(entry("r1"))
    assert counters(database) == {}
    await ledger.aclose()


async def test_a_call_that_used_more_than_a_counter_can_hold_is_booked_all_the_same(database, clock):
    ledger = SqliteLedger(database, now_ms=clock)
    tokens = Limit("key:k1", "tokens_per_minute", 10_000, 10_000)
    wish = clock.wish(tokens)
    await ledger.open(wish)
    usage = attempt().usage
    huge = attempt(usage=type(usage)(2**62))
    await ledger.record(entry(wish.request_id, usage=huge.usage, attempts=(huge,)))
    assert len(recent_entries(database, 10)) == 1
    assert counters(database) == {(tokens.scope, tokens.kind): 2**63 - 1}
    await ledger.aclose()


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("admit", [True, False])
async def test_a_cancelled_opening_is_taken_back_wherever_it_was(database, clock, turns, admit):
    """Queued, being written, committed but not told, told but not resumed: nothing of it stays."""
    ledger = SqliteLedger(database, now_ms=clock)
    await ledger.open(clock.wish(RATE, SLOTS, MONTH, request_id="other"))
    before = counters(database)
    wish = clock.wish(RATE, Limit(SLOTS.scope, SLOTS.kind, 3 if admit else 1), MONTH)
    task = asyncio.create_task(ledger.open(wish))
    await asyncio.sleep(0)
    if turns >= 4:  # let the writer finish, and its answer wait in the loop
        await asyncio.to_thread(lambda: wait_for(lambda: ledger.queued == 0))
    for _ in range(turns % 4):
        await asyncio.sleep(0)
    task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    await ledger.record(entry("behind"))
    if isinstance(outcome, asyncio.CancelledError):
        assert under_way(database) == {"other"}
        assert counters(database) == before
    else:  # it had ended before it could be cancelled
        assert isinstance(outcome, Admission)
        assert (outcome.exceeded is None) == admit
        assert (wish.request_id in under_way(database)) == admit
    await ledger.aclose()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = threading.Event()
    for _ in range(1000):
        if condition():
            return
        deadline.wait(0.005)
    raise AssertionError("it did not happen in time")


async def test_an_opening_that_is_told_and_cancelled_in_one_turn_is_taken_back(database, clock):
    """Its future is done, yet its task never sees it."""
    ledger = SqliteLedger(database, now_ms=clock)
    task = asyncio.create_task(ledger.open(clock.wish(SLOTS, request_id="r1")))
    await asyncio.sleep(0)
    # The loop stands still, so the answer waits behind this very step, which cancels in the turn of the answer.
    wait_for(lambda: under_way(database) == {"r1"})
    wait_for(lambda: ledger.queued == 0)
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    await ledger.record(entry("behind"))
    assert under_way(database) == set()
    assert counters(database) == {(SLOTS.scope, SLOTS.kind): 0}
    await ledger.aclose()


async def test_a_cancelled_repeat_does_not_take_the_first_one_back(database, clock):
    ledger = SqliteLedger(database, now_ms=clock)
    wish = clock.wish(SLOTS, request_id="r1")
    await ledger.open(wish)
    repeat = asyncio.create_task(ledger.open(wish))
    await asyncio.sleep(0)
    repeat.cancel()
    await asyncio.gather(repeat, return_exceptions=True)
    await ledger.record(entry("behind"))
    assert under_way(database) == {"r1"}
    await ledger.aclose()


def test_what_a_loop_that_is_gone_had_opened_is_taken_back(database, clock):
    gate = Gate()
    ledger = SqliteLedger(database, connect=gate, now_ms=clock)
    loop = asyncio.new_event_loop()
    task = loop.create_task(ledger.open(clock.wish(SLOTS)))
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is left behind on purpose
    loop.close()
    gate.opened.set()
    asyncio.run(ledger.aclose())
    assert under_way(database) == set()
    assert counters(database) == {(SLOTS.scope, SLOTS.kind): 0}


async def test_closing_takes_back_what_was_cancelled_behind_it(database, clock):
    gate = Gate()
    ledger = SqliteLedger(database, connect=gate, now_ms=clock)
    task = asyncio.create_task(ledger.open(clock.wish(SLOTS)))
    await asyncio.sleep(0)
    closing_down = asyncio.create_task(ledger.aclose())
    await asyncio.sleep(0)
    task.cancel()
    gate.opened.set()
    await asyncio.gather(closing_down, task, return_exceptions=True)
    assert under_way(database) == set()


LONG_USER = "ünï" * 60


@pytest.mark.parametrize(
    ("scope", "spent"),
    [
        ("tenant:acme", 9),
        ("tenant:other%2Fone", 16),
        ("tenant:acme/tier:cheap", 6),
        ("tenant:acme/tier:auto", 3),
        ("key:k1", 1),
        ("key:k2", 24),
        ("user:acme/bob%20b%2F1", 2),
        (f"user:acme/sha256:{hashlib.sha256(LONG_USER.encode()).hexdigest()}", 4),
        ("user:acme/nobody", 0),
        ("group:both", 25),
        ("group:one", 16),
        ("tier:cheap", 6),
        ("tier:auto", 19),
    ],
)
def test_what_a_scope_has_spent_is_read_from_the_books(database, clock, scope, spent):
    """Four calls of 1, 2, 4 and 16 nano-dollars, one of 2 under way, and 512 from the month before."""
    asyncio.run(_four_calls(database, clock))
    members = {"both": ["acme", "other/one"], "one": ["other/one"]}
    since_ms = clock.now_ms - 12 * 3_600_000
    with closing(open_database(database)) as connection:
        assert spent_nano(connection, scope, since_ms, lambda group: members[group]) == spent


async def _four_calls(database: Path, clock: Clock) -> None:
    nano = Decimal(1).scaleb(-9)
    ledger = SqliteLedger(database, now_ms=clock)
    old = clock.now() - timedelta(days=2)
    await asyncio.gather(
        ledger.record(entry("old", ts=old, cost_usd=512 * nano)),
        ledger.record(entry("a", key_id="k1", cost_usd=nano / 1000)),
        ledger.record(entry("b", key_id="k2", user_id="bob b/1", degraded_to="cheap", cost_usd=2 * nano)),
        ledger.record(entry("c", key_id="k2", user_id=LONG_USER, degraded_to="cheap", cost_usd=4 * nano)),
        ledger.record(entry("d", key_id="k2", tenant_id="other/one", cost_usd=16 * nano)),
        ledger.open(clock.wish(request_id="e", key_id="k2", cost_usd=2 * nano)),
    )
    await ledger.aclose()


async def test_g041_a_dollar_limit_that_is_added_later_knows_the_month(database, clock):
    ledger = SqliteLedger(database, now_ms=clock)
    await ledger.record(entry("r1", ts=clock.now(), cost_usd=Decimal("0.0011")))
    refused = (await ledger.open(clock.wish(MONTH, cost_usd=Decimal("0.0010")))).exceeded
    assert refused is not None
    assert (refused.current, refused.wanted) == (usd("0.0011"), usd("0.0010"))
    assert counters(database) == {(MONTH.scope, MONTH.kind): usd("0.0011")}
    assert (await ledger.open(clock.wish(MONTH, cost_usd=Decimal("0.0009")))).exceeded is None
    await ledger.aclose()


async def test_g041_what_came_before_in_the_same_batch_counts_too(database, clock):
    gate = Gate()
    ledger = SqliteLedger(database, connect=gate, now_ms=clock)
    tasks = [
        asyncio.create_task(ledger.record(entry("r1", ts=clock.now(), cost_usd=Decimal("0.0004")))),
        asyncio.create_task(ledger.open(clock.wish(cost_usd=Decimal("0.0007")))),
    ]
    await asyncio.sleep(0)
    late = asyncio.create_task(ledger.open(clock.wish(MONTH, cost_usd=Decimal("0.0010"))))
    await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.gather(*tasks)
    refused = (await late).exceeded
    assert refused is not None
    assert refused.current == usd("0.0011")
    await ledger.aclose()


async def test_a_limit_that_was_taken_out_for_a_while_still_knows_its_window(database, clock):
    ledger = SqliteLedger(database, now_ms=clock)
    old = clock.wish(MONTH)
    await ledger.open(old)
    await ledger.record(entry(old.request_id, ts=clock.now(), cost_usd=Decimal("0.0008")))
    clock.turn(31 * 86_400)
    await ledger.record(entry("unlimited", ts=clock.now(), cost_usd=Decimal("0.0015")))
    refused = (await ledger.open(clock.wish(MONTH))).exceeded
    assert refused is not None
    assert refused.current == usd("0.0015")
    await ledger.aclose()


async def test_the_books_are_added_up_before_the_lock_and_only_once(database, clock):
    """Adding up a long month must not keep other processes from booking."""
    ledger = SqliteLedger(database, now_ms=clock)
    await ledger.record(entry("r1", ts=clock.now(), cost_usd=Decimal("0.0005")))
    await ledger.aclose()
    gate = Gate()
    gate.opened.set()
    ledger = SqliteLedger(database, connect=gate, now_ms=clock)
    for _ in range(3):
        await ledger.open(clock.wish(MONTH, cost_usd=Decimal("0.0005")))
    sums = [number for number, text in enumerate(gate.statements) if "sum((cost_picousd" in text]
    assert len(sums) == 2
    assert sums[0] < gate.statements.index("BEGIN IMMEDIATE") < sums[1]
    assert "id > 1" in gate.statements[sums[1]]
    assert counters(database) == {(MONTH.scope, MONTH.kind): usd("0.0020")}
    await ledger.aclose()


async def test_a_long_name_is_never_looked_for_among_all_users_of_the_tenant(database, clock):
    """Its scope holds a digest; whose call it is knows the name, and nobody waits for a search under the lock."""
    gate = Gate()
    gate.opened.set()
    ledger = SqliteLedger(database, connect=gate, now_ms=clock)
    await ledger.record(entry("r1", ts=clock.now(), user_id=LONG_USER, cost_usd=Decimal("0.0005")))
    own = Limit(user_scope("acme", LONG_USER), "usd_per_month", usd("0.0010"))
    call = clock.wish(own, user_id=LONG_USER, cost_usd=Decimal("0.0005"))
    assert (await ledger.open(call)).exceeded is None
    clock.turn(31 * 86_400)  # settled in a window that nothing counted yet
    await ledger.record(entry(call.request_id, user_id=LONG_USER, cost_usd=Decimal("0.0002")))
    assert counters(database) == {(own.scope, own.kind): 0}
    assert not [text for text in gate.statements if "names" in text or "DISTINCT" in text]
    await ledger.aclose()


def test_a_search_for_a_long_name_takes_one_step_for_each_user(database):
    with reading(database) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {spending._NAMES}", {"tenant": "acme"})]
    reads = [step for step in plan if "ledger" in step]
    assert len(reads) == 2
    assert all("USING COVERING INDEX ledger_user_ts" in step for step in reads)


async def test_idle_counters_go_and_those_that_still_say_something_stay(database, clock):
    ledger = SqliteLedger(database, now_ms=clock)
    drained, full = Limit("key:a", "requests_per_minute", 1, 5), Limit("key:b", "tokens_per_minute", 1, 9000)
    free, held = Limit("key:c", "concurrent_requests", 5), Limit("key:d", "concurrent_requests", 5)
    ended = clock.wish(drained, full, free, MONTH)
    await ledger.open(ended)
    await ledger.record(entry(ended.request_id, cost_usd=ended.cost_usd, usage=attempt().usage))
    await ledger.open(clock.wish(held))
    assert standings(database, [full], clock.now_ms)[0].remaining == 9000 - 1900
    for days, left in ((0, 4), (2, 2), (60, 1)):
        clock.turn(days * 86_400)
        with writing(database) as connection:
            drop_idle(connection, clock.now_ms, idle(connection, clock.now_ms, 100))
        assert len(counters(database)) == left
    assert set(counters(database)) == {("key:d", "concurrent_requests")}
    await ledger.aclose()


@pytest.mark.parametrize(("kind", "hours"), [("usd_per_hour", 3), ("usd_per_day", 72), ("usd_per_month", 41 * 24)])
async def test_a_dollar_window_that_is_over_goes_though_others_of_longer_kinds_stay(database, clock, kind, hours):
    """With a hundred thousand users a day, forty days of them would be four million rows."""
    ledger = SqliteLedger(database, now_ms=clock)
    await ledger.open(clock.wish(Limit("user:acme/bob", kind, usd("1"))))
    with reading(database) as connection:
        assert idle(connection, clock.now_ms, 10) == []
        assert idle(connection, clock.now_ms + hours * 3_600_000, 10) == [("user:acme/bob", kind)]
    await ledger.aclose()


def test_idle_counters_are_found_in_one_walk_and_kept_if_they_are_used_again(database, clock):
    keys: list[tuple[str, LimitKind]] = [(f"tenant:{number}", "concurrent_requests") for number in range(5)]
    with writing(database) as connection:
        connection.executemany("INSERT INTO limit_counters VALUES (?, ?, 0, 0)", keys)
        assert idle(connection, clock.now_ms, 2) == keys[:2]
        assert idle(connection, clock.now_ms, 9, keys[1]) == keys[2:]
        given = ("now", "hours", "day", "days", "months", "scope", "kind", "most")
        plan = connection.execute(f"EXPLAIN QUERY PLAN {limits._FIND_IDLE}", dict.fromkeys(given, 0)).fetchall()
        assert ["SEARCH" in step[3] for step in plan] == [True]
        connection.execute("UPDATE limit_counters SET value = 1 WHERE scope = 'tenant:3'")
        drop_idle(connection, clock.now_ms, keys)
    assert counters(database) == {keys[3]: 1}


def test_scopes_mean_what_those_who_name_them_mean(database, clock):
    asyncio.run(_four_calls(database, clock))
    scopes = {
        user_scope("acme", "bob b/1"): 2,
        user_scope("acme", LONG_USER): 4,
        tenant_scope("other/one"): 16,
        tenant_scope("acme", "cheap"): 6,
        key_scope("k1"): 1,
        tier_scope("cheap"): 6,
    }
    since_ms = clock.now_ms - 12 * 3_600_000
    with closing(open_database(database)) as connection:
        assert {scope: spent_nano(connection, scope, since_ms) for scope in scopes} == scopes
