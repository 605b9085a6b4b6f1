"""Get a pinned model file: from the cache folder, else from the first source that gives the pinned bytes."""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from llmrouter.backends.runners.catalogue import CATALOGUE, ModelFile
from llmrouter.backends.runners.model_sources import (
    Fetch,
    HubSource,
    Intake,
    PackageSource,
    Progress,
    Source,
    SourceFailed,
)
from llmrouter.errors import ConfigError, RouterError

__all__ = ["CATALOGUE", "ModelFile", "Progress", "cache_folder", "obtain"]

_LOG = logging.getLogger(__name__)
_LOCK_POLL_S = 0.2
_GGUF_MAGIC = b"GGUF"


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where model files are kept: `LLMROUTER_MODELS`, else `llmrouter/models` in the user's cache folder."""
    if chosen := environ.get("LLMROUTER_MODELS"):
        return Path(chosen).expanduser()
    cache = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "llmrouter" / "models"


def obtain(
    name_or_path: str,
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    environ: Mapping[str, str] | None = None,
    sources: Sequence[Source] | None = None,
    catalogue: Mapping[str, ModelFile] = CATALOGUE,
) -> Path:
    """The path of a model file, fetched first where it must be. Blocks; call it in a thread.

    A catalogue name is looked up in the cache folder and there checked against its digest (about a second a
    gigabyte); a file with a wrong digest is removed. Otherwise the hub and then the package registry are asked.
    Processes that ask at the same time fetch once. Anything else is the path of a GGUF file, taken as it is.

    Raises:
        ConfigError: no such name and no such file.
        RouterError: no source has the pinned bytes (the message lists what was tried and what to do), or `cancel`
            was set.
    """
    environ = os.environ if environ is None else environ
    file = catalogue.get(name_or_path)
    if file is None:
        return _own_file(name_or_path, catalogue)
    fetch = Fetch(file, cache_folder(environ), progress or _silent, cancel or threading.Event(), environ)
    target = fetch.folder / file.file_name
    tried: list[str] = []
    try:
        if _is_cached(fetch, target, tried):
            return target
        fetch.folder.mkdir(parents=True, exist_ok=True)
        with _locked(fetch):
            if _is_cached(fetch, target, []):
                return target
            return _fetched(fetch, target, tried, (HubSource(), PackageSource()) if sources is None else sources)
    except OSError as error:
        raise RouterError(f"cannot keep {target}: {error}", code="model_unavailable") from error


def _fetched(fetch: Fetch, target: Path, tried: list[str], sources: Sequence[Source]) -> Path:
    for source in sources:
        try:
            with Intake(fetch, source.label) as intake:
                source.fetch(fetch, intake)
                intake.accept(target)
        except SourceFailed as error:
            _LOG.info("%s from %s: %s", fetch.file.name, source.label, error)
            tried.append(f"{source.label}: {error}")
        else:
            return target
    file = fetch.file
    lines = "".join(f"\n  {line}" for line in tried)
    raise RouterError(
        f"cannot get model {file.name} ({file.title}, {file.size_words}); tried{lines}\n"
        f"What helps: let this machine reach one of them, or put the file {file.file_name} "
        f"(sha256 {file.sha256}) into {fetch.folder}, or set LLMROUTER_MODELS to a folder that has it.",
        code="model_unavailable",
    )


def _is_cached(fetch: Fetch, target: Path, tried: list[str]) -> bool:
    """Whether the file lies in the cache folder; what lies there and is not the pinned file is removed."""
    file = fetch.file
    try:
        with target.open("rb") as found:
            fetch.report(f"checking {file.name}", 0)
            size = target.stat().st_size
            digest = hashlib.file_digest(found, "sha256").hexdigest() if size == file.size_bytes else ""
    except FileNotFoundError:
        tried.append(f"{target}: not there")
        return False
    if digest == file.sha256:
        return True
    target.unlink()
    fault = f"sha256 was {digest}, not {file.sha256}" if digest else f"{size} bytes instead of {file.size_bytes}"
    _LOG.warning("%s: refused and removed, %s", target, fault)
    tried.append(f"{target}: refused and removed, {fault}")
    return False


@contextmanager
def _locked(fetch: Fetch) -> Iterator[None]:
    """Hold the file's lock over threads and processes; the kernel drops it with its holder."""
    with (fetch.folder / f".{fetch.file.file_name}.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                fetch.report(f"waiting for another process that fetches {fetch.file.name}", 0)
                fetch.cancel.wait(_LOCK_POLL_S)
        yield


def _own_file(given: str, catalogue: Mapping[str, ModelFile]) -> Path:
    path = Path(given).expanduser()
    if not path.is_file():
        close = difflib.get_close_matches(given, list(catalogue), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known names: {', '.join(catalogue)}"
        raise ConfigError(f"model {given!r} is neither a file nor a known name; {hint}")
    with path.open("rb") as file:
        if file.read(4) != _GGUF_MAGIC:
            raise ConfigError(f"model {given!r} is not a GGUF file")
    return path.resolve()


def _silent(_what: str, _done: int, _total: int) -> None:
    pass
