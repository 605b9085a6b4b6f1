from __future__ import annotations

from typing import Any

import pytest

from llmrouter.gateway.observation import observe_prefix, observe_whole
from llmrouter.testing import event
from llmrouter.types import Usage


def message(**fields: Any) -> dict[str, Any]:
    return {"index": 0, "message": {"role": "assistant", **fields}, "finish_reason": "stop"}


@pytest.mark.parametrize(
    ("choice", "text", "calls", "refused"),
    [
        (message(content="four"), "four", (), False),
        (message(content=None), "", (), False),
        (message(content=[{"type": "text", "text": "fo"}, {"type": "text", "text": "ur"}, 3]), "four", (), False),
        (message(content=None, refusal="I cannot"), "", (), True),
        ({**message(content=""), "finish_reason": "content_filter"}, "", (), True),
        ({"index": 0, "text": "plain", "finish_reason": "stop"}, "plain", (), False),
        (message(tool_calls=[{"function": {"name": "f", "arguments": "{"}}]), "", (("f", "{"),), False),
        (message(tool_calls=[{"custom": {"name": "g", "input": "x"}}, None]), "", (("g", "x"),), False),
        (message(function_call={"name": "f", "arguments": "{}"}), "", (("f", "{}"),), False),
        (message(content=7, tool_calls="none"), "", (), False),
        ({"index": 0, "message": None, "finish_reason": None}, "", (), False),
    ],
)
def test_a_choice_is_seen_whatever_its_form(choice, text, calls, refused):
    seen = observe_whole([choice], Usage(1, output_tokens=2))
    assert (seen.texts, seen.tool_calls, seen.refused) == ((text,), (calls,), (refused,))
    assert (seen.whole, seen.usage.output_tokens, seen.signals) == (True, 2, (None,))


def test_the_alternatives_of_the_first_token_hold_the_token_itself():
    top = [{"token": "No", "logprob": -2}, {"token": "Maybe", "logprob": None}, {"token": 3, "logprob": -1.0}]
    told = {"content": [{"token": "Yes", "logprob": -0.25, "top_logprobs": top}, {"token": "!", "logprob": -9.0}]}
    seen = observe_whole([{**message(content="Yes!"), "logprobs": told}], Usage())
    assert seen.first_token == {"Yes": -0.25, "No": -2.0}


def test_a_prefix_is_folded_from_the_clients_events():
    chunks = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"reasoning": "hm"}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": "fo"}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {"content": "ur"}, "finish_reason": None}]},
    ]
    seen = observe_prefix(b"".join(map(event, chunks)), {}, None, 3, whole=False)
    assert (seen.texts, seen.finish, seen.whole) == (("four",), (None,), False)
    assert seen.usage == Usage(output_tokens=3, estimated=True)


CLASHES = {"choices": [{"index": 0, "delta": {"content": "a", "extra": {"a": 1}}}] * 2}


@pytest.mark.parametrize("chunk", [CLASHES, {"choices": [{"delta": "x"}]}])
def test_what_does_not_fold_is_one_choice_at_least(chunk):
    seen = observe_prefix(event(chunk), {}, {"prompt_tokens": 4, "completion_tokens": 1}, 1, whole=False)
    assert len(seen.texts) == 1
    assert seen.usage == Usage(4, output_tokens=1)
