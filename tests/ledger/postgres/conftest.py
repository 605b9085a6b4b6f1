"""A migrated database on a real server, and a migrated file beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrouter.postgres import Postgres, migrate_postgres
from tests.ledger.postgres.server import new_file


@pytest.fixture
def server(postgres_url: str) -> Iterator[Postgres]:
    database = Postgres(postgres_url)
    migrate_postgres(database)
    yield database
    database.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return new_file(tmp_path / "llmrouter.db")
