"""The launcher's command line, and that it sets on the engine what it is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmrouter.backends.runners import llama_cpp_server
from llmrouter.backends.runners.llama_cpp import check_window, llama_cpp_arguments, llama_cpp_environment
from llmrouter.config import LlamaCppRunner
from llmrouter.errors import ConfigError


def test_the_command_of_a_replica() -> None:
    runner = LlamaCppRunner(model="smollm2-135m", threads=2, context=4096, slots=3)
    command = llama_cpp_arguments(runner, model_path=Path("/m/s.gguf"), model_id="small", port=8101)
    assert command[0] == sys.executable
    assert " ".join(command[1:]) == (
        "-P -m llmrouter.backends.runners.llama_cpp_server --model /m/s.gguf --alias small --port 8101 "
        "--context 4096 --slots 3 --threads 2"
    )


def test_a_catalogue_model_brings_its_chat_template() -> None:
    command = llama_cpp_arguments(
        LlamaCppRunner(model="qwen2.5-coder-0.5b"), model_path=Path("/m/q.gguf"), model_id="large", port=1
    )
    assert command[-2] == "--chat-template"
    assert command[-1].endswith("templates/qwen2.5-coder.jinja")


def test_the_key_travels_in_the_environment() -> None:
    assert llama_cpp_environment("sk-pool") == {"LLMROUTER_ENGINE_KEY": "sk-pool"}
    assert llama_cpp_environment(None) == {}


@pytest.mark.parametrize("window", [None, 2048])
def test_a_window_that_a_slot_can_hold_is_fine(window: int | None) -> None:
    check_window(LlamaCppRunner(model="m", context=8192, slots=4), "p", "m", window)


def test_a_window_larger_than_a_slot_is_refused_with_both_ways_out() -> None:
    with pytest.raises(ConfigError) as caught:
        check_window(LlamaCppRunner(model="m", context=8192, slots=4), "small-pool", "small", 2049)
    assert caught.value.message == (
        "models.small.context_window is 2049, but the 4 slots of pools.small-pool.runner share a context of 8192 "
        "tokens, 2048 each; lower it to 2048, or set context to 8196"
    )


def test_without_the_extra_the_launcher_says_what_to_install() -> None:
    hide = (
        "import sys; sys.modules['xllamacpp'] = None\n"
        "from llmrouter.backends.runners.llama_cpp_server import main\n"
        "sys.exit(main('--model m --alias a --port 1 --context 256 --slots 1 --threads 1'.split()))"
    )
    ended = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == "llama.cpp is missing: pip install '.[engines-cpu]' in llmrouter's folder\n"


def test_the_engine_is_set_as_the_command_line_says(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}")
    line = f"--model /m.gguf --alias small --port 8101 --context 4096 --slots 3 --threads 2 --chat-template {template}"
    options = llama_cpp_server._parser().parse_args(line.split())
    bare = SimpleNamespace(model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace())
    given = llama_cpp_server._parameters(bare, options, "sk")
    assert given.model.path == "/m.gguf"
    assert given.model_alias == {"small"}
    assert (given.hostnames, given.port) == (["127.0.0.1"], 8101)
    assert (given.n_ctx, given.n_parallel) == (4096, 3)
    assert (given.cpuparams.n_threads, given.cpuparams_batch.n_threads) == (2, 2)
    assert (given.use_jinja, given.chat_template) == (True, "{{ messages }}")
    assert (given.endpoint_metrics, given.cors_origins, given.api_keys) == (True, "", ["sk"])
