"""Verifiers: found by name, asked with care."""

import asyncio
import sys
from pathlib import Path

import pytest

from llmrouter.errors import ConfigError
from llmrouter.routing.verifier import load_verifier, verdict
from llmrouter.types import ChatRequest

EXAMPLE = Path(__file__).parents[2] / "examples" / "verifiers"
TEXT = 'The lease runs for 24 months from 2026-03-01. Notice: 60 days. The tenant "shall keep a dog".'


def request(*contents: object) -> ChatRequest:
    messages = [{"role": "user", "content": content} for content in contents or (TEXT,)]
    return ChatRequest("chat", "auto", {"model": "auto", "messages": messages})


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs, as a package installer would, a distribution that declares these entry points."""

    def declare(name: str = "plug-in", **entry_points: str) -> None:
        folder = tmp_path / f"{name.replace('-', '_')}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        lines = [f"{each} = {where}" for each, where in entry_points.items()]
        (folder / "entry_points.txt").write_text("\n".join(["[llmrouter.verifiers]", *lines, ""]))

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield declare
    sys.modules.pop("grounded", None)


def test_the_example_is_found_by_the_name_that_its_project_declares(declared):
    assert 'grounded = "grounded:Grounded"' in (EXAMPLE / "pyproject.toml").read_text()
    declared(grounded="grounded:Grounded")
    assert type(load_verifier("grounded")).__name__ == "Grounded"


async def test_the_example_counts_figures_and_quotations_that_are_given(declared):
    declared(grounded="grounded:Grounded")
    verifier = load_verifier("grounded")
    assert await verifier.score(request(), "24 months, notice 60 days, from 2026-03-01.") == 1
    assert await verifier.score(request(), "24 months, notice 30 days.") == 0.5
    assert await verifier.score(request(), 'It says "shall  keep a Dog" and "may keep a cat".') == 0.5
    assert await verifier.score(request(), "It is a lease.") is None
    assert await verifier.score(request([{"type": "text", "text": "60 days"}, {"type": "image_url"}], None), "60") == 1


def test_an_unknown_name_is_refused_with_the_known_ones(declared):
    declared(grounded="grounded:Grounded")
    with pytest.raises(ConfigError, match=r"no verifier 'tests'.*llmrouter\.verifiers; known: grounded"):
        load_verifier("tests")


def test_a_name_that_two_declare_is_refused(declared):
    declared("one", grounded="grounded:Grounded")
    declared("two", grounded="grounded:_words")
    with pytest.raises(ConfigError, match="declared twice: grounded:Grounded and grounded:_words"):
        load_verifier("grounded")


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("nowhere_to_be_found:It", "cannot be made: No module named"),
        ("grounded:_words", "cannot be made: _words"),
        ("builtins:object", "has no method `score`"),
    ],
)
def test_a_verifier_that_cannot_be_made_is_named(declared, where: str, says: str):
    declared(broken=where)
    with pytest.raises(ConfigError, match=f"'broken' .*{says}"):
        load_verifier("broken")


class Fixed:
    """Says what it was told to say, or raises it."""

    def __init__(self, said: object) -> None:
        self.said = said

    async def score(self, request: ChatRequest, answer_text: str) -> float | None:
        if isinstance(self.said, BaseException):
            raise self.said
        return self.said  # type: ignore[return-value]


class Stuck:
    async def score(self, request: ChatRequest, answer_text: str) -> float | None:
        await asyncio.Event().wait()
        return 1.0


@pytest.mark.parametrize(("said", "score"), [(0.25, 0.25), (1, 1.0), (0, 0.0), (None, None)])
async def test_a_score_is_passed_on(said: object, score: float | None):
    assert await verdict(Fixed(said), request(), "x", timeout_s=1) == score


@pytest.mark.parametrize("said", [1.5, -0.1, float("nan"), "0.5", True, ValueError("secret"), KeyError()], ids=str)
async def test_nonsense_and_failures_are_no_score_and_leak_no_text(said: object, caplog: pytest.LogCaptureFixture):
    assert await verdict(Fixed(said), request(), "x", timeout_s=1) is None
    assert "Fixed gave no score" in caplog.text
    assert "secret" not in caplog.text


async def test_a_verifier_that_takes_too_long_has_no_score(caplog: pytest.LogCaptureFixture):
    assert await verdict(Stuck(), request(), "x", timeout_s=0.01) is None
    assert "TimeoutError" in caplog.text


async def test_a_cancelled_call_stays_cancelled():
    task = asyncio.create_task(verdict(Stuck(), request(), "x", timeout_s=60))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
