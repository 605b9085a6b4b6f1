"""Logging to standard error, one line an event, no prompts unless the configuration asks for them."""

from __future__ import annotations

import logging
import sys
import time

from llmrouter.config import LogConfig

__all__ = ["set_up_logs"]


def set_up_logs(config: LogConfig) -> None:
    """Send this process's logs to standard error at the configured level, times in UTC."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter("%(asctime)sZ %(levelname)s %(name)s[%(process)d] %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.level.upper())
    logging.getLogger("httpx").setLevel(logging.WARNING)
