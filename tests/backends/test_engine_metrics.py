"""The metrics and model pages of several engine generations, and pages that are not what they should be."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.backends.engine_metrics import EngineLoad, parse_metrics, served_models

FIXTURES = Path(__file__).parent / "fixtures"

LOADS = {
    "vllm_0_6": EngineLoad(running=12, waiting=3, kv_usage=0.4132473622508793),
    "vllm_0_9": EngineLoad(running=12, waiting=4, kv_usage=0.75, prefix_queries=10_000, prefix_hits=2_000),
    "vllm_0_32": EngineLoad(running=2, waiting=3, kv_usage=0.0625, prefix_queries=1206, prefix_hits=512),
    "llama_cpp": EngineLoad(running=2, waiting=3, prefix_queries=102, prefix_hits=33),
}
MODELS = {
    "vllm_0_6": {"meta-llama/Llama-3.1-8B-Instruct": 32768},
    "vllm_0_9": {"qwen3-32b": 40960, "legal": None},
    "vllm_0_32": {"small": 512},
    "llama_cpp": {"small": 1024},
}


@pytest.mark.parametrize("generation", LOADS)
def test_g088_metrics_of_every_engine_generation_parse(generation):
    assert parse_metrics((FIXTURES / f"{generation}_metrics.txt").read_text()) == LOADS[generation]


@pytest.mark.parametrize("generation", MODELS)
def test_g088_model_lists_of_every_engine_generation_parse(generation):
    assert served_models((FIXTURES / f"{generation}_models.json").read_bytes()) == MODELS[generation]


def test_what_is_not_reported_is_unknown_and_not_zero():
    load = parse_metrics("vllm:num_requests_running 0.0\n")
    assert load == EngineLoad(running=0.0)
    assert load.waiting is None
    assert parse_metrics("") == EngineLoad()


def test_counters_are_read_with_and_without_the_total_suffix():
    page = "vllm:prefix_cache_queries 40\nvllm:prefix_cache_hits_total 10\n"
    assert parse_metrics(page) == EngineLoad(prefix_queries=40, prefix_hits=10)


def test_the_new_name_wins_where_an_engine_reports_both():
    page = 'vllm:gpu_cache_usage_perc{model_name="m"} 0.9\nvllm:kv_cache_usage_perc{model_name="m"} 0.2\n'
    assert parse_metrics(page).kv_usage == 0.2


def test_the_waiting_count_by_reason_is_summed_only_where_the_whole_is_missing():
    reasons = (
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 2\n'
        'vllm:num_requests_waiting_by_reason{reason="deferred"} 1\n'
    )
    assert parse_metrics(reasons).waiting == 3
    assert parse_metrics("vllm:num_requests_waiting 7\n" + reasons).waiting == 7


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1.0", "many", "1.0.0"])
def test_a_value_that_is_no_count_is_unknown(value):
    assert parse_metrics(f"vllm:num_requests_waiting {value}\n").waiting is None


def test_label_values_may_hold_braces_quotes_and_spaces():
    page = 'vllm:num_requests_waiting{engine="0",model_name="a \\"b\\" {c} \\\\"} 4.0 1752417600000\r\n'
    assert parse_metrics(page).waiting == 4.0


def test_names_that_only_begin_alike_are_other_metrics():
    page = (
        "vllm:num_requests_running_max 9\n"
        "vllm:prefix_cache_hits_created 1.7e9\n"
        "# vllm:num_requests_running 8\n"
        "llamacpp:prompt_tokens_seconds 82\n"
    )
    assert parse_metrics(page) == EngineLoad()


def test_a_line_without_value_does_not_take_the_next_line_for_it():
    page = "vllm:num_requests_waiting{\n} 5\nvllm:num_requests_running\n3\n"
    assert parse_metrics(page) == EngineLoad()


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b'"data"', b'{"object":"list"}', b'{"data":{}}', b"\xff\xfe"],
)
def test_a_page_that_is_no_model_list_is_none(body):
    assert served_models(body) is None


def test_entries_without_a_name_are_passed_over():
    body = b'{"data":[{"id":"a","max_model_len":"8k","meta":[]},{"id":7},{},null,{"id":"b","meta":{"n_ctx":4096}}]}'
    assert served_models(body) == {"a": None, "b": 4096}


@given(st.text(), st.binary())
def test_no_page_can_make_the_readers_raise(text, body):
    parse_metrics(text)
    parse_metrics("vllm:num_requests_waiting" + text)
    served_models(body)
