"""What a call costs: engines' ways of counting, the price of a usage, and the laws that hold for all of them."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.pricing.cost import MAX_TOKENS, USAGE_FAULTS, cost_usd, normalise_usage
from llmrouter.types import Price, Usage

LIST = Price(
    "config:hosted#1",
    input_usd_per_mtok=Decimal("2.50"),
    cached_usd_per_mtok=Decimal("1.25"),
    cache_write_usd_per_mtok=Decimal("3.125"),
    output_usd_per_mtok=Decimal("10"),
)
POOL = Price(
    "config:own#1",
    gpu_usd_per_hour=Decimal("3.20"),
    gpus=2,
    input_pool_s_per_token=Decimal("0.000147"),
    output_pool_s_per_token=Decimal("0.000079"),
)
HALF = Decimal("0.5e-12")


@st.composite
def usages(draw):
    """A usage whose parts fit their totals."""
    cached, written, plain = (draw(st.integers(0, 3_000_000)) for _ in range(3))
    reasoning, visible = (draw(st.integers(0, 300_000)) for _ in range(2))
    return Usage(cached + written + plain, cached, written, reasoning + visible, reasoning)


def rates(places: int) -> Any:
    return st.decimals(0, 1000, places=places)


def list_prices(places: int) -> Any:
    return st.builds(
        Price,
        price_id=st.just("p"),
        input_usd_per_mtok=rates(places),
        cached_usd_per_mtok=rates(places),
        cache_write_usd_per_mtok=rates(places),
        output_usd_per_mtok=rates(places),
    )


pool_prices = st.builds(
    Price,
    price_id=st.just("p"),
    gpu_usd_per_hour=st.decimals(0, 100, places=4),
    gpus=st.integers(1, 64),
    input_pool_s_per_token=st.decimals(0, 1, places=9),
    output_pool_s_per_token=st.decimals(0, 1, places=9),
)
counts = st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats() | st.text(max_size=3)
details = st.none() | st.dictionaries(
    st.sampled_from(["cached_tokens", "cache_write_tokens", "reasoning_tokens"]), counts
)
raw_usages = st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": counts,
        "input_tokens": counts,
        "completion_tokens": counts,
        "output_tokens": counts,
        "total_tokens": counts,
        "cache_read_input_tokens": counts,
        "cache_creation_input_tokens": counts,
        "prompt_cache_hit_tokens": counts,
        "prompt_tokens_details": details,
        "completion_tokens_details": details,
    },
)


def test_g055_cached_tokens_are_billed_once_at_their_own_rate():
    usage = Usage(input_tokens=2006, cached_tokens=1920, output_tokens=300)
    # (2006 - 1920) * 2.50 + 1920 * 1.25 + 300 * 10 dollars per million
    assert cost_usd(LIST, usage) == Decimal("0.005615")


def test_cache_writes_are_billed_at_their_rate_and_not_as_input_again():
    usage = Usage(input_tokens=1000, cached_tokens=200, cache_write_tokens=300, output_tokens=0)
    assert cost_usd(LIST, usage) == (500 * Decimal("2.50") + 200 * Decimal("1.25") + 300 * Decimal("3.125")) / 10**6


def test_reasoning_is_part_of_the_output():
    assert cost_usd(LIST, Usage(output_tokens=400, reasoning_tokens=350)) == Decimal("0.004")


def test_an_own_pool_costs_its_gpu_time_and_nothing_for_cached_tokens():
    usage = Usage(input_tokens=1500, cached_tokens=500, output_tokens=400)
    pool_s = 1000 * Decimal("0.000147") + 400 * Decimal("0.000079")
    assert abs(cost_usd(POOL, usage) - Decimal("6.40") * pool_s / 3600) <= HALF
    assert cost_usd(POOL, usage) == Decimal("0.000317511111")


STYLES: dict[str, dict[str, Any]] = {
    "openai": {
        "prompt_tokens": 2006,
        "completion_tokens": 300,
        "total_tokens": 2306,
        "prompt_tokens_details": {"cached_tokens": 1920},
    },
    "openai_responses": {"input_tokens": 2006, "output_tokens": 300, "input_tokens_details": {"cached_tokens": 1920}},
    "deepseek": {
        "prompt_tokens": 2006,
        "completion_tokens": 300,
        "prompt_cache_hit_tokens": 1920,
        "prompt_cache_miss_tokens": 86,
    },
    "anthropic": {"input_tokens": 86, "cache_read_input_tokens": 1920, "output_tokens": 300},
    "proxy_that_added": {
        "prompt_tokens": 2006,
        "completion_tokens": 300,
        "total_tokens": 2306,
        "cache_read_input_tokens": 1920,
        "cache_creation_input_tokens": 0,
    },
    "proxy_that_did_not_add": {
        "prompt_tokens": 86,
        "completion_tokens": 300,
        "total_tokens": 2306,
        "cache_read_input_tokens": 1920,
    },
    "proxy_without_a_total": {"prompt_tokens": 86, "completion_tokens": 300, "cache_read_input_tokens": 1920},
    "zero_beside_details": {
        "prompt_tokens": 2006,
        "completion_tokens": 300,
        "cache_read_input_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": 1920},
    },
}


@pytest.mark.parametrize("style", STYLES)
def test_g057_both_ways_of_counting_cached_tokens_give_the_same_usage(style):
    usage, faults = normalise_usage(STYLES[style])
    assert usage == Usage(input_tokens=2006, cached_tokens=1920, output_tokens=300)
    assert faults == ()
    assert cost_usd(LIST, usage) == Decimal("0.005615")


def test_g057_cache_writes_come_on_top_in_the_additive_style():
    raw = {
        "input_tokens": 100,
        "cache_read_input_tokens": 700,
        "cache_creation_input_tokens": 200,
        "cache_creation": {"ephemeral_5m_input_tokens": 200, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 50,
    }
    assert normalise_usage(raw) == (Usage(1000, 700, 200, 50), ())


def test_g058_more_cached_than_input_is_cut_and_reported():
    usage, faults = normalise_usage(
        {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 900}}
    )
    assert usage == Usage(input_tokens=100, cached_tokens=100, output_tokens=10)
    assert faults == ("cached_over_input",)
    assert cost_usd(LIST, usage) == 100 * Decimal("1.25") / 10**6 + 10 * Decimal("10") / 10**6


def test_g058_a_cost_is_not_negative_even_for_a_usage_that_nobody_normalised():
    assert cost_usd(LIST, Usage(input_tokens=100, cached_tokens=900, cache_write_tokens=500)) == Decimal("0.000125")
    assert cost_usd(POOL, Usage(input_tokens=100, cached_tokens=900)) == 0
    assert cost_usd(LIST, Usage(-5, -5, -5, -5, -5)) == 0


def test_g059_overlapping_categories_are_billed_once():
    """900 cached and 800 image tokens of a prompt of 1,000: 900 at the cached rate, the other 100 as input."""
    usage, _ = normalise_usage(
        {
            "prompt_tokens": 1000,
            "completion_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": 900, "image_tokens": 800},
        }
    )
    assert cost_usd(LIST, usage) == (900 * Decimal("1.25") + 100 * Decimal("2.50")) / 10**6


def test_g059_cached_and_written_together_are_cut_to_the_input():
    usage, faults = normalise_usage(
        {
            "prompt_tokens": 1000,
            "completion_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": 900, "cache_write_tokens": 800},
        }
    )
    assert usage == Usage(input_tokens=1000, cached_tokens=900, cache_write_tokens=100)
    assert faults == ("parts_over_input",)


def test_reasoning_on_top_of_the_output_is_added_when_the_total_says_so():
    raw = {
        "prompt_tokens": 10,
        "completion_tokens": 20,
        "total_tokens": 130,
        "completion_tokens_details": {"reasoning_tokens": 100},
    }
    assert normalise_usage(raw) == (Usage(10, output_tokens=120, reasoning_tokens=100), ())


def test_reasoning_within_the_output_stays_as_it_is():
    raw = {
        "prompt_tokens": 10,
        "completion_tokens": 120,
        "total_tokens": 130,
        "completion_tokens_details": {"reasoning_tokens": 100},
    }
    assert normalise_usage(raw) == (Usage(10, output_tokens=120, reasoning_tokens=100), ())


@pytest.mark.parametrize(
    ("raw", "usage", "faults"),
    [
        (None, Usage(), ("missing",)),
        ({}, Usage(), ("missing",)),
        ({"prompt_tokens": -5, "completion_tokens": 1}, Usage(output_tokens=1), ("not_a_count",)),
        ({"prompt_tokens": "12", "completion_tokens": True}, Usage(), ("not_a_count",)),
        ({"prompt_tokens": 12.0, "completion_tokens": 1}, Usage(12, output_tokens=1), ()),
        ({"prompt_tokens": 10**30, "completion_tokens": 1}, Usage(MAX_TOKENS, output_tokens=1), ("too_large",)),
        (
            {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 9},
            Usage(5, output_tokens=1),
            ("total_mismatch",),
        ),
        ({"total_tokens": 9, "completion_tokens": 2}, Usage(7, output_tokens=2), ()),
        ({"prompt_tokens": 7, "total_tokens": 7}, Usage(7), ()),
        (
            {"prompt_tokens": 1, "completion_tokens": 2, "completion_tokens_details": {"reasoning_tokens": 3}},
            Usage(1, output_tokens=2, reasoning_tokens=2),
            ("reasoning_over_output",),
        ),
        (
            {
                "input_tokens": 1,
                "output_tokens": 0,
                "cache_creation_input_tokens": 9,
                "cache_creation": {"ephemeral_1h_input_tokens": 9},
            },
            Usage(10, cache_write_tokens=9),
            ("one_hour_cache_write",),
        ),
    ],
)
def test_odd_reports_are_made_usable_and_named(raw, usage, faults):
    assert normalise_usage(raw) == (usage, faults)


@given(raw_usages)
def test_parts_never_exceed_totals_whatever_an_engine_reports(raw):
    usage, faults = normalise_usage(raw)
    assert min(usage.cached_tokens, usage.cache_write_tokens) >= 0
    assert usage.cached_tokens + usage.cache_write_tokens <= usage.input_tokens
    assert 0 <= usage.reasoning_tokens <= usage.output_tokens
    assert set(faults) <= set(USAGE_FAULTS)


@given(list_prices(6), usages(), usages())
def test_the_price_of_a_sum_is_the_sum_of_the_prices(price, one, other):
    """Exactly, for list prices of up to six decimals: nothing is rounded."""
    assert cost_usd(price, one + other) == cost_usd(price, one) + cost_usd(price, other)


@given(list_prices(9) | pool_prices, usages(), usages())
def test_finer_rates_and_gpu_time_differ_by_three_roundings_at_most(price, one, other):
    assert abs(cost_usd(price, one + other) - cost_usd(price, one) - cost_usd(price, other)) <= 3 * HALF


@given(list_prices(6), usages())
def test_a_cost_is_at_least_all_tokens_at_the_lowest_rate_and_at_most_at_the_highest(price, usage):
    all_rates = (
        price.input_usd_per_mtok,
        price.cached_usd_per_mtok,
        price.cache_write_usd_per_mtok,
        price.output_usd_per_mtok,
    )
    tokens = usage.input_tokens + usage.output_tokens
    assert tokens * min(all_rates) <= cost_usd(price, usage) * 10**6 <= tokens * max(all_rates)


@given(
    prompt=st.integers(0, 10_000),
    output=st.integers(0, 10_000),
    cached=st.none() | st.integers(0, 12_000),
    total_off=st.sampled_from([0, 0, 0, 1, -1]),
)
def test_the_short_way_for_plain_usages_gives_what_the_long_way_gives(prompt, output, cached, total_off):
    """An unknown key beside the counts means nothing, but sends the object the long way."""
    raw = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output + total_off}
    if cached is not None:
        raw["prompt_tokens_details"] = {"cached_tokens": cached}
    assert normalise_usage(raw) == normalise_usage({**raw, "vendor_note": "x"})
