"""Reports over HTTP: the same engine as the command line, for admin keys only, while calls are served."""

from __future__ import annotations

import asyncio
import csv
import io
import threading
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request

from llmrouter.config import load
from llmrouter.errors import NoCapacity
from llmrouter.gateway.usage_route import add_usage
from llmrouter.ledger.archive import Archive
from llmrouter.ledger.duck import duck
from llmrouter.testing import FakeBackend
from llmrouter.types import Principal
from tests.cli.command import two_models
from tests.gateway.rig import two
from tests.ledger.books import entry
from tests.ledger.test_usage import fill
from tests.support import Running, running

THIS_MONTH = f"{datetime.now(UTC):%Y-%m}"


async def report(gateway: Running, path: str = "usage", **asked: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {gateway.admin_key}"}
    return await gateway.http.get(f"/v1/admin/{path}", params=asked, headers=headers)


def refused(answer: httpx.Response, says: str) -> None:
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert says in answer.json()["error"]["message"]


async def test_calls_are_in_the_report_as_soon_as_they_are_answered(tmp_path):
    async with FakeBackend() as a, FakeBackend() as b, running(two(a, b), tmp_path, with_admin=True) as gateway:
        for _ in range(3):
            assert (await gateway.chat()).status_code == 200
        (group,) = (await report(gateway, by="tenant,model")).json()["groups"]
        whole = (await report(gateway, "usage/invoice", tenant=group["tenant"], month=THIS_MONTH)).json()
        entries = gateway.books()
    assert (group["requests"], group["model"]) == (3, "s")
    assert group["input_tokens"] == sum(entry.usage.input_tokens for entry in entries)
    assert whole["adds_up"]
    assert whole["total"]["cost_usd"] == group["cost_usd"]


async def test_csv_and_parquet_say_what_json_says(tmp_path):
    async with FakeBackend() as a, FakeBackend() as b, running(two(a, b), tmp_path, with_admin=True) as gateway:
        await gateway.chat()
        asked: dict[str, Any] = {"by": ["model", "day"], "measure": "attempts"}
        (group,) = (await report(gateway, **asked)).json()["groups"]
        text = await report(gateway, **asked, format="csv")
        file = await report(gateway, **asked, format="parquet")
    assert text.headers["content-type"] == "text/csv; charset=utf-8"
    assert list(csv.DictReader(io.StringIO(text.text))) == [{name: str(number) for name, number in group.items()}]
    (tmp_path / "u.parquet").write_bytes(file.content)
    with duck("test") as engine:
        found = engine.execute("SELECT model, attempts FROM read_parquet(?)", [str(tmp_path / "u.parquet")])
        assert found.fetchall() == [("s", 1)]


async def test_only_admin_keys_may_ask(tmp_path):
    async with FakeBackend() as a, FakeBackend() as b, running(two(a, b), tmp_path, with_admin=True) as gateway:
        for path in ("usage", "usage/invoice?tenant=default&month=2026-11"):
            assert (await gateway.http.get(f"/v1/admin/{path}", headers={"authorization": ""})).status_code == 401
            headers = {"authorization": f"Bearer {gateway.key}"}
            assert (await gateway.http.get(f"/v1/admin/{path}", headers=headers)).status_code == 403


async def test_a_bad_question_is_the_callers_fault(tmp_path):
    async with FakeBackend() as a, FakeBackend() as b, running(two(a, b), tmp_path, with_admin=True) as gateway:
        refused(await report(gateway, by="colour"), "cannot group calls by 'colour'")
        refused(await report(gateway, since="monday"), "`since` 'monday' is not a day")
        refused(await report(gateway, format="xml"), "format")
        refused(await report(gateway, limit=0), "limit")
        refused(await report(gateway, "usage/invoice", tenant="default", month="2026"), "`month` '2026' is not a month")
        refused(await report(gateway, "usage/invoice", tenant="default"), "month")


def routes(tmp_path: Any, count: int, **settings: Any) -> httpx.AsyncClient:
    """The two routes by themselves, over entries of as many keys; errors come through."""
    fill(tmp_path / "llmrouter.db", [entry(f"r{at}", key_id=f"k{at}") for at in range(count)])
    config = load(two_models(tmp_path))
    app = FastAPI()

    def anybody(_: Request) -> Principal:
        return Principal("default", "k", admin=True)

    add_usage(app, lambda: config, anybody, **settings)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def test_more_groups_than_the_limit_are_an_error_that_says_what_to_do(tmp_path):
    async with routes(tmp_path, 5) as client:
        assert (await client.get("/v1/admin/usage", params={"by": "key", "limit": 5})).status_code == 200
        with pytest.raises(Exception, match="more than 4 groups; narrow it down by tenant or time"):
            await client.get("/v1/admin/usage", params={"by": "key", "limit": 4})


async def test_a_second_report_is_refused_while_one_is_made_and_the_loop_goes_on(tmp_path, monkeypatch):
    entered, leave = threading.Event(), threading.Event()
    archived = Archive.of

    def held(path: Any) -> Any:
        entered.set()
        assert leave.wait(5)
        return archived(path)

    monkeypatch.setattr(Archive, "of", held)
    async with routes(tmp_path, 1) as client:
        first = asyncio.create_task(client.get("/v1/admin/usage"))
        async with asyncio.timeout(5):
            while not entered.is_set():
                await asyncio.sleep(0.001)
        with pytest.raises(NoCapacity, match="another report is being made"):
            await client.get("/v1/admin/usage")
        leave.set()
        assert (await first).status_code == 200
        assert (await client.get("/v1/admin/usage")).status_code == 200
