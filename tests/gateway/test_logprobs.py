from __future__ import annotations

from typing import Any

import pytest

from llmrouter.gateway.logprobs import LogprobFilter, as_asked, entries_of, most_alternatives
from llmrouter.types import ChatRequest


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest("chat", "auto", fields)


def entry(*logprobs: float) -> dict[str, Any]:
    alternatives = [{"token": str(rank), "logprob": each} for rank, each in enumerate(logprobs)]
    return {"token": "t", "logprob": -1.0, "top_logprobs": alternatives}


@pytest.mark.parametrize(
    ("request_", "most"),
    [
        (chat(), None),
        (chat(logprobs=False), None),
        (chat(logprobs=True), 0),
        (chat(logprobs=True, top_logprobs=5), 5),
        (ChatRequest("completions", "auto", {}), None),
        (ChatRequest("completions", "auto", {"logprobs": 0}), 0),
        (ChatRequest("completions", "auto", {"logprobs": 3}), 3),
    ],
)
def test_what_a_request_asks_for(request_, most):
    assert most_alternatives(request_) == most


def test_the_most_likely_alternatives_are_kept_wherever_they_stand():
    told = as_asked({"content": [entry(-5.0, -0.1, -0.2), entry(-1.0)], "refusal": None}, 2)
    assert [[each["logprob"] for each in one["top_logprobs"]] for one in told["content"]] == [[-0.1, -0.2], [-1.0]]
    assert told["refusal"] is None


@pytest.mark.parametrize("broken", [None, "x", 3, [], {"content": None}, {"content": [None, 3, {"top_logprobs": "x"}]}])
@pytest.mark.parametrize("most", [None, 0, 2])
def test_what_is_no_logprobs_is_left_alone(broken, most):
    assert as_asked(broken, most) == (broken if most is not None and isinstance(broken, dict) else None)
    assert isinstance(entries_of({"logprobs": broken}), list)


def test_a_filter_keeps_the_entries_of_each_choice_and_cuts_the_client_s():
    reads = LogprobFilter(chat(), chat(logprobs=True, top_logprobs=3))
    first = {"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [entry(-0.1), entry(-0.2)]}}
    assert reads.pass_on(first) == {**first, "logprobs": None}
    reads.pass_on({"index": 1, "logprobs": {"content": [entry(-0.3)]}})
    reads.keeps = False
    reads.pass_on(first)
    assert {index: len(entries) for index, entries in reads.entries.items()} == {0: 2, 1: 1}
    assert reads.tokens == 5


def test_a_filter_cuts_nothing_where_the_client_asked_the_same():
    same = chat(logprobs=True, top_logprobs=1)
    part = {"index": 0, "delta": {}, "logprobs": {"content": [entry(-0.1, -0.2)]}}
    assert LogprobFilter(same, same).pass_on(part) is part
