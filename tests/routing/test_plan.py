import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.routing.plan import REACTIONS, FallbackPlan
from llmrouter.types import Decision, Failure, Outcome, Target
from tests.routing.rig import ALL, candidate

OK = None
RETRIED = [Failure.CONNECT, Failure.RESET, Failure.TIMEOUT, Failure.SERVER, Failure.OVERLOADED, Failure.PROTOCOL]
GOES_ON = [Failure.RATE_LIMITED, Failure.REFUSED, Failure.NO_CAPACITY]
GIVES_UP = [Failure.BAD_REQUEST, Failure.CANCELLED, Failure.DEADLINE]


def plan_of(chain=ALL, *, retries: int = 1, max_wait_s: float = 5.0, deadline_s: float = 60.0) -> FallbackPlan:
    decision = Decision("rules", "rule:r", "r", 3)
    return FallbackPlan(decision, chain, retries=retries, max_wait_s=max_wait_s, deadline_s=deadline_s)


def drive(plan: FallbackPlan, *outcomes: Any) -> list[str]:
    """Answer each step with the next outcome, the last one again and again; return `model reason [wait]` of each."""
    given = iter(outcomes)
    last: Any = None
    seen: list[Target] = []

    def answer(target: Target) -> Outcome:
        nonlocal last
        last = next(given, last)
        failure, retry_after_s = last if isinstance(last, tuple) else (last, None)
        return Outcome(target, failure, retry_after_s=retry_after_s)

    steps = plan.steps()
    try:
        target = next(steps)
        while True:
            seen.append(target)
            assert len(seen) < 100
            target = steps.send(answer(target))
    except StopIteration:
        pass
    return [f"{t.model_id} {t.reason}" + (f" {t.wait_s:g}" if t.wait_s else "") for t in seen]


def test_an_answer_is_accepted_at_once():
    assert drive(plan_of(), OK) == ["m8 rule:r"]


@pytest.mark.parametrize("failure", RETRIED)
def test_what_another_call_may_mend_is_retried_on_the_same_model_and_then_the_next(failure):
    assert drive(plan_of(ALL[:2], retries=2), failure, failure, failure, OK) == [
        "m8 rule:r",
        f"m8 retry:{failure}",
        f"m8 retry:{failure}",
        f"m70 fallback:{failure}",
    ]


@pytest.mark.parametrize("failure", GOES_ON)
def test_what_only_time_or_people_mend_goes_on_to_the_next_model(failure):
    assert drive(plan_of(), failure, OK) == ["m8 rule:r", f"m70 fallback:{failure}"]


@pytest.mark.parametrize("failure", GIVES_UP)
def test_what_no_model_can_mend_gives_up(failure):
    assert drive(plan_of(), failure) == ["m8 rule:r"]
    assert drive(plan_of(), Failure.SERVER, failure) == ["m8 rule:r", "m8 retry:server_error"]


def test_every_failure_has_a_reaction():
    assert set(REACTIONS) == set(Failure) == {*RETRIED, *GOES_ON, *GIVES_UP, Failure.CONTEXT}


def test_g076_a_connection_fault_and_a_refusal_are_outcomes_like_any_other():
    """A wrong key at one pool, however it showed, lets the next one answer."""
    assert drive(plan_of(), Failure.REFUSED, Failure.CONNECT, Failure.CONNECT, OK) == [
        "m8 rule:r",
        "m70 fallback:refused",
        "m70 retry:connect",
        "hosted fallback:connect",
    ]


def test_g084_a_reset_before_any_byte_is_retried_once_at_once():
    assert drive(plan_of(), Failure.RESET, OK) == ["m8 rule:r", "m8 retry:reset"]


def test_overload_is_not_retried_where_no_other_replica_could_take_the_call():
    alone = (candidate("small", replicas=1), candidate("large"))
    assert drive(plan_of(alone), Failure.OVERLOADED, OK) == ["m8 rule:r", "m70 fallback:overloaded"]
    assert drive(plan_of(alone), Failure.CONNECT, OK) == ["m8 rule:r", "m8 retry:connect"]


