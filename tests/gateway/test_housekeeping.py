"""A gateway drops what is too old by itself."""

from __future__ import annotations

import asyncio
from contextlib import closing
from datetime import UTC, datetime, timedelta

from llmrouter.config import parse
from llmrouter.database import migrate, open_database, reading
from llmrouter.gateway.housekeeping import keep_house
from llmrouter.ledger.append import append
from tests.gateway.rig import until
from tests.ledger.books import entry
from tests.support import model, pool, tier

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


def booked(path) -> list[str]:
    with reading(path) as connection:
        return [request_id for (request_id,) in connection.execute("SELECT request_id FROM ledger ORDER BY id")]


async def test_entries_older_than_the_days_to_keep_go_round_after_round(tmp_path):
    path = tmp_path / "books.db"
    migrate(path)
    text = model("s") + pool("s", ["http://127.0.0.1:1"]) + tier("auto", small="s")
    config = parse(f'[store]\nurl = "sqlite:///{path}"\n[ledger]\nkeep_days = 30\n{text}', environ={})
    ages = {"old": 31, "kept": 30, "new": 0}
    with closing(open_database(path)) as connection:
        append(connection, [entry(name, ts=NOW - timedelta(days=age)) for name, age in ages.items()])
    clock = [NOW]
    tidying = asyncio.create_task(keep_house(lambda: config, every_s=0.01, now=lambda: clock[0]))
    await until(lambda: booked(path) == ["kept", "new"])
    clock[0] += timedelta(days=1)
    await until(lambda: booked(path) == ["new"])
    tidying.cancel()


async def test_a_store_that_is_down_is_tried_again_in_the_next_round(tmp_path, caplog):
    path = tmp_path / "books.db"
    text = model("s") + pool("s", ["http://127.0.0.1:1"]) + tier("auto", small="s")
    config = parse(f'[store]\nurl = "sqlite:///{path}"\n[ledger]\nkeep_days = 30\n{text}', environ={})
    tidying = asyncio.create_task(keep_house(lambda: config, every_s=0.01, now=lambda: NOW))
    await until(lambda: caplog.text.count("stay until the next round: the store books.db cannot be opened") > 1)
    migrate(path)
    with closing(open_database(path)) as connection:
        append(connection, [entry("old", ts=NOW - timedelta(days=40))])
    await until(lambda: booked(path) == [])
    tidying.cancel()
