"""DuckDB, with bounded memory and without the network: it reads and writes the Parquet files of the archive.

It is an extra; it is imported only by who has an archive or wants a Parquet file.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrouter.errors import StoreUnavailable, UsageError

if TYPE_CHECKING:
    import duckdb

__all__ = ["duck", "file_read", "literal"]

_THREADS = 2


@contextmanager
def duck(what: str, *, memory_mb: int = 512) -> Iterator[duckdb.DuckDBPyConnection]:
    """An engine for one block; what does not fit into `memory_mb` goes to a temporary folder.

    Args:
        what: what it works on, for the message of an error, e.g. `the archive llmrouter.db.archive`.

    Raises:
        UsageError: it is not installed.
        StoreUnavailable: it failed inside the block.
    """
    driver = _driver()
    with tempfile.TemporaryDirectory(prefix="llmrouter-duckdb-") as spill:
        try:
            with driver.connect(":memory:", config=_settings(memory_mb, spill)) as engine:
                yield engine
        except driver.Error as error:
            raise StoreUnavailable(f"{what} cannot be used: {_first_line(error)}") from error


def file_read(path: Path) -> str:
    """A path as SQL names a file to read; what would be a pattern there stands for itself."""
    return literal(re.sub(r"[*?\[]", lambda found: f"[{found[0]}]", str(path)))


def literal(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def _settings(memory_mb: int, spill: str) -> dict[str, Any]:
    return {
        "memory_limit": f"{memory_mb}MB",
        "temp_directory": spill,
        "threads": _THREADS,
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _driver() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise UsageError("Parquet files need DuckDB: pip install '.[reports]'") from error
    return duckdb
