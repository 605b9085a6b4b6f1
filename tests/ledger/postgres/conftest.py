"""A migrated database on a real server, and a migrated file beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmrouter.ledger.postgres.delivery import Delivery
from llmrouter.ledger.postgres.spool import Spool
from llmrouter.postgres import Postgres, migrate_postgres
from tests.ledger.postgres.server import BOOKED, fill, new_file


@pytest.fixture
def server(postgres_url: str) -> Iterator[Postgres]:
    database = Postgres(postgres_url)
    migrate_postgres(database)
    yield database
    database.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return new_file(tmp_path / "llmrouter.db")


@pytest.fixture(params=[0, 1, 2, 6], ids=lambda batches: f"{batches} batches shipped")
def both_ways(request: pytest.FixtureRequest, server: Postgres, path: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A spool of which so much is shipped, and a file with the same entries that is not."""
    alone = new_file(tmp_path / "alone.db")
    fill(alone, BOOKED)
    fill(path, BOOKED)
    delivery = Delivery(Spool(path), server, most=2)
    for _ in range(request.param):
        delivery.ship_once()
    delivery.close()
    return alone, path
