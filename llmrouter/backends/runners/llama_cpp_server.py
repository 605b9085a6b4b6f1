"""Launcher of llama.cpp's server, which has no command line of its own: `python -m …llama_cpp_server --model FILE`.

It listens on the loopback address and ends by SIGTERM, at once; whoever runs it drains first.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

_MISSING = "llama.cpp is missing: pip install '.[engines-cpu]' in llmrouter's folder\n"
_PROMPT_CACHE_MIB = 512


def main(argv: list[str] | None = None) -> int:
    """Serve until a signal ends the process; 2 when the engine is not installed, 1 when it cannot start."""
    options = _parser().parse_args(argv)
    try:
        import xllamacpp
    except ImportError:
        sys.stderr.write(_MISSING)
        return 2
    parameters = _parameters(xllamacpp.CommonParams(), options, os.environ.get("LLMROUTER_ENGINE_KEY"))
    try:
        # The engine serves from its own threads as long as this object lives.
        server = xllamacpp.Server(parameters)
    except RuntimeError as error:
        sys.stderr.write(f"llama.cpp did not start: {error} The lines above say why.\n")
        return 1
    sys.stderr.write(f"listening on {server.listening_address}\n")
    while True:
        signal.pause()


def _parameters(parameters: Any, options: argparse.Namespace, api_key: str | None) -> Any:
    parameters.model.path = str(options.model)
    parameters.model_alias = {options.alias}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = options.port
    parameters.n_ctx = options.context
    parameters.n_parallel = options.slots
    # Batch threads too: their default is every core, and two engines that spin on the same cores starve each other.
    parameters.cpuparams.n_threads = options.threads
    parameters.cpuparams_batch.n_threads = options.threads
    # Tools and JSON schemas need the model's Jinja template.
    parameters.use_jinja = True
    if options.chat_template is not None:
        parameters.chat_template = options.chat_template.read_text(encoding="utf-8")
    parameters.endpoint_metrics = True
    parameters.endpoint_slots = True
    # The default keeps up to 8 GiB of old prompts in memory.
    parameters.cache_ram_mib = _PROMPT_CACHE_MIB
    # Web pages must not reach an engine on the machine of who reads them, nor the engine the hub.
    parameters.cors_origins = ""
    parameters.ui = False
    parameters.offline = True
    if api_key is not None:
        parameters.api_keys = [api_key]
    return parameters


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="llama_cpp_server", description="Serve one GGUF file on 127.0.0.1.")
    parser.add_argument("--model", type=Path, required=True, help="the GGUF file")
    parser.add_argument("--alias", required=True, help="name of the model in answers")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens of all slots together")
    parser.add_argument("--slots", type=int, required=True, help="requests served at once")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--chat-template", type=Path, help="Jinja file in place of the model's own template")
    return parser


if __name__ == "__main__":
    sys.exit(main())
