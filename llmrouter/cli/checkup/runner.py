"""Pools that the gateway starts itself: what it would start, and whether all that it needs is here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from llmrouter.backends.runners.catalogue import CATALOGUE
from llmrouter.backends.runners.llama_cpp import require_llama_cpp
from llmrouter.backends.runners.models import cache_folder
from llmrouter.backends.runners.vllm import with_program
from llmrouter.cli.checkup.finding import Finding, fail, info, ok
from llmrouter.config import LlamaCppRunner, VllmRunner
from llmrouter.errors import ConfigError

__all__ = ["check_runner"]


def check_runner(
    pool_id: str, runner: LlamaCppRunner | VllmRunner, environ: Mapping[str, str] | None = None
) -> Iterator[Finding]:
    """Look without starting or fetching anything; a model file is judged by its size, its digest when it is used."""
    try:
        if isinstance(runner, LlamaCppRunner):
            require_llama_cpp(pool_id)
        else:
            with_program(runner, pool_id)
    except ConfigError as error:
        yield fail(pool_id, "engine", error.message)
    else:
        times = f"{runner.replicas} replicas" if runner.replicas > 1 else "one replica"
        yield ok(pool_id, "engine", f"{runner.kind} is installed; `serve` starts {times}")
    if isinstance(runner, LlamaCppRunner):
        yield _gguf(pool_id, runner.model, os.environ if environ is None else environ)
    else:
        yield _checkpoint(pool_id, runner.model)


def _gguf(pool_id: str, model: str, environ: Mapping[str, str]) -> Finding:
    file = CATALOGUE.get(model)
    if file is None:
        path = Path(model).expanduser()
        if path.is_file():
            return ok(pool_id, "model file", str(path))
        return fail(pool_id, "model file", f"{model!r} is neither a file nor a known name: {', '.join(CATALOGUE)}")
    path = cache_folder(environ) / file.file_name
    if path.is_file() and path.stat().st_size == file.size_bytes:
        return ok(pool_id, "model file", str(path))
    return info(pool_id, "model file", f"{file.title} is fetched at the first start ({file.size_words})")


def _checkpoint(pool_id: str, model: str) -> Finding:
    if Path(model).expanduser().is_dir():
        return ok(pool_id, "model", model)
    return info(pool_id, "model", f"{model} is no folder here, so vLLM asks the hub for it")
