"""The flags as vLLM 0.32 and 0.33 know them; a change shows here as a difference to review."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llmrouter.backends.runners.vllm import vllm_arguments, vllm_environment, with_program
from llmrouter.config import VllmRunner
from llmrouter.errors import ConfigError


def words(runner: VllmRunner) -> str:
    return " ".join(vllm_arguments(runner, model_id="small", port=8101))


def test_the_defaults_give_the_shortest_command() -> None:
    assert words(VllmRunner(model="org/model")) == (
        "vllm serve org/model --served-model-name small --host 127.0.0.1 --port 8101 "
        "--enable-prefix-caching --enable-prompt-tokens-details"
    )


def test_every_key_gives_its_flag_and_extra_arguments_come_last() -> None:
    runner = VllmRunner(
        model="/models/m",
        tensor_parallel=2,
        dtype="float32",
        quantization="compressed-tensors",
        kv_cache_dtype="fp8",
        max_model_len=512,
        max_num_seqs=4,
        gpu_memory_utilization=0.9,
        prefix_caching=False,
        priority_scheduling=True,
        tool_parser="hermes",
        speculative={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
        extra_args=("--enforce-eager", "--max-num-queued-reqs", "5"),
    )
    assert words(runner) == (
        "vllm serve /models/m --served-model-name small --host 127.0.0.1 --port 8101 "
        "--tensor-parallel-size 2 --dtype float32 --quantization compressed-tensors --kv-cache-dtype fp8 "
        "--max-model-len 512 --max-num-seqs 4 --gpu-memory-utilization 0.9 --no-enable-prefix-caching "
        "--scheduling-policy priority --enable-auto-tool-choice --tool-call-parser hermes "
        '--speculative-config {"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4} '
        "--enforce-eager --max-num-queued-reqs 5"
    )


def test_a_command_of_ones_own_may_take_the_model_by_flag() -> None:
    runner = VllmRunner(model="m", command=("python", "-m", "vllm.entrypoints.openai.api_server", "--model"))
    assert words(runner).startswith("python -m vllm.entrypoints.openai.api_server --model m --served-model-name")


def test_the_key_is_in_the_environment_and_not_among_the_arguments() -> None:
    assert vllm_environment(VllmRunner(model="m"), "sk-pool") == {"VLLM_NO_USAGE_STATS": "1", "VLLM_API_KEY": "sk-pool"}


def test_the_runners_environment_wins() -> None:
    runner = VllmRunner(model="m", env={"VLLM_NO_USAGE_STATS": "0", "CUDA_VISIBLE_DEVICES": "1"})
    assert vllm_environment(runner, None) == {"VLLM_NO_USAGE_STATS": "0", "CUDA_VISIBLE_DEVICES": "1"}


def test_a_missing_program_is_told_before_anything_starts() -> None:
    runner = VllmRunner(model="m", command=("no-such-engine", "serve"))
    with pytest.raises(ConfigError, match=r"pools\.big\.runner\.command: no program 'no-such-engine'"):
        with_program(runner, "big")


def test_an_empty_command_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"pools\.big\.runner\.command is empty"):
        with_program(VllmRunner(model="m", command=()), "big")


def test_a_program_beside_this_python_is_found_without_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway may have been started by its full path, outside an activated environment."""
    monkeypatch.setenv("PATH", "/nowhere")
    name = Path(sys.executable).name
    assert with_program(VllmRunner(model="m", command=(name, "x")), "big").command == (sys.executable, "x")
