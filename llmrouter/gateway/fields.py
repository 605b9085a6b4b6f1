"""Which request fields exist, who may set them, and what a model must be able to do to honour them.

Facts from OpenAI's chat completions reference (the types of the `openai` Python package 3.57) and from vLLM's
request model (`ChatCompletionRequest` of vLLM 0.32).
"""

from __future__ import annotations

__all__ = [
    "ABORTED",
    "CHAT_FIELDS",
    "COMPLETION_FIELDS",
    "EMBEDDING_FIELDS",
    "ENGINE_FIELDS",
    "REFUSED_FIELDS",
    "REFUSED_IN_ANSWERS",
]

CHAT_FIELDS = frozenset(
    """messages model audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens
    max_tokens metadata modalities moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key
    prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier
    stop store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity
    web_search_options""".split()
)

COMPLETION_FIELDS = frozenset(
    """model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream
    stream_options suffix temperature top_p user""".split()
)

EMBEDDING_FIELDS = frozenset("model input dimensions encoding_format user".split())

ENGINE_FIELDS = frozenset(
    """top_k min_p repetition_penalty length_penalty min_tokens stop_token_ids ignore_eos include_stop_str_in_output
    skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs
    logprob_token_ids allowed_token_ids bad_words echo add_generation_prompt continue_final_message documents
    structured_outputs return_token_ids return_tokens_as_token_ids return_prompt_text repetition_detection
    thinking_token_budget include_reasoning guided_json guided_regex guided_choice guided_grammar grammar
    use_beam_search mirostat typical_p dry_multiplier cache_prompt""".split()
)
"""Sampling and output controls of vLLM and llama.cpp: sent on, but only to pools that are such an engine."""

REFUSED_FIELDS = frozenset(
    """chat_template chat_template_kwargs kv_transfer_params ec_transfer_params cache_salt priority vllm_xargs
    mm_processor_kwargs media_io_kwargs request_id session_id stream_interval slot_id id_slot lora_request lora
    n_cmpl n_predict n_keep n_discard n_probs reasoning_format""".split()
)
"""Engine controls that reach past the own request (other tenants' cache, templates, scheduling), or that say again what
a checked and booked parameter says (`n_cmpl`, `n_predict`): a 400 unless the operator lists them in
`limits.allow_engine_fields`."""

REFUSED_IN_ANSWERS = frozenset("kv_transfer_params ec_transfer_params timings metrics __verbose".split())
"""Engine internals that never reach a client."""

ABORTED = frozenset(("abort", "error"))
"""Finish reasons with which vLLM ends an answer that is not complete (shutdown, pause, an error of the engine)."""
