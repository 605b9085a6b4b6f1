"""What was learned, as files without code: `manifest.json` and one `.npy` a named array, in a folder or in one archive.

The manifest lists every array with its SHA-256, type and shape, and holds the SHA-256 of itself written canonically
without that key. This is the artefact's digest: it names the whole content. Nothing here is ever executed: pickled
arrays are refused before they are read.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from llmrouter.errors import ArtefactError, UsageError
from llmrouter.routing.features import FEATURE_VERSION
from llmrouter.routing.normalise import NORMALISER_VERSION

__all__ = [
    "FORMAT",
    "Artefact",
    "check_folder",
    "generic_artefact",
    "load_artefact",
    "pack_artefact",
    "read_artefact",
    "write_artefact",
]

FORMAT = 1
MAX_BYTES = 64 * 1024 * 1024
_MANIFEST = "manifest.json"
_MOST_MANIFEST_BYTES = 4 * 1024 * 1024
_TYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
_NEEDED = (
    "roles",
    "costs",
    "data",
    "heads",
    "calibration",
    "policy_parameters",
    "metrics",
    "arrays",
    "generic",
    "policy",
)
_VERSIONS = {"format": FORMAT, "feature_version": FEATURE_VERSION, "normaliser_version": NORMALISER_VERSION}
_NAME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Artefact:
    """A verified artefact; its arrays are read-only."""

    manifest: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    digest: str
    """In hex."""


def load_artefact(folder: Path) -> Artefact:
    """Read and verify a folder.

    Raises:
        ArtefactError: what is wrong with which file, and what to do.
    """
    where = str(folder)
    if not folder.is_dir():
        raise ArtefactError(f"{where}: no such folder; `llmrouter train-router … --out {folder.name}` writes one")
    found: dict[str, bytes] = {}
    total = 0
    try:
        for entry in sorted(folder.iterdir()):
            if entry.is_symlink() or not entry.is_file():
                raise ArtefactError(f"{where}: {entry.name!r} is not a plain file; an artefact holds nothing else")
            total += entry.stat().st_size
            if total > MAX_BYTES:
                raise ArtefactError(f"{where}: larger than {MAX_BYTES} bytes")
            found[entry.name] = entry.read_bytes()
    except OSError as error:
        raise ArtefactError(f"{where}: cannot be read: {error.strerror or error}") from error
    return _verified(found, where)


def read_artefact(content: bytes) -> Artefact:
    """Read and verify what `pack_artefact` made.

    Raises:
        ArtefactError: what is wrong, and with which part.
    """
    where = "packed artefact"
    if len(content) > MAX_BYTES:
        raise ArtefactError(f"{where}: larger than {MAX_BYTES} bytes")
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for entry in archive.infolist():
                # Stored as it is, so no entry can grow when it is read.
                if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > len(content):
                    raise ArtefactError(f"{where}: {entry.filename!r} is compressed; it was not packed by llmrouter")
                if entry.filename in found:
                    raise ArtefactError(f"{where}: {entry.filename!r} is there twice")
                found[entry.filename] = archive.read(entry)
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        raise ArtefactError(f"{where}: damaged: {error}") from error
    return _verified(found, where)


def pack_artefact(artefact: Artefact) -> bytes:
    """One archive, the same bytes for the same artefact on every machine."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, content in _contents(artefact.manifest, artefact.arrays).items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    return packed.getvalue()


