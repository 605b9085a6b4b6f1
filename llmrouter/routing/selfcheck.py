"""What a plan sends instead of the client's request: more samples, log-probabilities, a question about an answer.

Each function makes a new request; the client's own, and the JSON object that it holds, stay as they are.
"""

from __future__ import annotations

import dataclasses
import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from llmrouter.types import ChatRequest, Observation

__all__ = [
    "QUESTION",
    "alternatives",
    "p_true",
    "peer_request",
    "sampled_request",
    "self_check_request",
    "with_logprobs",
]

QUESTION = "Is the answer above correct? Reply with one word only: Yes or No."
"""What a model is asked about its own answer."""

SAMPLING_TEMPERATURE = 0.7
"""For samples of a client that wants none: at 0 all samples are the same and agree whether they are right or not."""

_MOST_ALTERNATIVES = 20
"""The most that OpenAI and vLLM give of one token."""
_LEAST_MASS = 1e-3
"""Less than this on yes and no together: the model was about to say something else, and the rest of it is noise."""

_KEPT = frozenset(
    """model messages user safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options service_tier
    metadata reasoning_effort documents chat_template chat_template_kwargs mm_processor_kwargs lora_request""".split()
)
"""Fields of a self-check that stay: what the prompt and thereby the engine's prefix cache depend on, and who asks."""
_DROPPED_NEEDS = frozenset(
    """n tools custom_tools allowed_tools json_object json_schema audio_output verbosity moderation prediction
    web_search engine_fields""".split()
)
_MODEL_BOUND = frozenset(
    """logit_bias stop_token_ids logprob_token_ids allowed_token_ids prompt_logprobs prediction logprobs top_logprobs n
    lora_request lora""".split()
)
"""Fields that mean nothing to another model (token ids), or that only the client's own answer needs."""

_YES = frozenset(
    """yes y true correct right a ja richtig wahr oui vrai sí si verdadero correcto sim verdadeiro correto sì vero
    corretto tak prawda да верно правильно evet doğru はい 正しい 是 是的 对 對 正确 正確 예 네
    نعم صحيح हाँ हां सही""".split()
)
_NO = frozenset(
    """no n false incorrect wrong not b nein falsch non faux incorrecto falso não nao incorreto errato nie fałsz нет
    неверно неправильно hayır yanlış いいえ 否 不 不是 错 錯 错误 錯誤 아니 아니요 لا خطأ नहीं गलत""".split()  # noqa: RUF001
)
_EDGES = " \t\r\n\"'`*_.,:;!?()[]<>。、「」▁Ġ"
"""What may stand around a word in one token; the last two are how tokenizers write a space."""


def self_check_request(request: ChatRequest, answer_text: str) -> ChatRequest:
    """Ask the model whether its answer is right: one token at temperature 0, never streamed, with log-probabilities.

    The client's messages come first and unchanged, so that the engine has them in its prefix cache. Tools, response
    format, stop sequences and sampling are left out: they would forbid or distort the one word. `p_true` reads the
    answer.
    """
    answer = answer_text if answer_text.strip() else "(no answer)"
    given = request.fields.get("messages")
    messages = [
        *(given if isinstance(given, list) else ()),
        {"role": "assistant", "content": answer},
        {"role": "user", "content": QUESTION},
    ]
    fields = {name: value for name, value in request.fields.items() if name in _KEPT}
    fields |= {"messages": messages, "max_tokens": 1, "temperature": 0}
    fields |= {"logprobs": True, "top_logprobs": _MOST_ALTERNATIVES}
    return dataclasses.replace(
        request,
        fields=fields,
        stream=False,
        include_usage=False,
        max_output_tokens=1,
        n=1,
        needs=(request.needs - _DROPPED_NEEDS) | {"logprobs"},
        text_bytes=request.text_bytes + len(answer.encode(errors="replace")) + len(QUESTION),
        message_count=request.message_count + 2,
        last_user_text=QUESTION,
    )


def alternatives(entries: Sequence[Any]) -> dict[str, float]:
    """Log-probability of each alternative of the first token, the token itself among them.

    Args:
        entries: of a chat choice's `logprobs.content`, as the engine gave them.
    """
    first = entries[0] if entries and isinstance(entries[0], Mapping) else {}
    others = first.get("top_logprobs")
    return {
        each["token"]: float(each["logprob"])
        for each in [first, *(others if isinstance(others, list) else ())]
        if isinstance(each, Mapping) and isinstance(each.get("token"), str) and _is_number(each.get("logprob"))
    }


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def p_true(observation: Observation) -> float | None:
    """The probability of yes among yes and no as the first word of a self-check's answer; not calibrated.

    None where the engine told no alternatives or neither word is among them.
    """
    yes = _mass(observation.first_token, _YES)
    no = _mass(observation.first_token, _NO)
    return yes / (yes + no) if yes + no >= _LEAST_MASS else None


def _mass(first_token: Mapping[str, float], words: frozenset[str]) -> float:
    return math.fsum(
        math.exp(min(logprob, 0.0))
        for token, logprob in first_token.items()
        if not math.isnan(logprob) and _word(token) in words
    )


def _word(token: str) -> str:
    return unicodedata.normalize("NFKC", token[:32]).strip(_EDGES).casefold()


def sampled_request(request: ChatRequest, n: int, temperature: float | None = None) -> ChatRequest:
    """Ask for `n` choices that differ: a client's temperature of 0 becomes `SAMPLING_TEMPERATURE`.

    So none of the samples is the greedy answer the client would have had. Where only one is asked for, it is one of
    several calls side by side, and a `seed` is left out: they would all write the same.

    Args:
        temperature: instead of the client's own, whatever that is; None keeps a positive one, or the engine's default.
    """
    fields = dict(request.fields)
    needs = request.needs
    if temperature is not None:
        fields["temperature"] = temperature
    elif _is_zero(fields.get("temperature")):
        fields["temperature"] = SAMPLING_TEMPERATURE
    if fields.get("top_k") == 1:
        del fields["top_k"]
    if n > 1:
        fields["n"] = n
        needs = needs | {"n"}
    else:
        fields.pop("seed", None)
    return dataclasses.replace(request, fields=fields, n=n, needs=needs)


def _is_zero(temperature: Any) -> bool:
    return isinstance(temperature, int | float) and temperature <= 0


def with_logprobs(request: ChatRequest, top: int = 5) -> ChatRequest:
    """Ask for log-probabilities with at least `top` alternatives a token; a client that wants more gets more."""
    wanted = request.fields.get("top_logprobs")
    most = max(top, wanted) if type(wanted) is int else top
    fields = {**request.fields, "logprobs": True, "top_logprobs": min(most, _MOST_ALTERNATIVES)}
    return dataclasses.replace(request, fields=fields, needs=request.needs | {"logprobs"})


def peer_request(request: ChatRequest) -> ChatRequest:
    """The same question for another model: one choice, whole, without what only the client's own model understands."""
    left_out = _MODEL_BOUND | {"stream", "stream_options"}
    fields = {name: value for name, value in request.fields.items() if name not in left_out}
    return dataclasses.replace(
        request,
        fields=fields,
        stream=False,
        include_usage=False,
        n=1,
        needs=request.needs - {"n", "logprobs", "prediction"},
    )
