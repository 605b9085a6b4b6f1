"""Price rows kept with the books."""

from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrouter.database import migrate, open_database, reading, writing
from llmrouter.ledger.prices import keep_prices, kept_price
from llmrouter.types import Price

rates = st.decimals(0, 10_000, places=9)
prices = st.builds(
    Price,
    price_id=st.text(st.characters(codec="utf-8"), max_size=20),
    input_usd_per_mtok=rates,
    cached_usd_per_mtok=rates,
    cache_write_usd_per_mtok=rates,
    output_usd_per_mtok=rates,
    gpu_usd_per_hour=st.none() | rates,
    gpus=st.integers(1, 64),
    input_pool_s_per_token=rates,
    output_pool_s_per_token=rates,
)


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = tmp_path_factory.mktemp("books") / "llmrouter.db"
    migrate(path)
    with closing(open_database(path)):  # whoever closes a database last merges its log, which takes long
        yield path


@settings(deadline=None, max_examples=40)
@given(prices)
def test_a_kept_price_reads_back_equal(database, price):
    with writing(database) as connection:
        connection.execute("DELETE FROM prices")
    keep_prices(database, [price])
    assert kept_price(database, price.price_id) == price


def test_a_price_is_kept_once_with_the_day_it_was_first_seen(database):
    price = Price("p1", input_usd_per_mtok=Decimal(1))
    keep_prices(database, [price], now=lambda: datetime(2026, 12, 1, tzinfo=UTC))
    keep_prices(database, [price, price], now=lambda: datetime(2026, 12, 2, tzinfo=UTC))
    with reading(database) as connection:
        found = connection.execute("SELECT first_seen FROM prices WHERE price_id = 'p1'").fetchall()
    assert found == [("2026-12-01T00:00:00.000000Z",)]


def test_a_price_that_was_never_kept_is_none(database):
    assert kept_price(database, "unheard of") is None
