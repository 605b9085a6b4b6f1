"""Which price holds for a model at a moment: the user's own, else the table's, else an error with a hint."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from genai_prices import types as table
from genai_prices.data_snapshot import DataSnapshot, set_custom_snapshot

from llmrouter.config import GpuPrice, ListPrice, ModelConfig, PriceConfig
from llmrouter.errors import ConfigError
from llmrouter.pricing.table import resolve_ladder, resolve_price

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


def own_price(input_usd: str, output_usd: str) -> ModelConfig:
    usd = ListPrice(input_usd_per_mtok=Decimal(input_usd), output_usd_per_mtok=Decimal(output_usd))
    return ModelConfig(price=PriceConfig(usd=usd))


def from_table(reference: str) -> ModelConfig:
    return ModelConfig(price=PriceConfig(table=reference))


@pytest.fixture
def made_up_table():
    """A provider with a price that fell on a day, one that rises with the prompt, and two that cannot be used."""
    models = [
        table.ModelInfo(
            id="dated",
            match=table.ClauseEquals("dated"),
            prices=[
                table.ConditionalPrice(prices=table.ModelPrice(input_mtok=Decimal(4), output_mtok=Decimal(8))),
                table.ConditionalPrice(
                    table.StartDateConstraint(date(2026, 12, 1)),
                    prices=table.ModelPrice(input_mtok=Decimal(3), output_mtok=Decimal(6)),
                ),
            ],
        ),
        table.ModelInfo(
            id="long",
            match=table.ClauseEquals("long"),
            prices=table.ModelPrice(
                input_mtok=table.TieredPrices(Decimal(1), [table.Tier(200_000, Decimal(2))]),
                output_mtok=Decimal(5),
            ),
        ),
        table.ModelInfo(id="unpriced", match=table.ClauseEquals("unpriced"), prices=table.ModelPrice()),
        table.ModelInfo(
            id="per-request",
            match=table.ClauseEquals("per-request"),
            prices=table.ModelPrice(input_mtok=Decimal(1), requests_kcount=Decimal(5)),
        ),
    ]
    provider = table.Provider(id="acme", name="Acme", api_pattern="https://acme", models=models)
    set_custom_snapshot(DataSnapshot([provider], from_auto_update=False))
    yield
    set_custom_snapshot(None)


def test_the_users_own_price_needs_no_table():
    own = ModelConfig(
        price=PriceConfig(usd=ListPrice(input_usd_per_mtok=Decimal("1.5"), output_usd_per_mtok=Decimal(6)))
    )
    price = resolve_price("m", own, NOW)
    assert (price.input_usd_per_mtok, price.output_usd_per_mtok) == (Decimal("1.5"), Decimal(6))
    assert price.price_id.startswith("config:m#")


def test_a_missing_cached_or_cache_write_price_is_the_input_price():
    own = ModelConfig(
        price=PriceConfig(usd=ListPrice(input_usd_per_mtok=Decimal("1.5"), output_usd_per_mtok=Decimal(6)))
    )
    price = resolve_price("m", own, NOW)
    assert (price.cached_usd_per_mtok, price.cache_write_usd_per_mtok) == (Decimal("1.5"), Decimal("1.5"))


def test_a_cached_price_of_zero_is_a_price():
    usd = ListPrice(
        input_usd_per_mtok=Decimal(1),
        output_usd_per_mtok=Decimal(1),
        cached_usd_per_mtok=Decimal(0),
        cache_write_usd_per_mtok=Decimal(0),
    )
    price = resolve_price("m", ModelConfig(price=PriceConfig(usd=usd)), NOW)
    assert (price.cached_usd_per_mtok, price.cache_write_usd_per_mtok) == (Decimal(0), Decimal(0))


def test_an_own_pool_is_priced_by_gpu_time():
    gpu = GpuPrice(
        usd_per_hour=Decimal("3.2"),
        gpus=2,
        input_pool_s_per_token=Decimal("0.0003"),
        output_pool_s_per_token=Decimal("0.0002"),
    )
    price = resolve_price("own", ModelConfig(price=PriceConfig(gpu=gpu)), NOW)
    assert (price.gpu_usd_per_hour, price.gpus) == (Decimal("3.2"), 2)
    assert (price.input_pool_s_per_token, price.output_pool_s_per_token) == (Decimal("0.0003"), Decimal("0.0002"))


def test_equal_rates_have_equal_ids_and_a_changed_rate_a_new_one():
    first = resolve_price("m", own_price("1.5", "6"), NOW).price_id
    assert resolve_price("m", own_price("1.50", "6.0"), NOW + timedelta(days=400)).price_id == first
    assert resolve_price("m", own_price("1.6", "6"), NOW).price_id != first


def test_the_shipped_table_knows_a_hosted_model():
    price = resolve_price("gpt", from_table("openai/gpt-4o"), NOW)
    assert price.input_usd_per_mtok == Decimal("2.5")
    assert (price.cached_usd_per_mtok, price.output_usd_per_mtok) == (Decimal("1.25"), Decimal(10))
    assert price.price_id.startswith("genai-prices:openai/gpt-4o")


def test_an_unknown_model_is_an_error_with_the_nearest_names():
    with pytest.raises(ConfigError, match=r"models\.gpt\.price\.table: .*'gpt-4oo' of openai; did you mean 'gpt-4o'"):
        resolve_price("gpt", from_table("openai/gpt-4oo"), NOW)


def test_an_unknown_provider_is_an_error_with_the_nearest_names():
    with pytest.raises(ConfigError, match="no provider 'opnai'; did you mean 'openai'"):
        resolve_price("gpt", from_table("opnai/gpt-4o"), NOW)


@pytest.mark.usefixtures("made_up_table")
def test_the_price_is_that_of_the_day():
    model = from_table("acme/dated")
    last_moment = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)
    assert resolve_price("m", model, last_moment).input_usd_per_mtok == 4
    new = resolve_price("m", model, last_moment + timedelta(seconds=1))
    assert new.input_usd_per_mtok == 3
    assert new.price_id.startswith("genai-prices:acme/dated@2026-12-01#")


@pytest.mark.usefixtures("made_up_table")
def test_a_long_prompt_is_billed_whole_at_its_step():
    ladder = resolve_ladder("m", from_table("acme/long"), NOW)
    assert ladder.price(200_000).input_usd_per_mtok == 1
    assert ladder.price(200_001).input_usd_per_mtok == 2
    assert ladder.price(200_001).output_usd_per_mtok == 5
    assert ladder.price(200_000).price_id != ladder.price(200_001).price_id


@pytest.mark.usefixtures("made_up_table")
@pytest.mark.parametrize(("model", "why"), [("unpriced", "no token price"), ("per-request", "a fee for each request")])
def test_a_model_that_cannot_be_priced_by_tokens_is_an_error_and_never_free(model, why):
    with pytest.raises(ConfigError, match=rf"{why}.*give price\.usd instead"):
        resolve_price("m", from_table(f"acme/{model}"), NOW)
