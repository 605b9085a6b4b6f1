"""Where labels come from: files, folders, data sets on disk and stores, read object by object with their places.

A place is named as people find it, such as `line 12` of a file or `item q-17` of a store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmrouter.errors import UsageError
from llmrouter.quality.encryption import CannotOpen
from llmrouter.quality.label_files import read_objects
from llmrouter.quality.label_store import LabelFilter, rows_of
from llmrouter.quality.labels import Faulty
from llmrouter.quality.sample_store import read_sample

__all__ = ["objects_in", "source_name"]

_STORE = "ledger:"
_ROWS_AT_ONCE = 200
_STORE_MAGIC = b"SQLite format 3\0"
_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
_STORE_SUFFIXES = (".db", ".sqlite", ".sqlite3")

Objects = Iterator[tuple[str, Any | Faulty]]


def objects_in(given: Path) -> Objects:
    """The objects of one argument.

    `ledger:PATH`, or a store's file, gives the labels of a store, the latest of each model, with the prompts of
    samples where labels have none and the samples are not sealed. A folder that `datasets` has saved is read row by
    row; any other folder stands for the label files in it, by name.

    Raises:
        UsageError: it cannot be read.
    """
    text = str(given)
    if text.startswith(_STORE):
        return _in_store(Path(text.removeprefix(_STORE)))
    if given.is_dir():
        if any((given / name).exists() for name in ("dataset_dict.json", "state.json")):
            return _in_data_set(given)
        return _in_folder(given)
    if given.suffix == ".parquet":
        return _in_parquet(given)
    return _in_store(given) if _is_store(given) else read_objects(given)


def source_name(given: Path) -> str:
    """What stands for the source of rows that do not name one."""
    name = Path(str(given).removeprefix(_STORE)).name
    for suffix in (*_SUFFIXES, *_STORE_SUFFIXES):
        name = name.removesuffix(suffix)
    return name or "labels"


def _is_store(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(len(_STORE_MAGIC)) == _STORE_MAGIC
    except OSError:
        return False  # reading it says why


def _in_folder(folder: Path) -> Objects:
    files = sorted(each for each in folder.iterdir() if each.is_file() and each.name.endswith(_SUFFIXES))
    if not files:
        raise UsageError(f"{folder}: holds no labels: no {', '.join(_SUFFIXES)} file and no saved data set")
    for file in files:
        name = source_name(file)
        for at, given in objects_in(file):
            yield f"{file.name}: {at}", _with_source(given, name)


def _with_source(given: Any, name: str) -> Any:
    return {"source": name, **given} if isinstance(given, Mapping) and given.get("source") is None else given


def _in_store(path: Path) -> Objects:
    if not path.exists():
        raise UsageError(f"{path}: no such store")
    if not _is_store(path):
        raise UsageError(f"{path}: is no store of llmrouter")

    def content_of(item_id: str) -> Mapping[str, Any] | None:
        try:
            sample = read_sample(path, item_id, None)
        except CannotOpen:
            return None
        return None if sample is None else sample.content()

    for row in rows_of(path, LabelFilter(), content_of=content_of):
        yield f"item {row['id']}", row


def _in_parquet(file: Path) -> Objects:
    """With Arrow, which comes with the extra `train`, or as the store reads such files, which needs DuckDB."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        yield from read_objects(file)
        return
    if not file.exists():
        raise UsageError(f"{file}: no such file")
    number = 0
    try:
        with parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches(batch_size=_ROWS_AT_ONCE):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", _said(row)
    except (ArrowException, OSError) as error:
        raise UsageError(f"{file}: cannot be read after row {number}: {str(error).splitlines()[0]}") from error


def _in_data_set(folder: Path) -> Objects:
    try:
        import datasets
    except ImportError as error:
        raise UsageError(
            f"{folder}: reading a saved data set needs datasets: pip install 'llmrouter[train]'"
        ) from error
    try:
        loaded = datasets.load_from_disk(str(folder))
    except Exception as error:  # whatever the package raises, the folder cannot be read
        raise UsageError(f"{folder}: cannot be read as a data set: {str(error).splitlines()[0]}") from error
    parts = loaded.items() if isinstance(loaded, Mapping) else [(None, loaded)]
    for split, rows in parts:
        for number, row in enumerate(rows, 1):
            at = f"row {number}" if split is None else f"{split}: row {number}"
            said = _said(row)
            yield at, {"split": split, **said} if split is not None else said


def _said(given: Any) -> Any:
    """A row without what it does not say: in a table every row has every key."""
    if isinstance(given, Mapping):
        return {str(name): _said(each) for name, each in given.items() if each is not None}
    if isinstance(given, list | tuple):
        return [_said(each) for each in given]
    return given
