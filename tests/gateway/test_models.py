"""`/v1/models`, and which tiers a key may know and use."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmrouter.testing import FakeBackend
from tests.gateway.rig import sdk
from tests.support import model, pool, running, tier


def three_tiers(engine: FakeBackend) -> str:
    tiers = tier("auto", small="s") + tier("premium", small="s") + tier('"team/a"', small="s")
    return model("s") + pool("s", [engine.url]) + tiers


async def test_the_list_holds_the_tiers_that_the_key_may_use(tmp_path: Path):
    async with FakeBackend() as engine, running(three_tiers(engine), tmp_path) as gateway:
        everything = (await gateway.http.get("/v1/models")).json()
        limited = await gateway.new_key(tiers=["team/a", "auto"])
        some = (await gateway.http.get("/v1/models", headers={"authorization": f"Bearer {limited}"})).json()
        nothing = await gateway.new_key(tiers=[])
        none = (await gateway.http.get("/v1/models", headers={"authorization": f"Bearer {nothing}"})).json()
    assert everything["object"] == "list"
    assert [entry["id"] for entry in everything["data"]] == ["auto", "premium", "team/a"]
    for entry in everything["data"]:
        assert entry.keys() == {"id", "object", "created", "owned_by"}
        assert (entry["object"], type(entry["created"]), entry["owned_by"]) == ("model", int, "llmrouter")
    assert [entry["id"] for entry in some["data"]] == ["auto", "team/a"]
    assert none == {"object": "list", "data": []}


@pytest.mark.parametrize("path", ["team/a", "team%2Fa"])
async def test_a_name_with_a_slash_is_found_in_both_spellings(tmp_path, path):
    async with FakeBackend() as engine, running(three_tiers(engine), tmp_path) as gateway:
        answer = await gateway.http.get(f"/v1/models/{path}")
    assert (answer.status_code, answer.json()["id"]) == (200, "team/a")


async def test_the_sdk_lists_and_retrieves(tmp_path):
    async with (
        FakeBackend() as engine,
        running(three_tiers(engine), tmp_path) as gateway,
        sdk(gateway) as client,
    ):
        assert [entry.id async for entry in client.models.list()] == ["auto", "premium", "team/a"]
        assert (await client.models.retrieve("team/a")).id == "team/a"


async def test_a_tier_that_a_key_may_not_use_is_as_unknown_as_one_that_does_not_exist(tmp_path):
    async with FakeBackend() as engine, running(three_tiers(engine), tmp_path) as gateway:
        headers = {"authorization": f"Bearer {await gateway.new_key(tiers=['auto'])}"}
        hidden = await gateway.http.get("/v1/models/premium", headers=headers)
        absent = await gateway.http.get("/v1/models/nothing", headers=headers)
    for answer in (hidden, absent):
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        assert answer.json()["error"]["param"] == "model"
    assert hidden.json()["error"]["message"].replace("premium", "nothing") == absent.json()["error"]["message"]


async def test_asking_a_tier_without_the_right_to_is_a_403_and_an_unknown_one_a_404(tmp_path):
    async with FakeBackend() as engine, running(three_tiers(engine), tmp_path) as gateway:
        headers = {"authorization": f"Bearer {await gateway.new_key(tiers=['auto'])}"}
        forbidden = await gateway.chat(tier="premium", headers=headers)
        unknown = await gateway.chat(tier="gpt-4o", headers=headers)
        allowed = await gateway.chat(tier="auto", headers=headers)
        assert len(engine.calls) == 1
    assert (forbidden.status_code, forbidden.json()["error"]["code"]) == (403, "model_not_allowed")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert "auto" in unknown.json()["error"]["message"]
    assert "premium" not in unknown.json()["error"]["message"]
    assert allowed.status_code == 200


async def test_only_get_exists(tmp_path):
    async with FakeBackend() as engine, running(three_tiers(engine), tmp_path) as gateway:
        for method in ("POST", "DELETE", "PUT"):
            for path in ("/v1/models", "/v1/models/auto"):
                assert (await gateway.http.request(method, path)).status_code == 404
