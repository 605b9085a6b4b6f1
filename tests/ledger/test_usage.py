"""Questions about usage: every row in exactly one group, sums exact, wherever the rows lie."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmrouter.database import migrate, open_database
from llmrouter.errors import StoreUnavailable, UsageError
from llmrouter.ledger.append import append
from llmrouter.ledger.archiving import archive_entries
from llmrouter.ledger.usage import DIMENSIONS, NUMBERS, Group, Measure, Question, ask, parse_day, parse_dimensions
from llmrouter.ledger.usage_books import usage_sources
from llmrouter.ledger.usage_sql import SQLITE, SqlSource
from llmrouter.types import LedgerEntry, Usage
from tests.ledger.books import NOON, attempt, entries, entry
from tests.ledger.usage_oracle import expected, found

TAGS = ["team", "a/b~c", 'quo"te', "ä.b", "$", ""]
DAYS = [date(2026, 11, 29), date(2026, 11, 30), date(2026, 12, 1), date(2026, 12, 2)]


def fill(path: Path, made: list[LedgerEntry]) -> Path:
    migrate(path)
    with closing(open_database(path)) as connection:
        append(connection, made)
    return path


@st.composite
def booked(draw: st.DrawFn) -> list[LedgerEntry]:
    """Some entries of a few days, tenants and models, so that groups have several rows."""
    some = draw(st.lists(entries, max_size=8))
    few: dict[str, st.SearchStrategy[Any]] = {
        "tenant_id": st.sampled_from(["acme", "it's", ""]),
        "tier": st.sampled_from(["auto", "fast"]),
        "user_id": st.sampled_from([None, "ann", "Böb"]),
        "error_code": st.sampled_from([None, "unknown", "upstream_error"]),
        "degraded_to": st.sampled_from([None, "fast"]),
        "latency_class": st.sampled_from(["interactive", "batch"]),
        "tags": st.dictionaries(st.sampled_from(TAGS), st.sampled_from(["x", "ü", "1"]), max_size=2),
        "ts": st.sampled_from(DAYS).flatmap(
            lambda day: st.integers(0, 86_400_000_000 - 1).map(
                lambda us: datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(microseconds=us)
            )
        ),
    }
    return [
        replace(made, request_id=f"r{number}", **{name: draw(values) for name, values in few.items()})
        for number, made in enumerate(some)
    ]


@st.composite
def questions(draw: st.DrawFn) -> Question:
    measure: Measure = draw(st.sampled_from(list(DIMENSIONS)))
    known = [*DIMENSIONS[measure], *(f"tag:{name}" for name in TAGS if name)]
    since, until = sorted(draw(st.lists(st.sampled_from(DAYS), min_size=2, max_size=2, unique=True)))
    return Question(
        measure,
        tuple(draw(st.lists(st.sampled_from(known), max_size=4, unique=True))),
        draw(st.sampled_from([None, since])),
        draw(st.sampled_from([None, until])),
        tuple(draw(st.lists(st.sampled_from(["acme", "it's", "nobody"]), max_size=2, unique=True))),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=booked(), asked=st.lists(questions(), min_size=1, max_size=3), rolled=st.none() | st.sampled_from(DAYS))
def test_every_answer_is_what_the_rows_add_up_to(tmp_path_factory, made, asked, rolled):
    """Also when days were archived in between, and rows of archived days came in later."""
    path = tmp_path_factory.mktemp("books") / "llmrouter.db"
    half = len(made) // 2
    fill(path, made[:half])
    if rolled is not None:
        list(archive_entries(path, rolled, pause=lambda _: None))
    fill(path, made[half:])
    with usage_sources(path) as sources:
        for question in asked:
            assert found(ask(sources, question).groups) == expected(made, question)


def test_groups_come_in_the_order_of_their_keys_and_those_without_one_last(tmp_path):
    made = [entry(f"r{at}", user_id=user) for at, user in enumerate(["bob", None, "ann", "bob"])]
    with usage_sources(fill(tmp_path / "l.db", made)) as sources:
        assert [group.keys for group in ask(sources, Question(by=("user",))).groups] == [("ann",), ("bob",), (None,)]


def test_the_total_is_the_sum_of_the_groups_and_zero_for_none(tmp_path):
    path = fill(tmp_path / "l.db", [entry("r1"), entry("r2", tenant_id="other")])
    with usage_sources(path) as sources:
        grouped, whole = ask(sources, Question(by=("tenant",))), ask(sources, Question())
        assert grouped.total() == whole.total() == whole.groups[0].numbers
        assert whole.total()[:1] == (2,)
        nothing = ask(sources, Question(since=date(2030, 1, 1)))
    assert nothing.groups == ()
    assert set(nothing.total()) == {0}


def test_both_measures_count_the_same_tokens_and_dollars(tmp_path):
    attempts = (attempt(0, outcome="timeout", committed=False, usage=Usage(1, 0, 0, 0, 0)), attempt(1, model_id="l"))
    costs = sum((each.cost_usd for each in attempts), Decimal(0))
    tokens = attempts[0].usage + attempts[1].usage
    path = fill(tmp_path / "l.db", [entry("r1", attempts=attempts, usage=tokens, cost_usd=costs)])
    with usage_sources(path) as sources:
        calls = dict(zip(NUMBERS["calls"], ask(sources, Question("calls")).total(), strict=True))
        attempted = dict(zip(NUMBERS["attempts"], ask(sources, Question("attempts")).total(), strict=True))
    same = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "cost_usd")
    assert [calls[name] for name in same] == [attempted[name] for name in same]
    assert (calls["requests"], attempted["attempts"], attempted["failed"]) == (1, 2, 1)


def test_sums_beyond_64_bits_are_exact(tmp_path):
    dear = Decimal("9000000.000000000001")
    made = [entry(f"r{at}", cost_usd=dear, attempts=(attempt(cost_usd=dear),)) for at in range(3)]
    path = fill(tmp_path / "l.db", made)
    list(archive_entries(path, date(2027, 1, 1), pause=lambda _: None))
    fill(path, [entry("late", cost_usd=dear, attempts=(attempt(cost_usd=dear),))])
    with usage_sources(path) as sources:
        total = ask(sources, Question("attempts")).total()
    assert total[-1] == 36_000_000_000_000_000_004


class Place:
    def __init__(self, *keys: str) -> None:
        self.keys = keys

    def ask(self, question: Question) -> list[Group]:
        return [Group((key,), (1,) * len(NUMBERS["calls"])) for key in self.keys]


def test_more_groups_than_wanted_are_an_error_that_says_what_to_do():
    question = Question(by=("tenant",), most=3)
    assert len(ask([Place("a", "b"), Place("b", "c")], question).groups) == 3
    with pytest.raises(UsageError, match=r"more than 3 groups; narrow it down"):
        ask([Place("a", "b"), Place("c", "d")], question)


def test_a_place_is_not_read_further_than_the_groups_that_are_allowed(tmp_path):
    path = fill(tmp_path / "l.db", [entry(f"r{at}", key_id=f"k{at}") for at in range(20)])
    with usage_sources(path) as sources:
        assert len(sources[0].ask(Question(by=("key",), most=4))) == 5


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (Question(by=("colour",)), "cannot group calls by 'colour'; known: tenant, key"),
        (Question(by=("price",)), "cannot group calls by 'price'"),
        (Question(by=("tenant", "tenant")), "'tenant' is there twice"),
        (Question(by=("tag:\0",)), "cannot have a NUL in its name"),
        (Question(tenants=("a\0",)), "cannot have a NUL in its name"),
        (Question(by=("tag:",)), "names no tag"),
        (Question(since=NOON.date(), until=NOON.date()), "is empty"),
    ],
)
def test_a_question_without_sense_is_refused(question, message):
    with pytest.raises(UsageError, match=message):
        ask([], question)


def test_dimensions_may_be_repeated_or_separated_by_commas():
    assert parse_dimensions(["tenant, day", "tag:team", ""]) == ("tenant", "day", "tag:team")


@pytest.mark.parametrize(("text", "day"), [("2026-11-30", date(2026, 11, 30)), ("2026-11", date(2026, 11, 1))])
def test_a_day_and_a_month_are_read(text, day):
    assert parse_day(text, "--since") == day


@pytest.mark.parametrize(
    "text", ["", "2026", "2026-13", "2026-02-30", "20261130", "2026-W48-1", "30.11.2026", "2026-11-3", "٢٠٢٦-11-30"]
)
def test_what_is_no_day_is_named(text):
    with pytest.raises(UsageError, match=f"--since {text!r} is not a day such as 2026-11-30"):
        parse_day(text, "--since")


def test_a_question_that_takes_too_long_is_given_up(tmp_path):
    path = fill(tmp_path / "l.db", [entry("r1")])
    endless = "(WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n) > 0"

    def ask_it() -> None:
        with usage_sources(path, timeout_s=0.1) as sources:
            file = sources[0]
            assert isinstance(file, SqlSource)
            ask([SqlSource(file.connection, SQLITE, endless)], Question())

    with pytest.raises(UsageError, match=r"longer than 0.1 s"):
        ask_it()


def test_books_that_cannot_be_read_say_so(tmp_path):
    path = tmp_path / "l.db"
    path.write_bytes(b"no database" * 500)
    with pytest.raises(StoreUnavailable, match="not a database"), usage_sources(path) as sources:
        ask(sources, Question())
