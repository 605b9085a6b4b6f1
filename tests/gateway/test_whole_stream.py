from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.gateway.stream import StreamRewriter
from llmrouter.gateway.whole_stream import events_of
from llmrouter.quality.folding import fold

TEXT = st.text(max_size=20)
CALL = st.fixed_dictionaries(
    {
        "id": st.uuids().map(str),
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": st.text(min_size=1, max_size=8), "arguments": TEXT}),
    }
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.one_of(st.none(), TEXT)},
    optional={"reasoning": TEXT, "refusal": st.none(), "tool_calls": st.lists(CALL, max_size=3)},
)


def streamed(body: dict[str, Any], *, n: int, chat: bool = True) -> tuple[bytes, StreamRewriter]:
    rewriter = StreamRewriter(chunk_id="id", created=1, model="auto", include_usage=False, n=n, chat=chat)
    return b"".join(map(rewriter.feed, events_of(body))), rewriter


@given(st.lists(MESSAGE, min_size=1, max_size=3), st.sampled_from(["stop", "length", "tool_calls"]))
def test_a_streamed_answer_folds_to_what_it_was(messages, finish):
    choices = [
        {"index": index, "message": message, "logprobs": None, "finish_reason": finish}
        for index, message in enumerate(messages)
    ]
    sent, rewriter = streamed({"choices": choices, "system_fingerprint": "fp"}, n=len(choices))
    assert rewriter.complete
    assert not rewriter.failed
    folded = fold(sent)
    assert [choice["finish_reason"] for choice in folded] == [finish] * len(choices)
    for choice, message in zip(folded, messages, strict=True):
        said = choice["message"]
        assert said["role"] == "assistant"
        assert (said.get("content") or "") == (message["content"] or "")
        assert (said.get("reasoning") or "") == (message.get("reasoning") or "")
        assert _called(said) == _called(message)


def _called(message: dict[str, Any]) -> list[tuple[str, str, str]]:
    calls = message.get("tool_calls") or []
    return [(call["id"], call["function"]["name"], call["function"].get("arguments", "")) for call in calls]


def test_the_finish_comes_in_a_chunk_of_its_own_with_what_belongs_to_it():
    told = {"content": [{"token": "a", "logprob": -0.5}]}
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "logprobs": told, "finish_reason": "stop"}
    sent, _ = streamed({"choices": [{**choice, "stop_reason": 7}], "system_fingerprint": "fp"}, n=1)
    chunks = [orjson.loads(line[6:]) for line in sent.split(b"\n\n") if line]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "stop"]
    assert [chunk["choices"][0]["logprobs"] for chunk in chunks] == [None, told, None]
    assert chunks[-1]["choices"][0]["stop_reason"] == 7
    assert chunks[1]["system_fingerprint"] == "fp"


@given(TEXT)
def test_a_completion_is_streamed_too(text):
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}
    sent, rewriter = streamed({"choices": [choice]}, n=1, chat=False)
    assert rewriter.complete
    (folded,) = fold(sent)
    assert (folded["text"], folded["finish_reason"]) == (text, "stop")
