"""Files of labels: read object by object with the place each one has, written whole or not at all.

JSONL, plain or gzipped, and Parquet, which needs DuckDB. However large a file is, a few objects are in memory.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import orjson

from llmrouter.errors import UsageError
from llmrouter.quality.labels import Faulty

__all__ = ["LONGEST_LINE", "read_objects", "write_objects"]

LONGEST_LINE = 4 * 1024 * 1024
"""Bytes; a longer line is refused."""
_PARQUET_ROWS = 200


def read_objects(file: Path) -> Iterator[tuple[str, Any | Faulty]]:
    """Each object with its place, such as `line 12`, or why there is none at that place. `-` is standard input.

    Raises:
        UsageError: the file cannot be read (any further), or DuckDB is needed and not installed.
    """
    if file.suffix == ".parquet":
        return _parquet(file)
    return _lines(file)


def write_objects(file: Path, objects: Iterable[Mapping[str, Any]]) -> int:
    """Write JSONL, gzipped where the name ends in `.gz`; returns how many. `-` is standard output.

    The file appears when it is complete, in place of one that was there.

    Raises:
        UsageError: it cannot be written.
    """
    if file.suffix == ".parquet":
        raise UsageError(f"{file}: labels are written as .jsonl or .jsonl.gz, not as Parquet")
    count = 0
    with _output(file) as out:
        for each in objects:
            out.write(orjson.dumps(dict(each), option=orjson.OPT_APPEND_NEWLINE))
            count += 1
    return count


def _lines(file: Path) -> Iterator[tuple[str, Any | Faulty]]:
    number = 0
    try:
        with _input(file) as lines:
            while line := lines.readline(LONGEST_LINE + 1):
                number += 1
                if len(line.removesuffix(b"\n")) > LONGEST_LINE:
                    while line and not line.endswith(b"\n"):
                        line = lines.readline(LONGEST_LINE)
                    yield f"line {number}", Faulty(f"is longer than {LONGEST_LINE} bytes")
                    continue
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if line.strip():
                    yield f"line {number}", _parsed(line)
    except FileNotFoundError:
        raise UsageError(f"{file}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{file}: cannot be read after line {number}: {why}") from error


def _parsed(line: bytes) -> Any | Faulty:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return Faulty(f"is not valid JSON: {error}")


@contextmanager
def _input(file: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    if str(file) == "-":
        yield sys.stdin.buffer
        return
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
        yield opened


@contextmanager
def _output(file: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    if str(file) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if not file.name:
        raise UsageError(f"{file}: cannot be written: it is a folder; name a file in it")
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        # Prompts are in it: readable by their owner only.
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as plain:
            if file.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=plain, mtime=0) as zipped:
                    yield zipped
            else:
                yield plain
        part.replace(file)
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _parquet(file: Path) -> Iterator[tuple[str, Any | Faulty]]:
    try:
        import duckdb
    except ImportError as error:
        raise UsageError(f"{file}: reading Parquet needs DuckDB: pip install '.[reports]'") from error
    if not file.exists():
        raise UsageError(f"{file}: no such file")
    number = 0
    try:
        with duckdb.connect(
            config={"threads": 1, "memory_limit": "512MB", "autoinstall_known_extensions": False}
        ) as db:
            found = db.execute("SELECT * FROM read_parquet(?)", [str(file)])
            names = [column[0] for column in found.description or ()]
            while rows := found.fetchmany(_PARQUET_ROWS):
                for row in rows:
                    number += 1
                    yield f"row {number}", _from_columns(dict(zip(names, row, strict=True)))
    except duckdb.Error as error:
        raise UsageError(f"{file}: cannot be read after row {number}: {str(error).splitlines()[0]}") from error


def _from_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as an object of JSON. A column has a value in every row, so NULL is what the row does not say."""
    return {name: _json_value(each) for name, each in row.items() if each is not None}


def _json_value(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {str(name): _json_value(each) for name, each in given.items() if each is not None}
    if isinstance(given, list | tuple):
        return [_json_value(each) for each in given]
    if isinstance(given, datetime):
        return given.isoformat()
    return float(given) if isinstance(given, Decimal) else given
