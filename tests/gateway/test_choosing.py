from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmrouter.gateway.answers import Completion
from llmrouter.gateway.choosing import for_client
from llmrouter.types import ChatRequest, Usage


def choice(text: str, index: int, *, tokens: int = 0, alternatives: int = 0, **message: Any) -> dict[str, Any]:
    top = [{"token": f"t{rank}", "logprob": -float(rank)} for rank in range(alternatives)]
    entries = [{"token": "t", "logprob": -0.1, "top_logprobs": top} for _ in range(tokens)]
    return {
        "index": index,
        "message": {"role": "assistant", "content": text, **message},
        "logprobs": {"content": entries} if tokens else None,
        "finish_reason": "stop" if index == 0 else "length",
    }


def completion(*choices: dict[str, Any], usage: dict[str, Any] | None = None) -> Completion:
    return Completion({"id": "chatcmpl-1", "choices": list(choices)}, usage, "stop")


def request(n: int = 1, **fields: Any) -> ChatRequest:
    return ChatRequest("chat", "auto", fields, n=n)


USAGE = Usage(input_tokens=40, cached_tokens=8, output_tokens=30, reasoning_tokens=10)


def test_one_of_several_is_the_only_one():
    whole = completion(choice("a", 0), choice("b", 1), choice("c", 2))
    given_, _ = for_client(whole, USAGE, client=request(), asked=request(3), choice=1)
    assert [(each["index"], each["message"]["content"]) for each in given_.body["choices"]] == [(0, "b")]
    assert given_.finish_reason == "length"
    assert len(whole.body["choices"]) == 3


def test_its_tokens_are_counted_by_its_logprobs():
    whole = completion(choice("a", 0, tokens=12), choice("b" * 100, 1, tokens=7))
    asked = request(2, logprobs=True)
    _, usage = for_client(whole, USAGE, client=request(), asked=asked, choice=1)
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.estimated) == (40, 8, 7, True)


def test_its_tokens_are_its_share_of_the_text_where_no_logprobs_were_told():
    calls = [{"id": "c", "function": {"name": "f", "arguments": "x" * 40}}]
    whole = completion(choice("x" * 10, 0), choice("x" * 20, 1), choice("", 2, tool_calls=calls))
    _, usage = for_client(whole, USAGE, client=request(), asked=request(3), choice=0)
    assert usage.output_tokens < 30 * 10 / 30
    assert usage.reasoning_tokens <= usage.output_tokens


@given(st.lists(st.text(max_size=30), min_size=2, max_size=5), st.data(), st.integers(0, 5000), st.integers(0, 5000))
def test_a_share_is_never_more_than_the_whole(texts, data, output, reasoning):
    chosen = data.draw(st.integers(0, len(texts) - 1))
    tokens = data.draw(st.integers(0, 3))
    whole = completion(*(choice(text, index, tokens=tokens) for index, text in enumerate(texts)))
    usage = Usage(input_tokens=9, output_tokens=output, reasoning_tokens=min(reasoning, output))
    _, share = for_client(whole, usage, client=request(), asked=request(len(texts)), choice=chosen)
    assert 0 <= share.reasoning_tokens <= share.output_tokens <= output


def test_the_details_of_all_choices_together_are_not_told_of_one():
    told = {"completion_tokens": 30, "completion_tokens_details": {"reasoning_tokens": 10, "audio_tokens": 3}}
    whole = completion(choice("a", 0), choice("b", 1), usage={**told, "prompt_tokens": 40})
    given_, _ = for_client(whole, USAGE, client=request(), asked=request(2), choice=0)
    assert given_.usage == {"completion_tokens": 30, "prompt_tokens": 40}


def test_logprobs_are_cut_to_what_the_client_asked_for():
    whole = completion(choice("a", 0, tokens=2, alternatives=4))
    asked = request(logprobs=True, top_logprobs=4)
    none, _ = for_client(whole, USAGE, client=request(), asked=asked, choice=0)
    plain, _ = for_client(whole, USAGE, client=request(logprobs=True), asked=asked, choice=0)
    two, _ = for_client(whole, USAGE, client=request(logprobs=True, top_logprobs=2), asked=asked, choice=0)
    assert none.body["choices"][0]["logprobs"] is None
    assert [e["top_logprobs"] for e in plain.body["choices"][0]["logprobs"]["content"]] == [[], []]
    assert [[t["token"] for t in e["top_logprobs"]] for e in two.body["choices"][0]["logprobs"]["content"]] == [
        ["t0", "t1"],
        ["t0", "t1"],
    ]


def test_a_client_that_wants_several_gets_as_many_as_it_wants():
    whole = completion(choice("a", 0), choice("b", 1), choice("c", 2))
    given_, usage = for_client(whole, USAGE, client=request(2), asked=request(3), choice=0)
    assert [each["message"]["content"] for each in given_.body["choices"]] == ["a", "b"]
    assert usage == USAGE
