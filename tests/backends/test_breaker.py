"""The breaker as a table of transitions, then under random histories against a model of its rules."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from llmrouter.backends.breaker import MAX_RETRY_AFTER_S, REFUSED, Breaker, BreakerState, Permit
from llmrouter.types import Failure

BREAKAGE = (
    Failure.CONNECT,
    Failure.RESET,
    Failure.TIMEOUT,
    Failure.OVERLOADED,
    Failure.SERVER,
    Failure.REFUSED,
    Failure.PROTOCOL,
)
NO_BREAKAGE = (Failure.BAD_REQUEST, Failure.CONTEXT, Failure.CANCELLED, Failure.NO_CAPACITY, Failure.DEADLINE)


def make(**changes: float) -> Breaker:
    chosen = {"failures": 3, "window_s": 30.0, "open_s": 10.0, "max_open_s": 60.0, **changes}
    return Breaker(
        failures=int(chosen["failures"]),
        window_s=chosen["window_s"],
        open_s=chosen["open_s"],
        max_open_s=chosen["max_open_s"],
    )


def fail(breaker: Breaker, now: float, failure: Failure = Failure.SERVER, retry_after_s: float | None = None) -> None:
    permit = breaker.allow(now)
    assert permit
    breaker.record_failure(permit, now, failure, retry_after_s)


def opened(now: float = 0.0, failures: int = 3) -> Breaker:
    breaker = make(failures=failures)
    for _ in range(failures):
        fail(breaker, now)
    assert breaker.state(now) is BreakerState.OPEN
    return breaker


def test_each_failure_is_either_breakage_or_not():
    """A new kind of failure must be placed here before it can pass unnoticed."""
    assert {*BREAKAGE, *NO_BREAKAGE, Failure.RATE_LIMITED} == set(Failure)


@pytest.mark.parametrize("failure", BREAKAGE)
def test_opens_at_the_configured_number_of_failures_and_not_before(failure):
    breaker = make()
    fail(breaker, 0.0, failure)
    fail(breaker, 1.0, failure)
    assert breaker.state(1.0) is BreakerState.CLOSED
    fail(breaker, 2.0, failure)
    assert breaker.state(2.0) is BreakerState.OPEN
    assert breaker.allow(2.0) is REFUSED
    assert breaker.retry_at(2.0) == 12.0
    assert breaker.opens == 1


@pytest.mark.parametrize("failure", NO_BREAKAGE)
def test_g028_a_failure_that_is_not_the_replicas_never_trips_it(failure):
    """Twenty wrong requests, even with a Retry-After, leave the breaker closed and its count at zero."""
    breaker = make()
    for second in range(20):
        fail(breaker, float(second), failure, retry_after_s=60.0)
        assert breaker.state(second) is BreakerState.CLOSED
    fail(breaker, 20.0)
    fail(breaker, 20.0)
    assert breaker.state(20.0) is BreakerState.CLOSED


def test_g080_local_lack_of_capacity_changes_no_counter():
    breaker = make()
    fail(breaker, 0.0)
    fail(breaker, 0.0)
    for _ in range(50):
        fail(breaker, 0.0, Failure.NO_CAPACITY)
    assert (breaker.state(0.0), breaker.opens, breaker.retry_at(0.0)) == (BreakerState.CLOSED, 0, None)


def test_failures_older_than_the_window_are_forgotten():
    breaker = make()
    fail(breaker, 0.0)
    fail(breaker, 15.0)
    fail(breaker, 30.5)
    assert breaker.state(30.5) is BreakerState.CLOSED
    fail(breaker, 31.0)
    assert breaker.state(31.0) is BreakerState.OPEN


def test_a_failure_exactly_one_window_old_still_counts():
    breaker = make()
    for now in (0.0, 15.0, 30.0):
        fail(breaker, now)
    assert breaker.state(30.0) is BreakerState.OPEN


def test_half_open_lets_one_trial_through_and_success_closes():
    breaker = opened()
    assert not breaker.allow(9.999)
    assert breaker.state(10.0) is BreakerState.HALF_OPEN
    assert breaker.ready(10.0)
    trial = breaker.allow(10.0)
    assert trial
    assert not breaker.ready(10.0)
    assert breaker.allow(10.0) is REFUSED
    assert breaker.retry_at(11.0) == 11.0
    breaker.record_success(trial, 11.0)
    assert breaker.state(11.0) is BreakerState.CLOSED
    assert breaker.allow(11.0)
    assert breaker.allow(11.0)


def test_each_failed_trial_doubles_the_pause_up_to_its_maximum():
    breaker = opened()
    now, pauses = 10.0, []
    for _ in range(5):
        fail(breaker, now, Failure.CONNECT)
        at = breaker.retry_at(now)
        assert at is not None
        pauses.append(at - now)
        now = at
    assert pauses == [20.0, 40.0, 60.0, 60.0, 60.0]
    breaker.record_success(breaker.allow(now), now)
    for _ in range(3):
        fail(breaker, now)
    assert breaker.retry_at(now) == now + 10.0, "a success takes the pause back to its first length"
    fail(breaker, now + 10.0)
    assert breaker.retry_at(now + 10.0) == now + 30.0


def test_a_trial_without_verdict_frees_its_place():
    """A client that leaves during the trial must not use up the only way back."""
    breaker = opened()
    breaker.release(breaker.allow(10.0))
    again = breaker.allow(10.0)
    assert again
    breaker.record_failure(again, 10.5, Failure.CANCELLED)
    assert breaker.ready(10.5)


@pytest.mark.parametrize("failure", [Failure.BAD_REQUEST, Failure.CONTEXT])
def test_a_client_fault_during_a_trial_is_no_verdict(failure):
    breaker = opened()
    fail(breaker, 10.0, failure, retry_after_s=30.0)
    assert breaker.state(10.0) is BreakerState.HALF_OPEN
    assert breaker.ready(10.0)


def test_a_rate_limit_holds_for_its_retry_after_without_counting():
    breaker = make()
    fail(breaker, 0.0, Failure.RATE_LIMITED, retry_after_s=7.0)
    assert breaker.retry_at(0.0) == 7.0
    trial = breaker.allow(7.0)
    breaker.record_success(trial, 7.0)
    fail(breaker, 8.0)
    fail(breaker, 8.0)
    assert breaker.state(8.0) is BreakerState.CLOSED


@pytest.mark.parametrize("given", [None, 0.0, -5.0, math.nan])
def test_a_rate_limit_without_a_usable_retry_after_holds_for_the_first_pause(given):
    breaker = make()
    fail(breaker, 100.0, Failure.RATE_LIMITED, retry_after_s=given)
    assert breaker.retry_at(100.0) == 110.0


def test_a_rate_limited_trial_does_not_double_the_pause():
    breaker = opened()
    fail(breaker, 10.0, Failure.RATE_LIMITED)
    assert breaker.retry_at(10.0) == 20.0
    fail(breaker, 20.0, Failure.RATE_LIMITED, retry_after_s=3.0)
    assert breaker.retry_at(20.0) == 23.0


def test_any_breakage_with_a_retry_after_holds_at_once():
    breaker = make()
    fail(breaker, 0.0, Failure.OVERLOADED, retry_after_s=4.0)
    assert breaker.state(0.0) is BreakerState.OPEN
    assert breaker.retry_at(0.0) == 4.0


@pytest.mark.parametrize("asked", [3601.0, 1e12, math.inf])
def test_an_absurd_retry_after_is_capped(asked):
    breaker = make()
    fail(breaker, 0.0, Failure.RATE_LIMITED, retry_after_s=asked)
    assert breaker.retry_at(0.0) == MAX_RETRY_AFTER_S


def test_g078_a_second_429_never_shortens_the_cooldown():
    """Two calls in flight come back limited, the second without (or with a shorter) Retry-After."""
    breaker = make()
    first, second, third = (breaker.allow(0.0) for _ in range(3))
    breaker.record_failure(first, 0.0, Failure.RATE_LIMITED, 60.0)
    breaker.record_failure(second, 1.0, Failure.RATE_LIMITED, None)
    breaker.record_failure(third, 2.0, Failure.RATE_LIMITED, 1.0)
    assert breaker.retry_at(2.0) == 60.0


def test_g078_a_later_deadline_of_a_second_429_counts():
    breaker = make()
    first, second = breaker.allow(0.0), breaker.allow(0.0)
    breaker.record_failure(first, 0.0, Failure.RATE_LIMITED, 1.0)
    breaker.record_failure(second, 0.5, Failure.RATE_LIMITED, None)
    assert breaker.retry_at(0.5) == 10.5
    assert not breaker.allow(10.4)
    assert breaker.allow(10.5)


def test_g089_a_trial_that_never_reports_back_is_replaced():
    """Whatever gets lost, an open breaker leads to another trial by time alone."""
    breaker = opened()
    lost = breaker.allow(10.0)
    assert not breaker.allow(69.9)
    second = breaker.allow(70.0)
    assert second
    breaker.record_failure(lost, 70.0, Failure.SERVER)
    assert breaker.state(70.0) is BreakerState.HALF_OPEN, "the lost trial's verdict is old news"
    breaker.record_success(second, 71.0)
    assert breaker.state(71.0) is BreakerState.CLOSED


def test_news_from_before_the_opening_is_no_verdict_on_the_trial():
    breaker = make()
    old = [breaker.allow(0.0) for _ in range(4)]
    for permit in old[:2]:
        breaker.record_failure(permit, 0.0, Failure.SERVER)
    breaker.record_failure(old[2], 0.0, Failure.SERVER)
    trial = breaker.allow(10.0)
    breaker.record_success(old[3], 10.0)
    assert breaker.state(10.0) is BreakerState.HALF_OPEN
    breaker.record_failure(old[3], 10.0, Failure.SERVER)
    assert breaker.state(10.0) is BreakerState.HALF_OPEN
    breaker.release(old[3])
    assert not breaker.ready(10.0)
    breaker.record_success(trial, 10.0)
    assert breaker.state(10.0) is BreakerState.CLOSED


def test_a_recovered_breaker_begins_to_count_afresh():
    """Neither failures from before the opening nor calls that began then count after the closing."""
    breaker = make()
    late, *others = [breaker.allow(0.0) for _ in range(4)]
    for permit in others:
        breaker.record_failure(permit, 0.0, Failure.SERVER)
    breaker.record_success(breaker.allow(10.0), 10.0)
    fail(breaker, 10.0)
    breaker.record_failure(late, 10.0, Failure.SERVER)
    fail(breaker, 10.0)
    assert breaker.state(10.0) is BreakerState.CLOSED
    fail(breaker, 10.0)
    assert breaker.state(10.0) is BreakerState.OPEN


def test_a_trials_success_does_not_cut_short_a_pause_that_was_asked_for_meanwhile():
    breaker = make()
    late, *others = [breaker.allow(0.0) for _ in range(4)]
    for permit in others:
        breaker.record_failure(permit, 0.0, Failure.SERVER)
    trial = breaker.allow(10.0)
    breaker.record_failure(late, 11.0, Failure.RATE_LIMITED, 30.0)
    breaker.record_success(trial, 12.0)
    assert breaker.retry_at(12.0) == 41.0
    assert breaker.allow(41.0)


def test_a_call_that_fails_after_its_start_counts_against_the_closed_breaker():
    """The permit that `record_success` returns is valid in the state it led to."""
    breaker = opened(failures=1)
    going_on = breaker.record_success(breaker.allow(10.0), 10.0)
    assert breaker.state(10.0) is BreakerState.CLOSED
    breaker.record_failure(going_on, 12.0, Failure.RESET)
    assert breaker.state(12.0) is BreakerState.OPEN


def test_new_settings_keep_the_state_and_the_count():
    breaker = make()
    fail(breaker, 0.0)
    breaker.configure(failures=2, window_s=30.0, open_s=5.0, max_open_s=50.0)
    fail(breaker, 1.0)
    assert breaker.retry_at(1.0) == 6.0
    breaker.configure(failures=9, window_s=30.0, open_s=50.0, max_open_s=50.0)
    assert breaker.retry_at(1.0) == 6.0


@dataclass(frozen=True)
class Call:
    """A call in flight in the model: its permit and what it was to the breaker when it began."""

    permit: Permit
    trial: bool
    epoch: int
    began: float


class BreakerHistories(RuleBasedStateMachine):
    """Any interleaving of calls, verdicts and time agrees with the rules, restated plainly."""

    calls: Bundle[Call] = Bundle("calls")

    @initialize(failures=st.integers(1, 3), open_s=st.sampled_from([1.0, 10.0]))
    def start(self, failures, open_s):
        self.failures: int = failures
        self.open_s: float = open_s
        self.breaker = Breaker(failures=failures, window_s=30.0, open_s=open_s, max_open_s=40.0)
        self.now = 1000.0
        self.until: float | None = None
        self.pause: float = open_s
        self.trial: Call | None = None
        self.epoch = 0
        self.counted: list[float] = []

    def trial_lives(self) -> bool:
        return self.trial is not None and self.now < self.trial.began + 40.0

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0, 31.0, 60.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(target=calls)
    def ask(self):
        closed = self.until is None
        half_open = self.until is not None and self.now >= self.until and not self.trial_lives()
        assert self.breaker.ready(self.now) is (closed or half_open)
        permit = self.breaker.allow(self.now)
        assert bool(permit) is (closed or half_open)
        if not permit:
            return multiple()
        call = Call(permit, trial=half_open, epoch=self.epoch, began=self.now)
        if half_open:
            self.trial = call
        return call

    @rule(call=consumes(calls))
    def succeed(self, call):
        self.breaker.record_success(call.permit, self.now)
        if call is self.trial:
            self.trial, self.pause = None, self.open_s
            if self.until is not None and self.now >= self.until:
                self.until = None
                self.epoch += 1

    @rule(call=consumes(calls))
    def leave(self, call):
        self.breaker.release(call.permit)
        if call is self.trial:
            self.trial = None

    @rule(
        call=consumes(calls),
        failure=st.one_of(st.just(Failure.SERVER), st.just(Failure.RATE_LIMITED), st.sampled_from(sorted(Failure))),
        retry_after_s=st.one_of(st.none(), st.sampled_from([0.0, 2.0, 50.0, 10_000.0])),
    )
    def fail(self, call, failure, retry_after_s):
        self.breaker.record_failure(call.permit, self.now, failure, retry_after_s)
        was_trial = call is self.trial
        if was_trial:
            self.trial = None
        if failure in NO_BREAKAGE:
            return
        asked = min(retry_after_s or 0.0, 3600.0)
        limited = failure is Failure.RATE_LIMITED
        pause = asked or self.pause if limited else max(asked, self.blame(call, was_trial))
        if pause:
            if self.until is None:
                self.epoch += 1
                self.counted = []
            self.until = max(self.until or 0.0, self.now + pause)

    def blame(self, call: Call, was_trial: bool) -> float:
        if was_trial:
            self.pause = min(2 * self.pause, 40.0)
            return self.pause
        if self.until is not None or call.trial or call.epoch != self.epoch:
            return 0.0
        self.counted = [at for at in self.counted if at >= self.now - 30.0] + [self.now]
        return self.open_s if len(self.counted) >= self.failures else 0.0

    @invariant()
    def state_follows_the_rules(self):
        if self.until is None:
            expected = BreakerState.CLOSED
        else:
            expected = BreakerState.OPEN if self.now < self.until else BreakerState.HALF_OPEN
        assert self.breaker.state(self.now) is expected

    @invariant()
    def g089_time_alone_always_leads_back_to_a_trial(self):
        at = self.breaker.retry_at(self.now)
        if at is None:
            assert self.breaker.ready(self.now)
        else:
            assert self.now <= at <= self.now + 3600.0
            assert self.breaker.ready(max(at, self.now + 40.0))


TestBreakerHistories = BreakerHistories.TestCase
TestBreakerHistories.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_few_failures_among_many_answers_do_not_open_it():
    """Five failures in 30 s are an outage at one call a second and noise at fifty."""
    busy = Breaker(failures=5, window_s=30, open_s=10, max_open_s=60, share=0.2)
    for tick in range(100):
        busy.record_success(busy.allow(tick * 0.1), tick * 0.1)
    for _ in range(5):
        busy.record_failure(busy.allow(10.0), 10.0, Failure.SERVER)
    assert busy.state(10.0) is BreakerState.CLOSED
    for _ in range(20):
        busy.record_failure(busy.allow(11.0), 11.0, Failure.SERVER)
    assert busy.state(11.0) is BreakerState.OPEN


def test_answers_of_long_ago_do_not_keep_it_closed():
    breaker = Breaker(failures=2, window_s=30, open_s=10, max_open_s=60, share=0.5)
    for _ in range(100):
        breaker.record_success(breaker.allow(1.0), 1.0)
    for _ in range(2):
        breaker.record_failure(breaker.allow(100.0), 100.0, Failure.SERVER)
    assert breaker.state(100.0) is BreakerState.OPEN