def test_without_retries_each_model_is_called_once_and_nothing_waits():
    assert drive(plan_of(retries=0), (Failure.OVERLOADED, 1.0)) == [
        "m8 rule:r",
        "m70 fallback:overloaded",
        "hosted fallback:overloaded",
    ]


def test_a_prompt_too_long_goes_on_to_larger_windows_only():
    chain = (candidate("small", context_window=8192), candidate("large", context_window=8192), candidate("frontier"))
    assert drive(plan_of(chain), Failure.CONTEXT, OK) == ["m8 rule:r", "hosted fallback:context_length"]
    assert drive(plan_of(chain[:2]), Failure.CONTEXT) == ["m8 rule:r"]


def test_a_window_found_too_small_stays_too_small_for_later_models():
    windows = {"small": 9000, "large": 20000, "frontier": 9000}
    chain = [candidate(role, context_window=window) for role, window in windows.items()]
    assert drive(plan_of(chain), Failure.CONTEXT, Failure.REFUSED) == ["m8 rule:r", "m70 fallback:context_length"]


def test_an_unknown_window_may_be_large_enough():
    chain = (candidate("small"), candidate("large", context_window=None), candidate("frontier"))
    assert drive(plan_of(chain), Failure.CONTEXT, Failure.CONTEXT, OK) == [
        "m8 rule:r",
        "m70 fallback:context_length",
        "hosted fallback:context_length",
    ]


def test_when_nothing_else_can_answer_the_soonest_model_is_waited_for():
    steps = drive(plan_of(), (Failure.RATE_LIMITED, 4.0), (Failure.RATE_LIMITED, 2.0), (Failure.RATE_LIMITED, 3.0), OK)
    assert steps == [
        "m8 rule:r",
        "m70 fallback:rate_limited",
        "hosted fallback:rate_limited",
        "m70 wait:rate_limited 2",
    ]


def test_g074_each_wait_uses_the_newest_word_of_the_engine():
    plan = plan_of(ALL[:1], retries=2)
    assert drive(plan, (Failure.RATE_LIMITED, 1.0), (Failure.RATE_LIMITED, 5.0), OK) == [
        "m8 rule:r",
        "m8 wait:rate_limited 1",
        "m8 wait:rate_limited 5",
    ]


def test_a_newer_failure_without_a_time_takes_an_older_time_back():
    plan = plan_of(ALL[:1], retries=3)
    assert drive(plan, (Failure.OVERLOADED, 1.0), Failure.OVERLOADED) == [
        "m8 rule:r", "m8 retry:overloaded", "m8 retry:overloaded", "m8 retry:overloaded",
    ]  # fmt: skip
    assert drive(plan, (Failure.RATE_LIMITED, 1.0), Failure.SERVER) == ["m8 rule:r", "m8 wait:rate_limited 1"]


def test_time_spent_waiting_for_one_model_counts_for_the_others():
    steps = drive(
        plan_of(ALL[:2], retries=2),
        (Failure.RATE_LIMITED, 4.0),
        (Failure.RATE_LIMITED, 3.0),
        (Failure.RATE_LIMITED, 9.0),
        OK,
    )
    assert steps[2:] == ["m70 wait:rate_limited 3", "m8 wait:rate_limited 1"]


@pytest.mark.parametrize("failure", [Failure.RATE_LIMITED, Failure.NO_CAPACITY, Failure.OVERLOADED])
def test_all_three_busy_failures_can_be_waited_out(failure):
    chain = (candidate("small", replicas=1),)
    assert drive(plan_of(chain), (failure, 0.5), OK) == ["m8 rule:r", f"m8 wait:{failure} 0.5"]


@pytest.mark.parametrize(
    ("after_s", "deadline_s", "waits"),
    [(5.0, 60.0, True), (5.1, 60.0, False), (2.0, 2.1, True), (2.0, 2.0, False), (math.inf, 60.0, False),
     (math.nan, 60.0, False), (-3.0, 60.0, True)],
)  # fmt: skip
def test_a_wait_must_fit_the_longest_allowed_and_the_deadline(after_s, deadline_s, waits):
    plan = plan_of(ALL[:1], max_wait_s=5.0, deadline_s=deadline_s)
    assert len(drive(plan, (Failure.RATE_LIMITED, after_s), OK)) == (2 if waits else 1)


