"""The compiled instruments against each other; nothing here looks at a clock."""

from __future__ import annotations

import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gateway.cases import Case, Pace
from benchmarks.gateway.instruments import Engine, Instruments, ask, build, client_arguments
from benchmarks.gateway.payload import write_bodies

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("cc") is None, reason="the instruments need a C compiler"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("instruments"))


@pytest.fixture
def engine(built):
    engine = Engine(built.engine)
    yield engine
    engine.stop()


def run(
    built: Instruments, engine: Engine, tmp_path: Path, case: Case, *, path: str = "/v1/chat/completions"
) -> dict[str, Any]:
    bodies = write_bodies(tmp_path)
    arguments = client_arguments(case, engine.root + path, "key", bodies[case.stream], seed=1)
    return ask(built.client, arguments)


def test_whole_answers_are_counted_on_both_sides(built, engine, tmp_path):
    report = run(built, engine, tmp_path, Case("any", "any", 30, connections=3, requests=50))
    assert (report["issued"], report["good"], report["dialled"]) == (50, 50, 3)
    assert report["answer_ms"]["n"] == 50
    assert engine.counts()["whole"] == 50


def test_every_token_of_a_stream_is_seen_with_its_stamp(built, engine, tmp_path):
    pace = Pace(tokens=7)
    engine.pace(pace)
    case = Case("any", "any", 30, connections=2, stream=True, pace=pace, requests=10)
    report = run(built, engine, tmp_path, case)
    assert (report["good"], report["tokens"]) == (10, 70)
    assert (report["delay_ms"]["n"], report["ttft_ms"]["n"], report["gap_ms"]["n"]) == (70, 10, 60)
    assert report["delay_ms"]["min"] >= 0
    counts = engine.counts()
    assert (counts["finished"], counts["events"], counts["open"], counts["aborted"]) == (10, 70, 0, 0)


def test_a_paced_stream_keeps_its_pace_and_arrivals_stop_at_their_number(built, engine, tmp_path):
    pace = Pace(ttft_ms=20, itl_ms=5, tokens=4)
    engine.pace(pace)
    report = run(built, engine, tmp_path, Case("any", "any", 30, rate=500, stream=True, pace=pace, requests=6))
    assert report["good"] == 6
    assert report["ttft_ms"]["min"] >= 19.9
    assert report["answer_ms"]["min"] >= 34.9


def test_a_stream_with_too_few_tokens_is_not_good(built, engine, tmp_path):
    engine.pace(Pace(tokens=3))
    report = run(built, engine, tmp_path, Case("any", "any", 30, connections=1, stream=True, requests=4))
    assert (report["good"], report["wrong"]) == (0, 4)


def test_a_refusal_is_counted_with_its_status_and_words(built, engine, tmp_path):
    report = run(built, engine, tmp_path, Case("any", "any", 30, connections=1, requests=2), path="/nowhere")
    assert (report["good"], report["refused"], report["said_status"]) == (0, 2, 404)
    assert "no such path" in report["said"]


def test_a_client_that_leaves_a_stream_is_an_abort_for_the_engine(built, engine, tmp_path):
    pace = Pace(ttft_ms=60_000, itl_ms=60_000)
    engine.pace(pace)
    arguments = client_arguments(
        Case("any", "any", 0.05, connections=2, stream=True), engine.root + "/v1/chat/completions", None,
        write_bodies(tmp_path)[True], seed=1,
    )  # fmt: skip
    arguments[arguments.index("--drain") + 1] = "0"
    assert ask(built.client, arguments)["unfinished"] == 2
    while (counts := engine.counts())["aborted"] < 2:
        assert counts["open"] + counts["aborted"] == 2
    assert counts["open"] == 0


def test_the_client_never_leaves_the_machine(built, tmp_path):
    body = write_bodies(tmp_path)[False]
    for host in ("192.0.2.1", "example.com", "0.0.0.0"):
        command = [built.client, "--url", f"http://{host}:80/", "--body", body, "--connections", "1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "loopback" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--connections", "1", "--rate", "1"],
        [],
        ["--connections", "1", "--seconds", "100", "--drain", "21"],
        ["--connections", "9000"],
        ["--connections", "1", "--requests", "3000000"],
        ["--connections", "1", "--frob", "1"],
    ],
)
def test_the_client_refuses_unbounded_or_unclear_loads(built, tmp_path, arguments):
    body = write_bodies(tmp_path)[False]
    command = [built.client, "--url", "http://127.0.0.1:1/", "--body", body, *arguments]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2


def test_the_engine_refuses_what_is_no_chat(engine):
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(f"{engine.root}/v1/chat/completions", data=b"{}", timeout=5)
    assert engine.counts()["refused"] == 1
