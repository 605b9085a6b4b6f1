"""The benchmark of stores: that all ways do the whole work, and what its report says; no times."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

from benchmarks.gateway.report import replace_block
from benchmarks.stores.books import WAYS, Load, WrongBooks, by_ledger, check, fresh
from benchmarks.stores.calls import FIVE_LIMITS, TWO_RATES
from benchmarks.stores.cli import main, parse_arguments
from benchmarks.stores.limits import Reserving, by_incr, by_leases, by_script
from benchmarks.stores.parts import PARTS, ledger
from benchmarks.stores.racing import race
from benchmarks.stores.report import BEGIN, END, Run, Table, as_json, as_markdown
from benchmarks.stores.servers import NotInstalled, redis
from benchmarks.stores.shipping import BATCH, shipment
from benchmarks.stores.turns import Contender, Part, Turn, play
from tests.servers import PostgresServer, RedisServer


def turns(*given: Turn) -> Callable[[], Turn]:
    waiting = iter(given)
    return lambda: next(waiting)


def some_part() -> Part:
    bare = Contender("bare", turns(Turn(10, 1.0, 0.1), Turn(10, 2.0, 0.1), Turn(10, 1.0, 0.2)))
    ours = turns(
        Turn(10, 2.0, 0.2, {"trips": 1.5}), Turn(10, 1.0, 0.2, {"trips": 0.5}), Turn(30, 1.0, 0.3, {"trips": 1})
    )
    return Part("some", "Some store", "call", ("loop",), (bare, Contender("ours", ours, ("bare",))))


def test_contenders_take_turns_and_are_held_against_the_loop_of_the_same_round():
    told: list[str] = []
    bare, ours = play(some_part(), 3, lambda name, _: told.append(name))
    assert told == ["bare", "ours"] * 3
    assert (bare.rates, bare.costs) == ((), ())
    assert ours.rates == (2.0,)  # of 0.5, 2 and 3
    assert ours.costs == pytest.approx((2.0,))  # of 2, 2 and 0.5


def test_the_report_is_a_table_that_a_page_takes_between_its_marks(tmp_path):
    part = some_part()
    run = Run("2026-12-01", "a machine", 3, [1.0, 2.5], 2.4, [Table(part, play(part, 3, lambda *_: None))])
    run.notes.append("limits left out: redis-server is not installed")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    replace_block(page, as_markdown(run), BEGIN, END)
    text = page.read_text()
    assert "old" not in text
    assert "| each call | a second | x loop | CPU µs | x loop | trips |" in text
    assert "| bare | 10 |  | 10000 |  |  |" in text
    assert "| ours | 10 | 2 | 20000 | 2 | 1 |" in text
    assert "Load average 1.0 to 2.5" in text
    assert "NOTE: limits left out" in text
    assert [result["name"] for result in as_json(run)["parts"]["some"]] == ["bare", "ours"]


@pytest.mark.parametrize("limited", [False, True], ids=["no-limits", "limits"])
@pytest.mark.parametrize(("way", "at_once", "commits"), [("ledger", 3, None), ("loop", 1, 14), ("loop", 4, 4)])
def test_either_way_leaves_every_call_in_the_books_once(tmp_path, way, at_once, commits, limited):
    path = fresh(tmp_path / "books.db")
    turn = WAYS[way](path, Load(7, at_once, limited), lambda: None)
    check(path, 7)
    assert turn.calls == 7
    assert commits is None or turn.figures["commits a call"] == commits / 7


def test_both_ways_leave_the_same_in_the_counters(tmp_path):
    spent = {}
    for way in WAYS:
        path = fresh(tmp_path / f"{way}.db")
        WAYS[way](path, Load(5, 2, limited=True), lambda: None)
        with closing(sqlite3.connect(path)) as connection:
            spent[way] = connection.execute("SELECT value FROM limit_counters WHERE kind = 'usd_per_day'").fetchall()
    assert spent["ledger"] == spent["loop"] == [(5 * 450_000,)]


def test_books_that_lack_a_call_or_hold_a_reservation_are_wrong(tmp_path):
    path = fresh(tmp_path / "books.db")
    by_ledger(path, Load(3, 1))
    with pytest.raises(WrongBooks, match="3, 3, 0, 0"):
        check(path, 4)


def test_a_fresh_file_holds_nothing_of_the_last_turn(tmp_path):
    path = fresh(tmp_path / "books.db")
    by_ledger(path, Load(3, 1))
    check(fresh(path), 0)


def test_processes_race_for_one_file(tmp_path):
    path = fresh(tmp_path / "books.db")
    turn = race("ledger", path, Load(4, 2, limited=True), 2)
    check(path, 8)
    assert turn.calls == 8
    assert turn.cpu_s > 0


def test_a_process_that_fails_is_told_of(tmp_path):
    with pytest.raises(RuntimeError, match="has failed"):
        race("loop", tmp_path / "missing" / "books.db", Load(1, 1), 1)


def test_a_part_can_be_played_whole(tmp_path):
    with ledger(tmp_path, scale=0.002) as part:
        results = play(part, 1, lambda *_: None)
    assert len({result.name for result in results}) == 10
    assert all(len(result.rates) == (0 if "bare" in result.name else 2) for result in results)


@pytest.mark.parametrize("limits", [TWO_RATES, FIVE_LIMITS], ids=["rates", "all-kinds"])
def test_leases_and_bare_loops_reserve_and_settle(redis_server: RedisServer, limits):
    for way in (by_incr, by_script):
        assert way(redis_server.url, Reserving(8, 2, limits)).figures["round trips a call"] == 2
    leased = by_leases(redis_server.url, Reserving(40, 2, limits)).figures
    asking = by_leases(redis_server.url, Reserving(8, 2, limits, lease_s=0.0)).figures
    assert leased["from the lease"] > 0
    assert asking["from the lease"] == 0
    assert asking["round trips a call"] > leased["round trips a call"]


def test_both_ways_bring_the_same_entries_to_the_server(postgres_server: PostgresServer, tmp_path):
    import psycopg

    try:
        with shipment(tmp_path / "spool.db", postgres_server.url(), 2) as under_way:
            assert (under_way.copy(1).calls, under_way.ship(1).calls) == (BATCH, BATCH)
            counts = []
            for name in ("bare", "shipped"):
                with psycopg.connect(postgres_server.url(name)) as connection:
                    counts.append(connection.execute("SELECT count(*), sum(cost_picousd) FROM ledger").fetchone())
        assert counts[0] == counts[1]
    finally:
        with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
            for name in ("bare", "shipped"):
                connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())


def test_all_parts_are_played_unless_some_are_named():
    assert parse_arguments([]).only == list(PARTS)
    assert parse_arguments(["--only", "power"]).only == ["power"]


def test_wrong_use_ends_with_code_2(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--only", "nothing"])
    assert left.value.code == 2
    assert "invalid choice: 'nothing'" in capsys.readouterr().err


def test_a_missing_server_is_said_with_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotInstalled, match="apt-get install redis-server"), redis(tmp_path / "redis"):
        pass
