"""What one call counts as."""

from __future__ import annotations

from typing import Any

from llmrouter.telemetry.metrics import Metrics
from tests.ledger.books import attempt, entry

SMALL = attempt(1, role="small", committed=False)
PEER = attempt(2, role="peer1", model_id="other", committed=False)
LARGE = attempt(3, role="large", model_id="large", reason="check:agreement", committed=True)


def counted(*attempts: Any, name: str, **changes: Any) -> dict[tuple[str, ...], float]:
    metrics = Metrics()
    given = next((each.model_id for each in attempts if each.committed), None)
    metrics.observe(entry(attempts=attempts, model_id=given, **changes))
    return {tuple(labels): value for *labels, value in metrics.snapshot()["counters"][name]}


def test_a_better_answer_after_a_check_is_an_escalation_and_no_fallback():
    assert counted(SMALL, PEER, LARGE, name="llmrouter_escalations") == {("auto", "check:agreement"): 1}
    assert counted(SMALL, PEER, LARGE, name="llmrouter_fallbacks") == {}
    assert counted(SMALL, PEER, LARGE, name="llmrouter_extra_calls") == {("auto", "small"): 1, ("auto", "peer"): 1}


def test_an_accepted_first_answer_is_no_escalation():
    first = attempt(1, role="small", committed=True)
    assert counted(first, PEER, name="llmrouter_escalations") == {}
    assert counted(first, PEER, name="llmrouter_extra_calls") == {("auto", "peer"): 1}
    assert counted(first, name="llmrouter_extra_calls") == {}


def test_a_peers_answer_is_no_better_one():
    peer = attempt(2, role="peer1", model_id="other", committed=True)
    assert counted(SMALL, peer, name="llmrouter_escalations") == {}


def test_another_model_after_a_failure_is_a_fallback_and_no_escalation():
    failed = attempt(1, role="small", outcome="timeout", committed=False)
    assert counted(failed, LARGE, name="llmrouter_fallbacks") == {("auto",): 1}
    assert counted(failed, LARGE, name="llmrouter_escalations") == {}
    assert counted(failed, LARGE, name="llmrouter_extra_calls") == {}
    retried = attempt(2, role="small", committed=True)
    assert counted(failed, retried, name="llmrouter_fallbacks") == {}


def test_checks_are_counted_by_name_and_outcome():
    first = attempt(1, role="small", committed=True)
    name = "llmrouter_checks"
    assert counted(first, PEER, name=name, checks="agreement 2/2 0.97") == {("auto", "agreement", "accepted"): 1}
    assert counted(SMALL, LARGE, name=name, checks="format schema") == {("auto", "format", "escalated"): 1}
    assert counted(SMALL, name=name, checks="my own 1.0") == {("auto", "other", "unanswered"): 1}
    assert counted(first, name=name) == {}


def test_reasons_that_a_strategy_invents_do_not_grow_the_page():
    metrics = Metrics()
    for number in range(100):
        last = attempt(2, role="large", model_id="large", reason=f"score:{number} of 100", committed=True)
        metrics.observe(entry(attempts=(SMALL, last), model_id="large"))
    rows = metrics.snapshot()["counters"]["llmrouter_escalations"]
    assert len(rows) == 33
    assert {tuple(labels): value for *labels, value in rows}["auto", "other"] == 68
