"""vLLM's own server: the flags that a `vllm` runner's keys stand for."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from llmrouter.config import VllmRunner
from llmrouter.errors import ConfigError

__all__ = ["vllm_arguments", "vllm_environment", "with_program"]


def with_program(runner: VllmRunner, pool_id: str) -> VllmRunner:
    """The runner with the full path of the program that starts vLLM, from PATH or from beside this Python.

    Raises:
        ConfigError: it is not there; the message names the extra.
    """
    if not runner.command:
        raise ConfigError(f"pools.{pool_id}.runner.command is empty; the default is ['vllm', 'serve']")
    program = runner.command[0]
    found = shutil.which(program) or shutil.which(program, path=str(Path(sys.executable).parent))
    if found is None:
        raise ConfigError(
            f"pools.{pool_id}.runner.command: no program {program!r}; "
            "pip install '.[vllm]' (needs a GPU), or name the program that starts vLLM here"
        )
    return runner.model_copy(update={"command": (found, *runner.command[1:])})


def vllm_arguments(runner: VllmRunner, *, model_id: str, port: int) -> list[str]:
    """The whole command of one replica: `command`, the model, derived flags, then `extra_args`, which win.

    The model follows the command directly, so a command that does not take it by position ends with `--model`.
    """
    return [*runner.command, runner.model, *_flags(runner, model_id, port), *runner.extra_args]


def vllm_environment(runner: VllmRunner, api_key: str | None) -> dict[str, str]:
    """The pool's key, which others can list among arguments but not here; no usage report; then the runner's `env`."""
    key = {} if api_key is None else {"VLLM_API_KEY": api_key}
    return {"VLLM_NO_USAGE_STATS": "1", **key, **runner.env}


def _flags(runner: VllmRunner, model_id: str, port: int) -> Iterator[str]:
    yield from ("--served-model-name", model_id, "--host", "127.0.0.1", "--port", str(port))
    if runner.tensor_parallel > 1:
        yield from ("--tensor-parallel-size", str(runner.tensor_parallel))
    for flag, value in (
        ("--dtype", runner.dtype),
        ("--quantization", runner.quantization),
        ("--kv-cache-dtype", runner.kv_cache_dtype),
        ("--max-model-len", runner.max_model_len),
        ("--max-num-seqs", runner.max_num_seqs),
        ("--gpu-memory-utilization", runner.gpu_memory_utilization),
    ):
        if value is not None:
            yield from (flag, str(value))
    if runner.prefix_caching:
        # Without the second flag the usage never says how much of a prompt was cached, so it is billed in full.
        yield from ("--enable-prefix-caching", "--enable-prompt-tokens-details")
    else:
        yield "--no-enable-prefix-caching"
    if runner.priority_scheduling:
        yield from ("--scheduling-policy", "priority")
    if runner.tool_parser is not None:
        yield from ("--enable-auto-tool-choice", "--tool-call-parser", runner.tool_parser)
    if runner.speculative is not None:
        yield from ("--speculative-config", json.dumps(dict(runner.speculative), separators=(",", ":")))
