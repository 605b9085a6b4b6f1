"""The admin plane: rules, keys and reloads of a running gateway, and what its requests see of them."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmrouter.testing import Answer, FakeBackend, Held, Signal, fold_chunks, parse_sse
from tests.gateway.rig import PATIENT, Wire, one, two, until
from tests.support import Running, model, pool, running, tier

TO_LARGE = {"rule_id": "code-to-large", "match": {"tag": {"team": ["dev"]}}, "tier_role": "large"}


async def admin(gateway: Running, method: str, path: str, body: Any = None) -> httpx.Response:
    headers = {"authorization": f"Bearer {gateway.admin_key}"}
    return await gateway.http.request(method, f"/v1/admin/{path}", json=body, headers=headers)


def error(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    told: dict[str, Any] = answer.json()["error"]
    assert told.keys() == {"message", "type", "param", "code"}
    return told


async def publish(gateway: Running, *rules: dict[str, Any], base: int, **more: Any) -> httpx.Response:
    return await admin(gateway, "POST", "routing", {"base_version": base, "rules": list(rules), **more})


async def answered_by(gateway: Running, **fields: Any) -> tuple[str, str]:
    answer = await gateway.chat(**fields)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-llmrouter-model"], answer.headers["x-llmrouter-routing-version"]


async def test_published_rules_are_in_force_for_the_next_request_and_after_a_restart(tmp_path):
    async with FakeBackend() as small, FakeBackend() as large:
        text = two(small, large)
        async with running(text, tmp_path, with_admin=True, background=True) as gateway:
            assert await answered_by(gateway, metadata={"team": "dev"}) == ("s", "1")
            done = await publish(gateway, TO_LARGE, base=1, note="developers get the large one")
            assert (done.status_code, done.json()["version"], done.json()["warnings"]) == (200, 2, [])
            async with asyncio.timeout(5):
                while await answered_by(gateway, metadata={"team": "dev"}) != ("l", "2"):
                    await asyncio.sleep(0.02)
            assert await answered_by(gateway) == ("s", "2")
            entry = next(entry for entry in gateway.books() if entry.model_id == "l")
        async with running(text, tmp_path, with_admin=True) as gateway:
            assert await answered_by(gateway, metadata={"team": "dev"}) == ("l", "2")
            current = (await admin(gateway, "GET", "routing")).json()
    assert (entry.rule_id, entry.reason, entry.routing_version) == ("code-to-large", "rule:code-to-large", 2)
    assert (current["version"], current["base_version"], current["note"]) == (2, 1, "developers get the large one")
    assert [rule["rule_id"] for rule in current["rules"]] == ["code-to-large"]


async def test_publishing_is_compare_and_set(tmp_path):
    async with FakeBackend() as a, FakeBackend() as b, running(two(a, b), tmp_path, with_admin=True) as gateway:
        both = await asyncio.gather(*(publish(gateway, TO_LARGE, base=1) for _ in range(2)))
        lost = next(answer for answer in both if answer.status_code != 200)
        assert error(lost, 409)["code"] == "version_conflict"
        assert lost.headers["x-should-retry"] == "false"
        assert (await admin(gateway, "GET", "routing")).json()["version"] == 2


async def test_a_dry_run_checks_and_changes_nothing(tmp_path):
    async with FakeBackend() as a, FakeBackend() as b, running(two(a, b), tmp_path, with_admin=True) as gateway:
        shown = (await publish(gateway, TO_LARGE, base=1, dry_run=True)).json()
        assert (shown["dry_run"], shown["current_version"], shown["version"]) == (True, 1, 2)
        assert (await admin(gateway, "GET", "routing")).json()["version"] == 1
        error(await publish(gateway, {**TO_LARGE, "model_id": "l"}, base=1, dry_run=True), 400)
        error(await publish(gateway, TO_LARGE, base=7, dry_run=True), 409)


async def test_a_body_is_json_whatever_its_content_type_says(tmp_path):
    """`curl -d` without a header calls it a form."""
    async with FakeBackend() as a, FakeBackend() as b, running(two(a, b), tmp_path, with_admin=True) as gateway:
        answer = await gateway.http.post(
            "/v1/admin/routing",
            content=json.dumps({"base_version": 1, "rules": [TO_LARGE]}),
            headers={
                "authorization": f"Bearer {gateway.admin_key}",
                "content-type": "application/x-www-form-urlencoded",
            },
        )
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"rule_id": "r", "model_id": "nobody"}, "nobody"),
        ({"rule_id": "r", "tier_role": "large", "match": {"tenant": "stranger"}}, "stranger"),
        ({"rule_id": "r", "tier_role": "frontier"}, "frontier"),
        ({"rule_id": "r", "tier_role": "large", "match": {"colour": "red"}}, "colour"),
        ({"rule_id": "r", "tier_role": "large", "match": {"regex": "("}}, "regex"),
        ({"rule_id": "r", "tier_role": "large", "weight": 0}, "weight"),
        ({"rule_id": "r"}, "exactly one"),
        ({"rule_id": "r", "tier_role": "large", "extra": 1}, "extra"),
        ({"rule_id": "no spaces", "tier_role": "large"}, "rule_id"),
        ({"tier_role": "large"}, "rule_id"),
    ],
)
async def test_g046_rules_that_can_never_work_are_refused_with_the_place(tmp_path, rule, says):
    async with FakeBackend() as a, FakeBackend() as b, running(two(a, b), tmp_path, with_admin=True) as gateway:
        told = error(await publish(gateway, rule, base=1), 400)
        assert says in told["message"]
        assert (await admin(gateway, "GET", "routing")).json()["version"] == 1


async def test_history_and_rollback(tmp_path):
    async with FakeBackend() as a, FakeBackend() as b, running(two(a, b), tmp_path, with_admin=True) as gateway:
        await publish(gateway, TO_LARGE, base=1)
        done = (await admin(gateway, "POST", "routing/rollback", {"to": 1, "note": "too dear"})).json()
        assert (done["version"], done["rolled_back_to"], done["rules"]) == (3, 1, [])
        versions = (await admin(gateway, "GET", "routing/versions")).json()["versions"]
        assert [version["version"] for version in versions] == [3, 2, 1]
        assert versions[0]["author"] == gateway.admin_key.split("-")[1]
        assert (await admin(gateway, "GET", "routing/versions?limit=1")).json()["versions"] == versions[:1]
        await gateway.assembly.follow_store()
        assert await answered_by(gateway, metadata={"team": "dev"}) == ("s", "3")
        error(await admin(gateway, "POST", "routing/rollback", {"to": 9}), 404)
        stale = {"to": 2, "base_version": 1}
        assert error(await admin(gateway, "POST", "routing/rollback", stale), 409)["code"] == "version_conflict"


async def test_g046_explain_says_what_serving_would_do(tmp_path):
    async with FakeBackend() as a, FakeBackend() as b, running(two(a, b), tmp_path, with_admin=True) as gateway:
        await publish(gateway, TO_LARGE, base=1)
        await gateway.assembly.follow_store()
        request = {"model": "auto", "messages": [{"role": "user", "content": "Hi"}], "metadata": {"team": "dev"}}
        told = (await admin(gateway, "POST", "routing/explain", {"request": request})).json()
        model_id, _ = await answered_by(gateway, metadata={"team": "dev"})
        assert (told["model_id"], told["rule_id"]) == (model_id, "code-to-large")
        small = (await admin(gateway, "POST", "routing/explain", {"request": {**request, "metadata": {}}})).json()
        assert [link["model_id"] for link in small["chain"]] == ["s", "l"]
        limited = await gateway.new_key(tiers=["other"])
        asked = {"request": request, "key_id": limited.split("-")[1]}
        assert (await admin(gateway, "POST", "routing/explain", asked)).json()["allowed"] is False
        assert error(await admin(gateway, "POST", "routing/explain", {"request": {"model": "auto"}}), 400)["param"]
        error(await admin(gateway, "POST", "routing/explain", {"request": request, "key_id": "nobody"}), 400)
        assert len(a.calls) + len(b.calls) == 1


async def test_a_key_is_made_with_limits_classes_and_the_user_it_stands_for(tmp_path):
    policy = {
        "limits": {"requests_per_minute": 1, "usd_per_day": "5"},
        "classes": ["batch", "standard"],
        "latency_class": "batch",
        "user_id": "bob",
    }
    async with FakeBackend() as engine, running(one(engine), tmp_path, with_admin=True) as gateway:
        made = (await admin(gateway, "POST", "keys", {"tenant_id": "default", **policy})).json()
        assert made == made | {**policy, "classes": ["standard", "batch"]}
        await gateway.assembly.follow_store()
        theirs = {"authorization": f"Bearer {made['key']}"}
        asked = await gateway.chat(headers={**theirs, "x-llmrouter-class": "interactive"})
        assert error(asked, 403)["code"] == "latency_class_not_allowed"
        assert (await gateway.chat(headers=theirs)).status_code == 200
        refused = await gateway.chat(headers=theirs)
        assert refused.status_code == 429
        assert f"requests_per_minute of key {made['key_id']}" in refused.json()["error"]["message"]
        (entry,) = gateway.books()
        assert (entry.latency_class, entry.user_id) == ("batch", "bob")
        refused_policies: list[dict[str, Any]] = [
            {"limits": {"usd_day": 5}},
            {"classes": ["rush"]},
            {"classes": []},
            {"user_id": "a\n"},
        ]
        for wrong in refused_policies:
            assert (await admin(gateway, "POST", "keys", {"tenant_id": "default", **wrong})).status_code == 400


async def test_keys_are_made_shown_once_listed_without_their_text_and_revoked(tmp_path):
    async with FakeBackend() as engine, running(one(engine), tmp_path, with_admin=True) as gateway:
        made = (await admin(gateway, "POST", "keys", {"tenant_id": "default", "tiers": ["auto"], "note": "ci"})).json()
        await gateway.assembly.follow_store()
        headers = {"authorization": f"Bearer {made['key']}"}
        assert (await gateway.chat(headers=headers)).status_code == 200
        listed = await admin(gateway, "GET", "keys")
        shown = next(info for info in listed.json()["keys"] if info["key_id"] == made["key_id"])
        assert (shown["note"], shown["tiers"], shown["admin"]) == ("ci", ["auto"], False)
        assert made["key"] not in listed.text
        gone = await admin(gateway, "DELETE", f"keys/{made['key_id']}")
        assert gone.json()["revoked_at"] is not None
        await gateway.assembly.follow_store()
        assert (await gateway.chat(headers=headers)).status_code == 401
        assert error(await admin(gateway, "POST", "keys", {"tenant_id": "nobody"}), 400)["param"] == "tenant_id"
        assert (
            error(await admin(gateway, "POST", "keys", {"tenant_id": "default", "role": "x"}), 400)["param"] == "role"
        )


async def test_metrics_count_what_happened(tmp_path):
    async with FakeBackend() as engine, running(one(engine), tmp_path, with_admin=True) as gateway:
        await gateway.chat()
        await gateway.chat(tier="nobody")
        headers = {"authorization": f"Bearer {gateway.admin_key}"}
        page = (await gateway.http.get("/metrics", headers=headers)).text
    assert 'llmrouter_requests_total{model="s",status="200",tier="auto"} 1.0' in page
    assert 'llmrouter_refused_total{code="model_not_found",status="404"} 1.0' in page


async def test_every_error_of_the_admin_plane_has_our_shape(tmp_path):
    async with FakeBackend() as engine, running(one(engine), tmp_path, with_admin=True) as gateway:
        headers = {"authorization": f"Bearer {gateway.admin_key}", "content-type": "application/json"}
        for content in (b"", b"{", b"[]", b"null", b"\xff"):
            answer = await gateway.http.post("/v1/admin/routing", content=content, headers=headers)
            assert error(answer, 400)["type"] == "invalid_request_error"
        error(await admin(gateway, "GET", "routing/versions?limit=0"), 400)
        error(await admin(gateway, "GET", "nothing"), 404)
        error(await admin(gateway, "PUT", "routing"), 404)
        schema = (await admin(gateway, "GET", "openapi.json")).json()
    assert "/v1/admin/routing" in schema["paths"]


async def test_g048_a_reload_swaps_one_whole_snapshot_for_the_next(tmp_path):
    """A request under way keeps the one it began with."""
    gate = Signal()
    async with (
        FakeBackend(Held(gate, Answer("one two"), after=2)) as engine,
        running(one(engine), tmp_path, with_admin=True) as gateway,
        Wire(gateway) as before,
    ):
        await before.ask(stream=True)
        _, headers = await before.headers()
        assert headers["x-llmrouter-config-version"] == "1"
        (tmp_path / "llmrouter.toml").write_text(one(engine, more="[limits]\nmax_n = 2\n"))
        assert (await admin(gateway, "POST", "reload")).json() == {"config_version": 2}
        refused = await gateway.chat(n=3)
        assert error(refused, 400)["param"] == "n"
        accepted = await gateway.chat(n=2)
        assert accepted.headers["x-llmrouter-config-version"] == "2"
        gate.set()
        assert b"[DONE]" in await before.body()
        assert {entry.config_version for entry in gateway.books()} == {1, 2}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text + "[limits]\nmax_m = 2\n", "max_n"),
        (lambda text: text + "[", "TOML"),
        (lambda text: text.replace('small = "s"', 'small = "nobody"'), "nobody"),
        (lambda text: text + '[server]\nlisten = "127.0.0.1:1"\n', "server.listen"),
        (lambda text: text.replace('large = "l"\n', ""), "rules[0].tier_role"),
    ],
    ids=["unknown key", "not TOML", "unknown model", "needs a restart", "a rule loses its model"],
)
async def test_g048_a_bad_file_changes_nothing_and_the_answer_says_why(tmp_path, change, says):
    async with FakeBackend() as a, FakeBackend() as b, running(two(a, b), tmp_path, with_admin=True) as gateway:
        await publish(gateway, TO_LARGE, base=1)
        await gateway.assembly.follow_store()
        (tmp_path / "llmrouter.toml").write_text(change(two(a, b)))
        told = await admin(gateway, "POST", "reload")
        assert says in error(told, 400)["message"]
        assert await answered_by(gateway, metadata={"team": "dev"}) == ("l", "2")
        assert gateway.assembly.state.version == 1


async def test_g048_reloads_under_load_fail_no_request(tmp_path):
    async with FakeBackend() as a, FakeBackend() as b, running(two(a, b), tmp_path) as gateway:
        seen = set()

        async def ask(number: int) -> None:
            answer = await gateway.chat(stream=number % 2 == 0)
            assert answer.status_code == 200
            seen.add(int(answer.headers["x-llmrouter-config-version"]))

        for round_number in range(8):
            asked = [asyncio.create_task(ask(number)) for number in range(12)]
            await until(lambda: gateway.gateway.active > 0)
            (tmp_path / "llmrouter.toml").write_text(two(*((a, b) if round_number % 2 else (b, a))))
            gateway.reload()
            await asyncio.gather(*asked)
        assert {entry.status for entry in gateway.books(200)} == {200}
        assert len(gateway.books(200)) == 96
    assert seen >= {1, 8}


async def test_g120_a_replica_that_is_removed_finishes_its_streams_and_gets_no_new_request(tmp_path):
    gate = Signal()
    async with (
        FakeBackend(default=Held(gate, Answer("one two"), after=2)) as leaving,
        FakeBackend(default=Answer("stays")) as staying,
        running(one(leaving), tmp_path) as gateway,
        Wire(gateway) as first,
        Wire(gateway) as second,
    ):
        streams = (first, second)
        for stream in streams:
            await stream.ask(stream=True)
            await stream.until(b'"one"')
        for replicas in ((leaving, staying), (staying,)):
            (tmp_path / "llmrouter.toml").write_text(one(*replicas, pools=PATIENT))
            gateway.reload()
        for number in range(20):
            answer = await gateway.chat(f"prompt {number}")
            assert answer.json()["choices"][0]["message"]["content"] == "stays"
        gate.set()
        for stream in streams:
            assert b"[DONE]" in await stream.until(b"0\r\n\r\n")
        assert len(leaving.calls) == 2
        await leaving.until(lambda: leaving.connections == 0)
        assert {entry.status for entry in gateway.books()} == {200}


async def test_g120_a_model_that_is_removed_finishes_its_streams_too(tmp_path: Path):
    gate = Signal()
    async with FakeBackend(Held(gate, Answer("one two"), after=2)) as old, FakeBackend(Answer("new")) as new:
        text = model("old") + pool("old", [old.url]) + tier("auto", small="old")
        async with running(text, tmp_path) as gateway, Wire(gateway) as stream:
            await stream.ask(stream=True)
            await stream.headers()
            (tmp_path / "llmrouter.toml").write_text(model("new") + pool("new", [new.url]) + tier("auto", small="new"))
            gateway.reload()
            assert (await gateway.chat()).json()["choices"][0]["message"]["content"] == "new"
            gate.set()
            events = parse_sse(await stream.body())
            assert fold_chunks(events)["choices"][0]["message"]["content"] == "one two"
            assert {entry.model_id for entry in gateway.books()} == {"old", "new"}


async def test_readiness_follows_the_replicas(tmp_path):
    async with FakeBackend() as engine, running(one(engine, pools="breaker.failures = 1\n"), tmp_path) as gateway:
        assert (await gateway.http.get("/ready")).status_code == 200
        await engine.stop()
        assert (await gateway.chat()).status_code == 502
        unready = await gateway.http.get("/ready")
        assert (unready.status_code, unready.json()["status"]) == (503, "unavailable")
        assert "auto" in unready.json()["reason"]
        assert (await gateway.http.get("/live")).status_code == 200
        await engine.start()


def test_every_route_is_on_the_page_of_the_api():
    page = Path("docs/api.md").read_text(encoding="utf-8")
    sources = [Path("llmrouter/gateway") / name for name in ("app.py", "usage_route.py")]
    routes = re.findall(r'@app\.\w+\("([^"]+)"', "".join(path.read_text(encoding="utf-8") for path in sources))
    assert len(routes) > 10
    assert [route for route in routes if route not in page] == []
