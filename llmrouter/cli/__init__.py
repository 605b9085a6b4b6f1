"""The `llmrouter` command: `main` runs it, `build_app` puts it together, each command lives in a file of its own.

Nothing heavy is imported before a command needs it, so that `--help` and shell completion answer at once.
"""

from llmrouter.cli.app import build_app, main

__all__ = ["build_app", "main"]
