"""llama.cpp's server from the package xllamacpp: what is started for a `llama_cpp` runner."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from llmrouter.backends.runners.catalogue import CATALOGUE
from llmrouter.config import LlamaCppRunner
from llmrouter.errors import ConfigError

__all__ = ["check_window", "llama_cpp_arguments", "llama_cpp_environment", "require_llama_cpp"]


def require_llama_cpp(pool_id: str) -> None:
    """Fail before anything is downloaded when the engine is not installed.

    Raises:
        ConfigError: it is not; the message names the extra.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigError(
            f"pools.{pool_id}.runner: llama.cpp is missing: pip install '.[engines-cpu]' in llmrouter's folder"
        )


def llama_cpp_arguments(runner: LlamaCppRunner, *, model_path: Path, model_id: str, port: int) -> list[str]:
    """The whole command of one replica. The pool's key travels in the environment, which others cannot list."""
    file = CATALOGUE.get(runner.model)
    template = ["--chat-template", str(file.chat_template)] if file is not None and file.chat_template else []
    return [
        *(sys.executable, "-P", "-m", "llmrouter.backends.runners.llama_cpp_server"),
        *("--model", str(model_path), "--alias", model_id, "--port", str(port)),
        *("--context", str(runner.context), "--slots", str(runner.slots), "--threads", str(runner.threads)),
        *template,
    ]


def llama_cpp_environment(api_key: str | None) -> dict[str, str]:
    """What the launcher reads besides its arguments."""
    return {} if api_key is None else {"LLMROUTER_ENGINE_KEY": api_key}


def check_window(runner: LlamaCppRunner, pool_id: str, model_id: str, context_window: int | None) -> None:
    """Refuse a model that promises more than one slot can hold: the engine would refuse what the router sends.

    Raises:
        ConfigError: it does; the message names both ways out.
    """
    slot_tokens = runner.context // runner.slots
    if context_window is not None and context_window > slot_tokens:
        raise ConfigError(
            f"models.{model_id}.context_window is {context_window}, but the {runner.slots} slots of "
            f"pools.{pool_id}.runner share a context of {runner.context} tokens, {slot_tokens} each; "
            f"lower it to {slot_tokens}, or set context to {context_window * runner.slots}"
        )
