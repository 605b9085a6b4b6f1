"""Dollars to pico-dollars and back, and sums in SQL that neither round nor overflow."""

import sqlite3
from contextlib import closing
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.pricing.money import MAX_STORED_USD, exact_sum, from_halves, from_pico, quantise, to_pico

pico = st.integers(0, 2**63 - 1)


@given(pico)
def test_what_is_stored_reads_back(amount):
    assert to_pico(from_pico(amount)) == amount


@given(st.decimals(0, 9_000_000, places=15))
def test_a_finer_amount_is_stored_as_its_rounding(amount):
    assert from_pico(to_pico(amount)) == quantise(amount)
    assert abs(quantise(amount) - amount) <= Decimal("0.5e-12")


def test_ties_go_to_the_even_neighbour():
    assert quantise(Decimal("0.5e-12")) == 0
    assert quantise(Decimal("1.5e-12")) == Decimal("2e-12")
    assert to_pico(Decimal("2.5e-12")) == 2


def test_the_largest_amount_fits_and_the_next_is_refused():
    assert to_pico(MAX_STORED_USD) == 2**63 - 1
    with pytest.raises(OverflowError, match="more than one entry can hold"):
        to_pico(MAX_STORED_USD + Decimal("1e-12"))


@given(st.lists(st.none() | pico, max_size=30))
def test_the_sum_in_sql_is_the_sum_in_python(amounts):
    assert _sum(amounts) == sum((from_pico(amount) for amount in amounts if amount is not None), Decimal(0))


def test_a_plain_sum_would_overflow_where_ours_does_not():
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE books (cost INTEGER)")
        connection.executemany("INSERT INTO books VALUES (?)", [(2**63 - 1,)] * 2)
        with pytest.raises(sqlite3.OperationalError, match="integer overflow"):
            connection.execute("SELECT sum(cost) FROM books").fetchone()
    assert _sum([2**63 - 1, 2**63 - 1]) == 2 * MAX_STORED_USD


def _sum(amounts: list[int | None]) -> Decimal:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE books (cost INTEGER)")
        connection.executemany("INSERT INTO books VALUES (?)", [(amount,) for amount in amounts])
        return from_halves(*connection.execute(f"SELECT {exact_sum('cost')} FROM books").fetchone())