def check_folder(folder: Path) -> None:
    """Raises `UsageError` where `write_artefact` would, as far as that can be told without writing."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / _MANIFEST).is_file())):
        raise UsageError(f"{folder}: is there already and is no artefact; name another folder with --out")
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(f"{folder}: cannot be written, since {above} is no folder that may be written to")


def write_artefact(folder: Path, manifest: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Artefact:
    """Write a folder, whole or not at all; one that is there is replaced, if it is an artefact.

    `arrays` in the manifest is written anew from the arrays.

    Raises:
        UsageError: it cannot be written, or the folder holds something else.
    """
    entries = {name: _entry(array) for name, array in sorted(arrays.items())}
    complete = {**manifest, **_VERSIONS, "arrays": entries}
    contents = _contents({**complete, "sha256": _digest(complete)}, arrays)
    artefact = _verified(contents, str(folder))
    check_folder(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            for name, content in contents.items():
                (part / name).write_bytes(content)
            part.chmod(0o755)
            if folder.exists():
                old = part.with_name(part.name + ".old")
                folder.rename(old)
                part.rename(folder)
                shutil.rmtree(old, ignore_errors=True)
            else:
                part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return artefact


def generic_artefact() -> Artefact:
    """The artefact in the package: trained on public questions, bound to roles, without any promise."""
    return load_artefact(Path(os.fspath(str(files("llmrouter.routing") / "generic"))))


def _contents(manifest: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> dict[str, bytes]:
    return {_MANIFEST: _canonical(manifest), **{f"{name}.npy": _npy(arrays[name]) for name in sorted(arrays)}}


def _canonical(manifest: Mapping[str, Any]) -> bytes:
    return orjson.dumps(dict(manifest), option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical({name: each for name, each in manifest.items() if name != "sha256"})).hexdigest()


def _npy(array: NDArray[Any]) -> bytes:
    written = io.BytesIO()
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    np.lib.format.write_array(written, little, version=(1, 0), allow_pickle=False)
    return written.getvalue()


def _entry(array: NDArray[Any]) -> dict[str, Any]:
    digest = hashlib.sha256(_npy(array)).hexdigest()
    return {"sha256": digest, "dtype": array.dtype.name, "shape": list(array.shape)}


def _verified(found: Mapping[str, bytes], where: str) -> Artefact:
    raw = found.get(_MANIFEST)
    if raw is None:
        raise ArtefactError(f"{where}: has no {_MANIFEST}; it is no artefact, or an incomplete one")
    manifest = _manifest(raw, where)
    listed = manifest["arrays"]
    files_listed = {f"{name}.npy" for name in listed}
    for name in sorted(files_listed - found.keys()):
        raise ArtefactError(f"{where}: {name} is missing; copy the whole folder")
    for name in sorted(found.keys() - files_listed - {_MANIFEST}):
        raise ArtefactError(f"{where}: {name!r} is not in the manifest; an artefact holds nothing else")
    arrays = {name: _array(found[f"{name}.npy"], listed[name], f"{where}: {name}.npy") for name in sorted(listed)}
    return Artefact(manifest, arrays, manifest["sha256"])


def _manifest(raw: bytes, where: str) -> dict[str, Any]:
    at = f"{where}: {_MANIFEST}"
    if len(raw) > _MOST_MANIFEST_BYTES:
        raise ArtefactError(f"{at}: larger than {_MOST_MANIFEST_BYTES} bytes")
    try:
        manifest = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ArtefactError(f"{at}: not valid JSON: {error}") from error
    if not isinstance(manifest, dict):
        raise ArtefactError(f"{at}: must be an object")
    for name, known in _VERSIONS.items():
        if manifest.get(name) != known:
            raise ArtefactError(
                f"{at}: {name} is {manifest.get(name)!r}, this llmrouter reads {known}; train the artefact again"
            )
    for name in _NEEDED:
        if name not in manifest:
            raise ArtefactError(f"{at}: has no {name!r}; train the artefact again")
    if manifest.get("sha256") != _digest(manifest):
        raise ArtefactError(f"{at}: has been changed since it was written (its SHA-256 differs); copy it again")
    arrays = manifest["arrays"]
    if not isinstance(arrays, dict) or not all(name and _NAME.issuperset(name) for name in arrays):
        raise ArtefactError(f"{at}: arrays must map names of lower-case letters, digits and _ to what they are")
    return manifest


def _array(raw: bytes, entry: Any, where: str) -> NDArray[Any]:
    """An array whose bytes are those that the manifest was written for."""
    said = entry if isinstance(entry, dict) else {}
    if hashlib.sha256(raw).hexdigest() != said.get("sha256"):
        raise ArtefactError(f"{where}: has been changed since it was written (its SHA-256 differs); copy it again")
    stream = io.BytesIO(raw)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("not written as .npy 1.0")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    except ValueError as error:
        raise ArtefactError(f"{where}: is no array: {error}") from error
    if dtype.hasobject or dtype.name not in _TYPES or fortran:
        raise ArtefactError(f"{where}: holds {dtype}; only plain numbers in C order are read")
    if dtype.name != said.get("dtype") or list(shape) != said.get("shape"):
        raise ArtefactError(f"{where}: is {dtype.name} {list(shape)}, the manifest says otherwise")
    body = raw[stream.tell() :]
    if len(body) != math.prod(shape) * dtype.itemsize:
        raise ArtefactError(f"{where}: has {len(body)} bytes of numbers, its shape says otherwise")
    array = np.frombuffer(body, dtype=dtype).reshape(shape)
    if dtype.kind == "f" and not np.isfinite(array).all():
        raise ArtefactError(f"{where}: holds a number that is not finite")
    return array