def test_waits_together_never_reach_the_deadline():
    plan = plan_of(ALL[:1], retries=5, max_wait_s=5.0, deadline_s=9.0)
    assert drive(plan, (Failure.RATE_LIMITED, 4.0)) == ["m8 rule:r", "m8 wait:rate_limited 4", "m8 wait:rate_limited 4"]


def test_a_failure_that_nothing_mends_ends_the_waiting():
    plan = plan_of(ALL[:2], retries=3)
    limited = (Failure.RATE_LIMITED, 1.0)
    assert len(drive(plan, limited, limited, Failure.BAD_REQUEST)) == 3


def test_a_model_that_is_too_small_is_not_waited_for():
    plan = plan_of(ALL[:2], retries=3)
    steps = drive(plan, (Failure.RATE_LIMITED, 3.0), (Failure.RATE_LIMITED, 1.0), Failure.CONTEXT)
    assert steps == ["m8 rule:r", "m70 fallback:rate_limited", "m70 wait:rate_limited 1"]


def test_the_driver_can_close_a_plan_at_any_step():
    steps = plan_of().steps()
    next(steps)
    steps.close()
    with pytest.raises(StopIteration):
        next(steps)


def test_the_bound_is_the_sum_over_all_calls_and_is_reached():
    chain = (candidate("small", input_tokens=10, output_tokens=3), candidate("large", input_tokens=20, output_tokens=2))
    plan = plan_of(chain, retries=2)
    bound = plan.bound()
    assert (bound.attempts, bound.input_tokens, bound.output_tokens) == (8, 3 * 30 + 2 * 20, 3 * 5 + 2 * 3)
    assert len(drive(plan, (Failure.OVERLOADED, 1.0))) == bound.attempts


_CHAINS = st.lists(
    st.sampled_from(["small", "large", "frontier"]), min_size=1, max_size=3, unique=True
).flatmap(
    lambda roles: st.tuples(*[
        st.builds(
            lambda role, replicas, window: candidate(role, replicas=replicas, context_window=window),
            st.just(role), st.integers(1, 3), st.sampled_from([None, 4096, 8192, 100_000]),
        )
        for role in roles
    ])
)  # fmt: skip
_ANSWERS = st.lists(
    st.tuples(
        st.none() | st.sampled_from(list(Failure)),
        st.none() | st.floats(-1, 10) | st.just(math.nan) | st.just(math.inf),
    ),
    max_size=40,
)
_FAILURES = st.lists(
    st.tuples(st.sampled_from([f for f in Failure if REACTIONS[f] != "give_up"]), st.none() | st.floats(0, 3)),
    min_size=1,
    max_size=40,
)


@given(_CHAINS, _ANSWERS | _FAILURES, st.integers(0, 5), st.floats(0, 60), st.floats(0, 100))
def test_no_outcomes_make_a_plan_exceed_its_bound_or_leave_its_chain(chain, answers, retries, max_wait_s, deadline_s):
    """A plan always ends, within its bound, calls candidates only, and nothing after an answer."""
    plan = plan_of(chain, retries=retries, max_wait_s=max_wait_s, deadline_s=deadline_s)
    models = [each.model_id for each in chain]
    steps = plan.steps()
    seen: list[Target] = []
    ended_by: Failure | None = Failure.CONNECT
    for failure, retry_after_s in _forever(answers):
        try:
            target = next(steps) if not seen else steps.send(Outcome(seen[-1], ended_by, retry_after_s=retry_after_s))
        except StopIteration:
            break
        assert ended_by is not None
        assert ended_by not in GIVES_UP
        assert target.model_id in models
        assert 0 <= target.wait_s <= max_wait_s
        seen.append(target)
        assert len(seen) <= plan.bound().attempts
        ended_by = failure
    assert sum(target.wait_s for target in seen) <= deadline_s
    assert seen[0].model_id == models[0]
    order = [models.index(t.model_id) for t in seen if not t.reason.startswith("wait:")]
    assert order == sorted(order)


def _forever(answers: list[tuple[Failure | None, float | None]]) -> Iterator[tuple[Failure | None, float | None]]:
    yield from answers
    while True:
        yield Failure.OVERLOADED, 0.0
