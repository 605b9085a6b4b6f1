"""`llmrouter serve` from the outside."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.cli.command import llmrouter, two_models


def test_g114_another_address_than_loopback_is_refused_while_no_key_exists(tmp_path: Path):
    refused = llmrouter("serve", "--listen", "0.0.0.0:0", "--config", two_models(tmp_path))
    assert refused.code == 2
    assert "refusing to listen on 0.0.0.0:0" in refused.err
    assert "llmrouter keys create" in refused.err


def test_an_address_that_is_none_is_refused(tmp_path: Path):
    refused = llmrouter("serve", "--listen", "localhost", "--config", two_models(tmp_path))
    assert refused.code == 2
    assert "listen address 'localhost' is not HOST:PORT" in refused.err


@pytest.mark.process
def test_g114_on_loopback_without_keys_it_serves_refuses_and_says_how_to_make_one(tmp_path: Path):
    """The flags win over the file, what to do next is on standard error, SIGTERM ends it with exit code 0."""
    path = two_models(tmp_path, '[server]\nlisten = "127.0.0.1:1"\nworkers = 1\n')
    command = [sys.executable, "-m", "llmrouter", "serve", "--listen", "127.0.0.1:0", "--config", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said: list[str] = []
            for line in process.stderr:
                said.append(line)
                if "keys create" in line:
                    break
            found = re.search(r"base URL +(http://127\.0\.0\.1:(\d+)/v1)\n", "".join(said))
            assert found is not None
            assert found.group(2) != "1"
            assert httpx.get(f"{found.group(1)}/models").status_code == 401
            process.send_signal(signal.SIGTERM)
            rest, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, rest) == (0, "")
    text = "".join(said)
    assert "warning: no API key exists yet" in text
    assert f"llmrouter keys create --tenant default --config {path}" in text
    assert '"model": "auto"' in text
