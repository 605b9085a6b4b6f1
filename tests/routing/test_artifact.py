"""An artefact is read as it was written, or refused with the name of what is wrong; nothing in it is ever executed."""

import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from llmrouter.errors import ArtefactError, UsageError
from llmrouter.routing.artifact import Artefact, load_artefact, pack_artefact, read_artefact, write_artefact

MANIFEST = {
    "created_at": "2026-12-01T00:00:00Z",
    "llmrouter_version": "0",
    "seed": 0,
    "generic": False,
    "policy": "route",
    "roles": {"small": ["s"], "large": ["l"]},
    "costs": {"small": 1, "large": 10},
    "data": {"digest": "d"},
    "heads": {},
    "calibration": {},
    "policy_parameters": {"points": [{}], "chosen": 0, "certified": None},
    "guarantee": None,
    "metrics": {},
}
ARRAYS = {"weights": np.arange(6, dtype=np.float32).reshape(2, 3), "trees": np.array([1, 2], dtype=np.int32)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_artefact(tmp_path / "router", MANIFEST, ARRAYS)
    return tmp_path / "router"


def refused(folder: Path, match: str) -> None:
    with pytest.raises(ArtefactError, match=match):
        load_artefact(folder)


def rewrite(folder: Path, **changes) -> None:
    """Change the manifest as somebody would who knows how it is signed."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    arrays = {name: np.load(folder / f"{name}.npy") for name in manifest["arrays"]}
    for each in folder.iterdir():
        each.unlink()
    folder.rmdir()
    write_artefact(folder, manifest | changes, arrays)


def test_what_is_read_is_what_was_written(folder):
    read = load_artefact(folder)
    assert read.manifest["roles"] == MANIFEST["roles"]
    assert {name: array.tolist() for name, array in read.arrays.items()} == {n: a.tolist() for n, a in ARRAYS.items()}
    assert not read.arrays["weights"].flags.writeable


def test_packing_is_the_same_bytes_every_time_and_keeps_the_digest(folder):
    read = load_artefact(folder)
    packed = pack_artefact(read)
    assert pack_artefact(read) == packed
    again = read_artefact(packed)
    assert again.digest == read.digest
    assert again.manifest == read.manifest


def test_the_digest_names_the_content(tmp_path):
    one = write_artefact(tmp_path / "one", MANIFEST, ARRAYS)
    same = write_artefact(tmp_path / "same", MANIFEST, ARRAYS)
    other = write_artefact(tmp_path / "other", MANIFEST, {**ARRAYS, "trees": np.array([1, 3], dtype=np.int32)})
    assert one.digest == same.digest != other.digest


@pytest.mark.parametrize("name", ["weights.npy", "trees.npy", "manifest.json"])
def test_one_flipped_bit_is_noticed(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[-3] ^= 1
    (folder / name).write_bytes(bytes(content))
    refused(folder, name.replace(".", r"\."))


def test_a_threshold_changed_by_hand_is_noticed(folder):
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["policy_parameters"]["chosen"] = 1
    (folder / "manifest.json").write_text(json.dumps(manifest))
    refused(folder, "has been changed since it was written")


@pytest.mark.parametrize("name", ["format", "feature_version", "normaliser_version"])
def test_another_version_must_be_trained_again(folder, name):
    manifest = json.loads((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_text(json.dumps(manifest | {name: 999}))
    refused(folder, f"{name} is 999, this llmrouter reads .*train the artefact again")


def test_missing_and_extra_files_are_named(folder):
    (folder / "more.npy").write_bytes(b"")
    refused(folder, "more.npy.* is not in the manifest")
    (folder / "more.npy").unlink()
    (folder / "trees.npy").unlink()
    refused(folder, "trees.npy is missing")
    (folder / "manifest.json").unlink()
    refused(folder, "has no manifest.json")
    refused(folder / "nowhere", "no such folder")


def test_links_are_not_followed(folder, tmp_path):
    outside = tmp_path / "outside.npy"
    (folder / "trees.npy").rename(outside)
    (folder / "trees.npy").symlink_to(outside)
    refused(folder, "trees.npy.* is not a plain file")


def test_a_pickle_is_never_loaded(folder):
    """Its hash may even be the right one."""

    class Bomb:
        def __reduce__(self):
            return (Path.write_text, (folder / "exploded", "boom"))

    raw = io.BytesIO()
    np.lib.format.write_array(raw, np.array([Bomb()], dtype=object), allow_pickle=True)
    for content in (raw.getvalue(), pickle.dumps(Bomb())):
        pretend(folder, "trees", content, dtype="object")
        refused(folder, r"trees\.npy: (holds object|is no array)")
    assert not (folder / "exploded").exists()


def pretend(folder: Path, name: str, content: bytes, **entry) -> None:
    """Put other bytes in an array's place and let the manifest's hashes be right."""
    import hashlib

    from llmrouter.routing.artifact import _digest

    (folder / f"{name}.npy").write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["arrays"][name] |= {"sha256": hashlib.sha256(content).hexdigest(), **entry}
    manifest["sha256"] = _digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def npy(array) -> bytes:
    raw = io.BytesIO()
    np.lib.format.write_array(raw, array, version=(1, 0), allow_pickle=False)
    return raw.getvalue()


def test_arrays_that_are_not_what_the_manifest_says_are_refused(folder):
    pretend(folder, "trees", npy(np.array([1, 2, 3], dtype=np.int32)))
    refused(folder, "the manifest says otherwise")
    pretend(folder, "trees", npy(np.array([1, 2], dtype=np.int32))[:-4])
    refused(folder, "bytes of numbers")
    pretend(folder, "trees", b"\x93NUMPY\x01\x00\xff\xff" + b" " * 20)
    refused(folder, "is no array")
    pretend(folder, "trees", npy(np.array([1.0, np.nan])), dtype="float64")
    refused(folder, "not finite")


def test_a_shape_that_promises_more_than_there_is_costs_no_memory(folder):
    huge = npy(np.zeros(2, dtype=np.int32)).replace(b"(2,)", b"(9,)")
    pretend(folder, "trees", huge, shape=[9])
    refused(folder, "bytes of numbers")


@pytest.mark.parametrize("cut", [10, 200, -30])
def test_a_torn_archive_is_damaged(folder, cut):
    with pytest.raises(ArtefactError, match="damaged"):
        read_artefact(pack_artefact(load_artefact(folder))[:cut])


def test_an_archive_that_would_grow_is_refused(folder):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", "0" * 100_000)
    with pytest.raises(ArtefactError, match="is compressed"):
        read_artefact(packed.getvalue())


@pytest.mark.parametrize("name", ["../evil.npy", "/etc/evil.npy", "deep/evil.npy"])
def test_odd_names_in_an_archive_are_refused(folder, name):
    packed = io.BytesIO(pack_artefact(load_artefact(folder)))
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr(name, b"x")
    with pytest.raises(ArtefactError, match="is not in the manifest"):
        read_artefact(packed.getvalue())


def test_writing_replaces_an_artefact_and_nothing_else(folder, tmp_path):
    rewrite(folder, seed=1)
    again: Artefact = write_artefact(folder, MANIFEST, ARRAYS)
    assert load_artefact(folder).digest == again.digest
    other = tmp_path / "documents"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="is no artefact"):
        write_artefact(other, MANIFEST, ARRAYS)
    assert (other / "thesis.txt").read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["documents", "router"]
