"""`python -m llmrouter.testing --port 9001`: a fake engine for use by hand or from another process.

It prints its base URL as one line of JSON when it listens, and runs until SIGINT or SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys

from llmrouter.testing.server import FakeBackend


async def _serve(options: argparse.Namespace) -> None:
    backend = FakeBackend(
        dialect=options.dialect, models=tuple(options.model or ["fake-model"]), slots=options.slots, port=options.port
    )
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with backend:
        sys.stdout.write(json.dumps({"url": backend.url}) + "\n")
        sys.stdout.flush()
        await stopping.wait()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m llmrouter.testing", description="Run a scriptable fake engine.")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--dialect", choices=("vllm", "llama_cpp", "openai"), default="vllm")
    parser.add_argument("--model", action="append", help="name in /v1/models; may be repeated")
    parser.add_argument("--slots", type=int, help="calls worked on at once; further ones wait")
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
