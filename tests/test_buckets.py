"""The arithmetic of limits where its corners are; the laws are in `contracts/test_limits_laws.py`."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.buckets import (
    RATE_UNITS,
    Bucket,
    amount_of,
    exceeded,
    longest,
    put_back,
    standing,
    take,
    take_all,
    to_nano,
    unused_of,
    window_start,
)
from llmrouter.types import Exceeded, Limit, LimitKind, Spent
from tests.ledger.books import reservation

RPM = Limit("key:k1", "requests_per_minute", 60, 10)
SLOTS = Limit("key:k1", "concurrent_requests", 3)
HOUR = Limit("key:k1", "usd_per_hour", 100)


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("kind", "begins"),
    [
        ("usd_per_hour", "2026-12-31T23:00:00"),
        ("usd_per_day", "2026-12-31T00:00:00"),
        ("usd_per_month", "2026-12-01T00:00:00"),
    ],
)
def test_a_window_holds_its_first_millisecond_and_not_the_one_before(kind, begins):
    begin = ms(begins)
    assert window_start(kind, ms("2026-12-31T23:59:59.999")) == begin
    assert window_start(kind, begin) == begin
    assert window_start(kind, begin - 1) < begin
    assert window_start(kind, ms("2027-01-01T00:00:00")) == ms("2027-01-01T00:00:00")


def test_dollars_are_rounded_up_so_that_no_counter_is_below_the_truth():
    assert to_nano(Decimal("0.0000000001")) == 1
    assert to_nano(Decimal("1.000000000")) == 10**9


def test_what_a_reservation_needs_is_in_the_unit_of_the_limit():
    given_ = reservation(input_tokens=7, output_tokens=3, cost_usd=Decimal("0.5"))
    kinds: tuple[LimitKind, ...] = ("requests_per_minute", "tokens_per_minute", "concurrent_requests", "usd_per_day")
    assert [amount_of(Limit("s", kind, 1), given_) for kind in kinds] == [1, 10, 1, 5 * 10**8]
    spent = Spent(4, Decimal("0.7"), 0)
    assert [unused_of(Limit("s", kind, 1), given_, spent) for kind in kinds] == [1, 6, 1, -2 * 10**8]


def test_a_bucket_drains_to_the_unit():
    full = take(RPM, Bucket(), 10, 1000)
    assert full == Bucket(10 * RATE_UNITS, 1000)
    assert take(RPM, full, 1, 1999) is None
    assert take(RPM, full, 1, 2000) == Bucket(10 * RATE_UNITS, 2000)


def test_a_clock_that_runs_back_drains_nothing_and_takes_nothing_away():
    bucket = Bucket(5 * RATE_UNITS, 100_000)
    assert take(RPM, bucket, 1, 99_000) == Bucket(6 * RATE_UNITS, 100_000)
    assert take(RPM, bucket, 1, 101_000) == Bucket(5 * RATE_UNITS, 101_000)


def test_a_clock_that_was_set_back_counts_from_its_new_time():
    """Else nothing would drain until the old time is reached again."""
    bucket = Bucket(10 * RATE_UNITS, 10_000_000)
    after = put_back(RPM, bucket, 0, 9_999_000, 1_000_000)
    assert after == Bucket(10 * RATE_UNITS, 1_000_000)
    assert take(RPM, after, 1, 1_001_000) == Bucket(10 * RATE_UNITS, 1_001_000)


def test_what_comes_back_is_measured_by_the_time_of_the_bucket():
    """Another process has read a later time; by that, two of five have drained already."""
    bucket = Bucket(5 * RATE_UNITS, 12_000)
    assert put_back(RPM, bucket, 5, 10_000, 11_000) == Bucket(2 * RATE_UNITS, 12_000)


def test_nothing_comes_back_to_a_bucket_of_a_clock_that_was_set_back_meanwhile():
    assert put_back(RPM, Bucket(5 * RATE_UNITS, 12_000), 5, 500_000, 13_000) == Bucket(4 * RATE_UNITS, 13_000)


def test_an_overdraft_keeps_others_out_until_it_has_drained():
    overdrawn = put_back(RPM, take(RPM, Bucket(), 1, 0) or Bucket(), -12, 0, 0)
    refused = exceeded(RPM, overdrawn, 1, 0)
    assert (refused.current, refused.reset_s) == (13, 4.0)
    assert standing(RPM, overdrawn, 0).remaining == 0
    assert take(RPM, overdrawn, 1, 3999) is None
    assert take(RPM, overdrawn, 1, 4000) is not None


def test_dollars_of_an_older_window_change_nothing():
    noon = ms("2026-12-01T12:00:00")
    bucket = take(HOUR, Bucket(), 40, noon)
    assert bucket == Bucket(40, noon)
    assert put_back(HOUR, bucket, 40, noon - 1, noon) == bucket
    assert put_back(HOUR, bucket, 40, noon, noon + 3_600_000) == Bucket(0, noon + 3_600_000)


@pytest.mark.parametrize("limit", [RPM, SLOTS, HOUR])
def test_no_counter_goes_below_nothing(limit):
    assert put_back(limit, Bucket(0, 0), 5, 0, 0).value == 0


def test_the_longest_refusal_is_the_one_that_never_ends():
    short, long, never = (Exceeded(RPM, 0, 1, reset) for reset in (1.0, 60.0, None))
    assert longest([short, long]) is long
    assert longest([never, long]) is never
    assert longest([]) is None


def test_a_limit_that_is_named_twice_is_taken_twice():
    found = {("key:k1", "concurrent_requests"): Bucket(1)}
    wish = reservation(limits=(SLOTS, SLOTS))
    taken = take_all(wish, lambda limit: found[limit.scope, limit.kind], 0)
    assert taken == {("key:k1", "concurrent_requests"): Bucket(3)}
    assert isinstance(take_all(wish, lambda _: Bucket(2), 0), Exceeded)


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(0, 10**9), st.integers(0, 2**41))
def test_the_reset_of_a_refusal_is_when_it_fits_and_not_a_moment_before(most, burst, amount, now_ms):
    limit = Limit("s", "tokens_per_minute", most, burst)
    bucket = Bucket(burst * RATE_UNITS, now_ms)
    if amount > burst:
        assert exceeded(limit, bucket, amount, now_ms).reset_s is None
    elif amount:
        reset_ms = -(-amount * RATE_UNITS // most)
        assert exceeded(limit, bucket, amount, now_ms).reset_s == pytest.approx(
            max(amount * RATE_UNITS / most / 1000, 0.001)
        )
        assert take(limit, bucket, amount, now_ms + reset_ms) is not None
        assert take(limit, bucket, amount, now_ms + reset_ms - 1) is None
