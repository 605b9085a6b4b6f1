"""What a plan sends instead of the client's request."""

import copy
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.routing.selfcheck import (
    QUESTION,
    SAMPLING_TEMPERATURE,
    p_true,
    peer_request,
    sampled_request,
    self_check_request,
    with_logprobs,
)
from llmrouter.types import ChatRequest, Observation

MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is 6 times 7?"}]


def request(needs=frozenset(), **fields: Any) -> ChatRequest:
    given = {"model": "auto", "messages": MESSAGES, **fields}
    n = given.get("n", 1)
    return ChatRequest("chat", "auto", given, needs=needs, n=n, stream=given.get("stream", False), text_bytes=30)


BUSY = request(
    needs=frozenset({"tools", "json_schema", "n", "vision"}),
    tools=[{"type": "function", "function": {"name": "f"}}],
    tool_choice="auto",
    response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    n=3,
    stop=["\n"],
    seed=7,
    temperature=0,
    logit_bias={"42": -100},
    max_tokens=400,
    stream=True,
    stream_options={"include_usage": True},
    user="u",
)


def first_token(**alternatives: float) -> Observation:
    return Observation(("Yes",), ("length",), first_token=alternatives)


def test_a_self_check_begins_as_the_clients_request_did():
    asked = self_check_request(BUSY, "42")
    messages = asked.fields["messages"]
    assert messages[:2] == MESSAGES
    assert messages[2:] == [{"role": "assistant", "content": "42"}, {"role": "user", "content": QUESTION}]


def test_a_self_check_asks_for_one_word_and_nothing_that_clashes():
    asked = self_check_request(BUSY, "42")
    assert set(asked.fields) == {"model", "messages", "max_tokens", "temperature", "logprobs", "top_logprobs", "user"}
    assert (asked.fields["temperature"], asked.fields["top_logprobs"], asked.max_output_tokens) == (0, 20, 1)
    assert (asked.stream, asked.include_usage, asked.n, asked.needs) == (
        False,
        False,
        1,
        frozenset({"vision", "logprobs"}),
    )
    assert asked.text_bytes == 30 + len(f"42{QUESTION}")


def test_an_empty_answer_is_called_that():
    assert self_check_request(request(), "  ").fields["messages"][2]["content"] == "(no answer)"


def test_yes_is_weighed_against_no_in_all_their_spellings():
    seen = first_token(
        Yes=math.log(0.5), **{" yes": math.log(0.1), "ĠNo": math.log(0.2), "▁NO": math.log(0.1), "The": -3}
    )
    assert p_true(seen) == pytest.approx(0.6 / 0.9)


@pytest.mark.parametrize(
    ("yes", "no"),
    [("Ja", "Nein"), ("Sí", "No"), ("Oui.", "Non"), ("是", "否"), ("はい。", "いいえ"), ("да", "нет"), ("(A", "(B")],
)
def test_other_languages_say_yes_and_no(yes: str, no: str):
    assert p_true(first_token(**{yes: math.log(0.6), no: math.log(0.2)})) == pytest.approx(0.75)


@pytest.mark.parametrize(
    "told",
    [{}, {"The": -0.01}, {"The": -0.01, "Yes": -9999.0}, {"Yes": float("-inf")}, {"Yes": float("nan")}, {"Yes": -12.0}],
    ids=str,
)
def test_without_yes_and_no_there_is_no_probability(told: dict[str, float]):
    assert p_true(first_token(**told)) is None


@given(st.dictionaries(st.sampled_from(["Yes", "no", "No", " true", "The", "", "\ud800"]), st.floats()))
def test_p_true_is_a_probability_whatever_an_engine_says(told: dict[str, float]):
    found = p_true(first_token(**told))
    assert found is None or 0 <= found <= 1


@pytest.mark.parametrize("cold", [0, 0.0, -1])
def test_samples_of_a_cold_client_are_warmed(cold: float):
    asked = sampled_request(request(temperature=cold, top_k=1), 4)
    assert asked.fields["temperature"] == SAMPLING_TEMPERATURE
    assert "top_k" not in asked.fields
    assert (asked.n, asked.fields["n"], asked.needs) == (4, 4, frozenset({"n"}))


def test_samples_keep_a_temperature_that_gives_different_answers():
    assert sampled_request(request(temperature=0.3), 2).fields["temperature"] == 0.3
    assert "temperature" not in sampled_request(request(), 2).fields
    assert sampled_request(request(temperature=0.3), 2, temperature=1.0).fields["temperature"] == 1.0


def test_a_sample_among_calls_side_by_side_has_no_seed():
    assert "seed" not in sampled_request(request(seed=7), 1).fields
    assert sampled_request(request(seed=7), 3).fields["seed"] == 7


def test_log_probabilities_are_added_to_what_the_client_wants():
    asked = with_logprobs(request())
    assert (asked.fields["logprobs"], asked.fields["top_logprobs"], asked.needs) == (True, 5, frozenset({"logprobs"}))
    assert with_logprobs(request(logprobs=True, top_logprobs=9)).fields["top_logprobs"] == 9
    assert with_logprobs(request(logprobs=True, top_logprobs=0)).fields["top_logprobs"] == 5
    assert with_logprobs(request(), top=40).fields["top_logprobs"] == 20


def test_a_peer_is_asked_the_same_without_what_only_the_own_model_understands():
    asked = peer_request(BUSY)
    assert set(BUSY.fields) - set(asked.fields) == {"n", "logit_bias", "stream", "stream_options"}
    assert (asked.stream, asked.include_usage, asked.n) == (False, False, 1)
    assert asked.needs == {"tools", "json_schema", "vision"}


@pytest.mark.parametrize(
    "ask",
    [
        lambda asked: self_check_request(asked, "42"),
        lambda asked: sampled_request(asked, 4),
        lambda asked: sampled_request(asked, 1),
        with_logprobs,
        peer_request,
    ],
)
def test_the_clients_request_stays_as_it_is(ask):
    before = copy.deepcopy(BUSY)
    ask(BUSY)
    assert before == BUSY
