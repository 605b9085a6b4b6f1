"""Pools that the gateway would start."""

from __future__ import annotations

from pathlib import Path

from llmrouter.backends.runners.catalogue import CATALOGUE
from llmrouter.cli.checkup.runner import check_runner
from llmrouter.config import LlamaCppRunner, VllmRunner


def look(runner: LlamaCppRunner | VllmRunner, cache: Path) -> dict[str, str]:
    findings = check_runner("p", runner, {"LLMROUTER_MODELS": str(cache)})
    return {finding.aspect: finding.status for finding in findings}


def test_a_known_model_is_fetched_or_there(tmp_path: Path):
    runner = LlamaCppRunner(model="smollm2-135m")
    assert look(runner, tmp_path)["model file"] == "info"
    file = CATALOGUE["smollm2-135m"]
    with (tmp_path / file.file_name).open("wb") as sparse:
        sparse.truncate(file.size_bytes)
    assert look(runner, tmp_path)["model file"] == "ok"


def test_an_own_file_must_be_there(tmp_path: Path):
    own = tmp_path / "own.gguf"
    assert look(LlamaCppRunner(model=str(own)), tmp_path)["model file"] == "fail"
    own.write_bytes(b"GGUF")
    assert look(LlamaCppRunner(model=str(own)), tmp_path)["model file"] == "ok"


def test_vllm_must_be_installed_and_its_model_may_be_a_name(tmp_path: Path):
    missing = VllmRunner(model="org/model", command=("no-such-program-here", "serve"))
    assert look(missing, tmp_path) == {"engine": "fail", "model": "info"}
    there = VllmRunner(model=str(tmp_path), command=("python3", "-m", "vllm"))
    assert look(there, tmp_path) == {"engine": "ok", "model": "ok"}
