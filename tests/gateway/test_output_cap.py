"""What an engine may write is what is reserved, and what is reserved lets it answer."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.config import ModelConfig
from llmrouter.gateway.output_cap import cap_to_send, choices_written, most_written
from llmrouter.types import ChatRequest, Endpoint


def model(window: int | None = None, most: int | None = None) -> ModelConfig:
    free = {"usd": {"input_usd_per_mtok": 0, "output_usd_per_mtok": 0}}
    return ModelConfig.model_validate({"price": free, "context_window": window, "max_output_tokens": most})


def asking(cap: int | None = None, *, text_bytes: int = 30, n: int = 1, endpoint: Endpoint = "chat", **fields: Any):
    return ChatRequest(endpoint, "auto", fields, max_output_tokens=cap, n=n, text_bytes=text_bytes)


@pytest.mark.parametrize(
    ("request_", "of", "keep", "sent"),
    [
        (asking(), model(), False, None),
        (asking(), model(8192, 100), False, None),
        (asking(), model(), True, 4096),
        (asking(text_bytes=100_000), model(), True, 4096),
        (asking(), model(8192, 100), True, 100),
        (asking(text_bytes=24_000), model(8192, 4096), True, 191),
        (asking(text_bytes=30_000), model(8192, 4096), True, None),
        (asking(5000), model(8192, 100), False, 100),
        (asking(50), model(8192, 100), True, 50),
    ],
)
def test_a_cap_is_what_the_model_can_honour(request_, of, keep, sent):
    assert cap_to_send(request_, of, clamp=True, keep=keep) == sent


def test_without_clamping_the_client_s_cap_is_sent_as_it_is():
    assert cap_to_send(asking(5000), model(8192, 100), clamp=False, keep=True) == 5000


@given(
    text_bytes=st.integers(1, 60_000),
    asked=st.none() | st.integers(1, 2**31 - 1),
    window=st.none() | st.integers(16, 20_000),
    most=st.none() | st.integers(1, 20_000),
    share=st.floats(0, 1),
)
def test_an_engine_never_writes_more_than_is_reserved_nor_is_cut_to_nothing(text_bytes, asked, window, most, share):
    """The prompt really has anything between an eighth of its bytes and the bound that it is reserved by."""
    request, of = asking(asked, text_bytes=text_bytes), model(window, most)
    low, high = request.input_tokens_bound(8.0), request.input_tokens_bound(of.bytes_per_token)
    prompt = low + int((high - low) * share)
    cap = cap_to_send(request, of, clamp=True, keep=True)
    if window is not None and prompt + (asked or 0 if cap is None else cap) > window:
        return  # The engine refuses it, or there is nothing left to write.
    written = min(cap or 2**31, 2**31 if window is None else window - prompt)
    assert written <= most_written(request, of, clamp=True)
    assert cap is None or cap >= min(16, asked or 16, most or 16)


def _ten_of_five_prompts(best_of: int) -> ChatRequest:
    return ChatRequest("completions", "auto", {"n": 2, "best_of": best_of}, n=10)


@pytest.mark.parametrize(
    ("request_", "choices"),
    [
        (asking(n=3), 3),
        (asking(n=1, best_of=8), 1),
        (asking(endpoint="completions", n=1, best_of=8), 8),
        (asking(endpoint="completions", n=6, best_of=None), 6),
        (_ten_of_five_prompts(best_of=4), 20),
    ],
)
def test_every_choice_that_is_written_counts(request_, choices):
    assert choices_written(request_) == choices
