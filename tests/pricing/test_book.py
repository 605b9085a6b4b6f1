"""Prices of a whole configuration, looked up beforehand."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from genai_prices import types as table
from genai_prices.data_snapshot import DataSnapshot, set_custom_snapshot

from llmrouter.config import parse
from llmrouter.errors import ConfigError
from llmrouter.pricing.book import PriceBook
from llmrouter.types import Usage

MIDNIGHT = datetime(2026, 12, 1, tzinfo=UTC)
EVENING = MIDNIGHT - timedelta(minutes=5)


def config(reference: str):
    return parse(
        f"""
        [models.small]
        price.usd = {{ input_usd_per_mtok = "0.1", output_usd_per_mtok = "0.2" }}
        [models.hosted]
        price.table = "{reference}"
        [pools.p]
        model = "small"
        api = "echo"
        [tiers.auto]
        small = "small"
        """
    )


@pytest.fixture(autouse=True)
def _made_up_table():
    model = table.ModelInfo(
        id="dated",
        match=table.ClauseEquals("dated"),
        prices=[
            table.ConditionalPrice(prices=table.ModelPrice(input_mtok=Decimal(4), output_mtok=Decimal(8))),
            table.ConditionalPrice(
                table.StartDateConstraint(MIDNIGHT.date()),
                prices=table.ModelPrice(
                    input_mtok=table.TieredPrices(Decimal(3), [table.Tier(1000, Decimal(6))]), output_mtok=Decimal(6)
                ),
            ),
        ],
    )
    provider = table.Provider(id="acme", name="Acme", api_pattern="https://acme", models=[model])
    set_custom_snapshot(DataSnapshot([provider], from_auto_update=False))
    yield
    set_custom_snapshot(None)


def test_a_cost_is_the_usage_at_the_models_price():
    book = PriceBook(config("acme/dated"), lambda: EVENING)
    usage = Usage(input_tokens=1500, output_tokens=400)
    assert book.cost("small", usage) == Decimal("0.00023")
    assert book.cost("hosted", usage) == Decimal("0.0092")


def test_a_day_change_reaches_the_book_with_the_refresh_and_names_the_model():
    book = PriceBook(config("acme/dated"), lambda: EVENING)
    assert book.refresh(MIDNIGHT - timedelta(microseconds=1)) == ()
    assert book.refresh(MIDNIGHT) == ("hosted",)
    assert book.price("hosted").input_usd_per_mtok == 3
    assert book.refresh(MIDNIGHT) == ()


def test_refresh_asks_the_clock_when_no_moment_is_given():
    moments = iter([EVENING, MIDNIGHT])
    book = PriceBook(config("acme/dated"), lambda: next(moments))
    assert book.refresh() == ("hosted",)


def test_a_long_prompt_costs_and_is_named_by_its_step():
    book = PriceBook(config("acme/dated"), lambda: MIDNIGHT)
    assert book.cost("hosted", Usage(input_tokens=1000)) == Decimal("0.003")
    assert book.cost("hosted", Usage(input_tokens=1001)) == Decimal("0.006006")
    assert ">1000#" in book.price("hosted", 1001).price_id


def test_all_prices_that_may_be_used_are_listed_for_the_books():
    book = PriceBook(config("acme/dated"), lambda: MIDNIGHT)
    ids = [price.price_id for price in book.prices()]
    assert ids == [book.price("small").price_id, book.price("hosted").price_id, book.price("hosted", 1001).price_id]


def test_an_unknown_model_stops_the_start():
    with pytest.raises(ConfigError, match=r"models\.hosted\.price\.table"):
        PriceBook(config("acme/dates"), lambda: EVENING)


def test_the_price_table_is_not_imported_before_it_is_needed():
    """It takes a second; a configuration with its own prices never pays it."""
    program = "import sys, llmrouter.pricing.book; sys.exit('genai_prices' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
