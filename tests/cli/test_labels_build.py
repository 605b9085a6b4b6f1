"""`llmrouter labels build`: from a golden file or samples and real pools to labels that training reads."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from llmrouter.backends.runners.models import obtain
from llmrouter.database import migrate, open_database
from llmrouter.errors import RouterError
from llmrouter.offline.label_reader import read_labels
from llmrouter.offline.roles import Roles
from llmrouter.quality.sample_store import NewSample, SampleInfo, add_samples
from llmrouter.testing import Answer, Decide, FakeBackend, Held, HttpError, Signal
from llmrouter.testing.records import Incoming
from tests.cli.command import llmrouter, two_models

GOLDEN: list[dict[str, Any]] = [
    {"id": "q-1", "prompt": "What is 1 + 1?", "expected": "2", "scorer": "number"},
    {"id": "q-2", "prompt": "Rome is in A. Spain B. Italy", "expected": "B", "scorer": "choice", "tags": ["geo"]},
]


def suite(folder: Path, *rows: Any) -> Path:
    path = folder / "golden.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or GOLDEN))
    return path


def written(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def knowing(request: Incoming) -> Answer:
    """The large model knows everything, the small one can add."""
    if "1 + 1" in request.last_user_text:
        return Answer("The answer is 2.")
    return Answer("Answer: B" if request.fields["model"] == "l" else "Answer: A")


def test_models_are_asked_and_scored(tmp_path: Path):
    out = tmp_path / "labels.jsonl"
    with FakeBackend.in_thread(default=Decide(knowing)) as engine:
        config = two_models(tmp_path, url=engine.url)
        done = llmrouter("labels", "build", suite(tmp_path), "--models", "small,large", "--out", out, "-c", config)
    assert done.code == 0, done.err
    assert [row["scores"] for row in written(out)] == [{"s": 1, "l": 1}, {"s": 0, "l": 1}]
    assert [row["answers"] for row in written(out)] == [{"s": "2", "l": "2"}, {"s": "A", "l": "B"}]
    assert written(out)[0]["cost_usd"]["s"] > 0
    assert [line.split() for line in done.out.splitlines()[1:]] == [["s", "0.5000"], ["l", "1.0000"]]
    assert "4 of 4 calls (100 %)" in done.err
    assert "2 of 2 items; 4 calls made, 0 done before, 0 failed; $" in done.err
    assert len(read_labels([out], Roles.of_models("s,l"))) == 2


def test_a_second_run_asks_nothing_and_a_changed_one_what_is_new(tmp_path: Path):
    out = tmp_path / "labels.jsonl.gz"
    with FakeBackend.in_thread(default=Decide(knowing)) as engine:
        config = two_models(tmp_path, url=engine.url)
        command = ("labels", "build", suite(tmp_path), "--out", out, "-c", config, "--json")
        first = llmrouter(*command).json
        again = llmrouter(*command).json
        suite(tmp_path, *GOLDEN, {**GOLDEN[0], "id": "q-3"})
        more = llmrouter(*command).json
    assert (first["calls"], again["calls"], more["calls"]) == (4, 0, 2)
    assert again["reused"] == 4
    assert again["mean_scores"] == {"s": 0.5, "l": 1.0}


def test_a_failing_call_makes_exit_1_and_is_tried_again(tmp_path: Path):
    out = tmp_path / "labels.jsonl"

    def sick(request: Incoming) -> Any:
        return HttpError(400, message="too long") if request.fields["model"] == "s" else knowing(request)

    with FakeBackend.in_thread(default=Decide(sick)) as engine:
        config = two_models(tmp_path, url=engine.url)
        command = ("labels", "build", suite(tmp_path), "--out", out, "-c", config)
        done = llmrouter(*command)
        allowed = llmrouter(*command, "--allow-failures")
    assert (done.code, allowed.code) == (1, 0)
    assert "error: q-1, s: s/0: HTTP 400: too long" in done.err
    assert written(out)[0]["failures"] == {"s": "s/0: HTTP 400: too long"}
    with FakeBackend.in_thread(default=Decide(knowing)) as engine:
        well = llmrouter(*command[:-1], two_models(tmp_path, url=engine.url))
    assert well.code == 0
    assert "2 calls made, 2 done before, 0 failed" in well.err
    assert "failures" not in written(out)[0]


def test_without_any_answer_it_is_exit_5_and_no_file(tmp_path: Path):
    out = tmp_path / "labels.jsonl"
    with FakeBackend.in_thread(default=HttpError(400, message="no")) as engine:
        config = two_models(tmp_path, url=engine.url)
        done = llmrouter("labels", "build", suite(tmp_path), "--out", out, "-c", config)
    assert done.code == 5
    assert not out.exists()


def test_samples_and_signals_come_with_echo_pools(tmp_path: Path):
    config = two_models(tmp_path)
    text = config.read_text().replace('api = "vllm"\nurls = ["http://127.0.0.1:9/v1"]', 'api = "echo"')
    config.write_text(text)
    out = tmp_path / "labels.jsonl"
    command = ("labels", "build", suite(tmp_path), "--out", out, "-c", config, "--samples", "2", "--signals")
    assert llmrouter(*command, "--limit", "1").code == 0
    (row,) = written(out)
    assert row["samples"] == {"s": ["1", "1"], "l": ["1", "1"]}
    assert row["signals"]["s"]["mean_logprob"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--models", "s,medium"), "--models 'medium': is neither a model nor a role of the tier"),
        (("--models", "s,small"), "--models 'small': the model 's' is there twice"),
        (("--tier", "gold"), "--tier 'gold': there is no such tier"),
        (("--tenant", "t"), "--tenant is for samples"),
        (("--out", "-"), "--out -: name a .jsonl or .jsonl.gz file"),
    ],
)
def test_wrong_use_is_exit_2_and_names_what_is_wrong(tmp_path: Path, arguments: tuple[str, ...], message: str):
    out = () if "--out" in arguments else ("--out", str(tmp_path / "x.jsonl"))
    done = llmrouter("labels", "build", suite(tmp_path), *out, "-c", two_models(tmp_path), *arguments)
    assert done.code == 2
    assert message in done.err


def test_a_missing_suite_and_no_samples_are_exit_2(tmp_path: Path):
    config = two_models(tmp_path)
    missing = llmrouter("labels", "build", tmp_path / "no.jsonl", "--out", tmp_path / "x.jsonl", "-c", config)
    assert (missing.code, "no such file" in missing.err) == (2, True)
    migrate(tmp_path / "llmrouter.db")
    empty = llmrouter("labels", "build", "samples", "--out", tmp_path / "x.jsonl", "-c", config)
    assert (empty.code, "there are no samples to build labels from" in empty.err) == (2, True)


def keep_sample(store: Path, request_id: str, tenant: str, prompt: str) -> None:
    now = datetime.now(UTC)
    info = SampleInfo(request_id, now, tenant, "k", "chat", "auto", "s", 1, 1, {}, None, 0.5, now + timedelta(days=1))
    request = {"model": "auto", "messages": [{"role": "user", "content": prompt}]}
    connection = open_database(store)
    add_samples(connection, [NewSample(info, None, orjson.dumps(request).decode(), None)])
    connection.close()


def test_samples_are_labelled_by_the_reference_for_tenants_that_consent(tmp_path: Path):
    consent = "[tenants.yes.samples]\nconsent = true\n[tenants.no]\n"
    out = tmp_path / "labels.jsonl"
    with FakeBackend.in_thread(default=Decide(knowing)) as engine:
        config = two_models(tmp_path, consent, url=engine.url)
        store = tmp_path / "llmrouter.db"
        migrate(store)
        keep_sample(store, "req_1", "yes", "What is 1 + 1? Answer with a number.")
        keep_sample(store, "req_2", "no", "What is 1 + 1? Answer with a number.")
        done = llmrouter("labels", "build", "samples", "--out", out, "-c", config)
    assert done.code == 0, done.err
    (row,) = written(out)
    assert (row["id"], row["source"], row["inclusion_probability"]) == ("req_1", "samples:yes", 0.5)
    assert row["scores"] == {"s": 1, "l": 1}
    assert "1 samples are left" in done.err


@pytest.mark.engine
def test_a_real_engine_is_started_asked_and_stopped(tmp_path: Path):
    try:
        obtain("smollm2-135m", progress=None)
    except RouterError as error:
        pytest.skip(f"the model cannot be had: {error.message}")
    config = two_models(tmp_path)
    runner = 'api = "llama_cpp"\nrunner = { kind = "llama_cpp", model = "smollm2-135m", context = 2048, slots = 2 }'
    config.write_text(config.read_text().replace('api = "vllm"\nurls = ["http://127.0.0.1:9/v1"]', runner))
    out = tmp_path / "labels.jsonl"
    rows = [{"id": "q", "prompt": "Say the word hello.", "expected": "hello", "scorer": "contains"}]
    command = ("labels", "build", suite(tmp_path, *rows), "--models", "s", "--out", out, "-c", config, "--signals")
    done = llmrouter(*command, "--self-check", "--max-tokens", "20", "--json")
    assert done.code == 0, done.err
    (row,) = written(out)
    assert row["output_tokens"]["s"] > 0
    assert row["cost_usd"]["s"] > 0
    assert row["signals"]["s"]["mean_logprob"] < 0
    assert row["prefix_signals"]["s"]["tokens"] <= 24
    assert 0 <= row["p_true"]["s"] <= 1
    assert row["self_check_output_tokens"] == {"s": 1}
    assert "estimated" not in row


@pytest.mark.process
def test_an_interrupted_run_keeps_what_is_done_and_says_how_to_go_on(tmp_path: Path):
    out = tmp_path / "labels.jsonl"
    gate = Signal()

    def stuck(request: Incoming) -> Any:
        return Held(gate, knowing(request)) if request.fields["model"] == "l" else knowing(request)

    with FakeBackend.in_thread(default=Decide(stuck)) as engine:
        config = two_models(tmp_path, url=engine.url)
        command = ["labels", "build", str(suite(tmp_path)), "--out", str(out), "-c", str(config), "--concurrency", "2"]
        child = subprocess.Popen(
            [sys.executable, "-m", "llmrouter", *command],
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            # Tests that run in the background ignore the signal, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            assert child.stderr is not None
            told = ""
            while "2 of 4 calls" not in told:
                line = child.stderr.readline()
                assert line, told
                told += line
            child.send_signal(signal.SIGINT)
            _, rest = child.communicate(timeout=20)
        finally:
            child.kill()
            gate.set()
    assert child.returncode == 130, rest
    assert "the same command goes on from there" in rest
    assert "Traceback" not in rest
    assert not out.exists()
    with FakeBackend.in_thread(default=Decide(knowing)) as engine:
        two_models(tmp_path, url=engine.url)
        done = llmrouter(*command, "--json")
    assert (done.json["reused"], done.json["calls"]) == (2, 2)
