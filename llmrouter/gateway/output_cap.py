"""How much one choice of an answer may be: the cap that an engine is sent, and what is reserved for it."""

from __future__ import annotations

from llmrouter.config import ModelConfig
from llmrouter.types import ChatRequest

__all__ = ["cap_to_send", "choices_written", "most_written"]

_WRITES_UP_TO = 4096
"""Output tokens of a request without a cap at a model without a limit."""

_LEAST_ROOM = 16
"""With less room than this in the window, the engine itself should say that the prompt does not fit."""

_MOST_BYTES_A_TOKEN = 8.0
"""No prompt has more, so what it leaves of a window is certain."""


def cap_to_send(request: ChatRequest, model: ModelConfig, *, clamp: bool, keep: bool) -> int | None:
    """Output tokens of one choice that an engine is told to keep to; None leaves it to the engine and its window.

    With `clamp` a cap that the client asked for is lowered to what the model can honour. With `keep` there is one even
    where the client asked for none, so that no more is written than was reserved; only where the prompt may fill the
    window is there still none, because any cap could be too high for the engine or cut an answer to nothing.
    """
    asked = request.max_output_tokens
    if not (keep if asked is None else clamp):
        return asked
    bounds = [] if asked is None else [asked]
    if model.max_output_tokens is not None:
        bounds.append(model.max_output_tokens)
    if model.context_window is not None:
        room = model.context_window - request.input_tokens_bound(model.bytes_per_token)
        if room >= _LEAST_ROOM:
            bounds.append(room)
        elif asked is None:
            return None
    return min(bounds, default=_WRITES_UP_TO)


def most_written(request: ChatRequest, model: ModelConfig, *, clamp: bool) -> int:
    """The most tokens that one choice can have, if `cap_to_send` is kept to."""
    cap = cap_to_send(request, model, clamp=clamp, keep=True)
    if model.context_window is None:
        assert cap is not None
        return cap
    left = max(model.context_window - request.input_tokens_bound(_MOST_BYTES_A_TOKEN), 1)
    return left if cap is None else min(cap, left)


def choices_written(request: ChatRequest) -> int:
    """How many choices an engine writes: all those from which it picks the best count, though fewer are given."""
    best_of = request.fields.get("best_of") if request.endpoint == "completions" else None
    if not best_of:
        return request.n
    prompts: int = request.n // (request.fields.get("n") or 1)
    return max(request.n, int(best_of) * prompts)
