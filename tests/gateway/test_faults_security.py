"""Faults of authentication, the admin plane and header trust, over real sockets and with raw bytes."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from llmrouter.gateway.app import AdminContext, build_admin_app
from llmrouter.testing import FakeBackend
from tests.gateway.rig import Wire, one, two
from tests.support import Running, model, pool, running, tier

TENANTS = '[tenants.acme]\ndescription = "pays"\n[tenants.rival]\ndescription = "pays too"\n'
DATA_ROUTES = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/auto"),
]


class _Nowhere:
    """Stands for a context of which only the routes are looked at."""

    path = None
    store = None
    pepper = b""
    config = None


def admin_routes() -> list[tuple[str, str]]:
    """Every route of the admin app, as the app itself lists them."""
    app: FastAPI = build_admin_app(cast(AdminContext, _Nowhere()))
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    return [
        (method, route.path.replace("{key_id}", "0123456789ab")) for route in routes for method in route.methods or ()
    ]


ADMIN_ROUTES = admin_routes()


async def status(gateway: Running, raw: bytes) -> int:
    async with Wire(gateway) as client:
        client.writer.write(raw)
        return (await client.answer())[0]


def with_headers(method: str, path: str, *lines: bytes, body: bytes = b"{") -> bytes:
    """A request with exactly these header lines besides its length; its body is JSON that is not complete."""
    head = [b"%b %b HTTP/1.1" % (method.encode(), path.encode()), b"Content-Type: application/json", *lines]
    return b"\r\n".join([*head, b"Content-Length: %d" % len(body), b"", body])


def test_the_admin_plane_is_what_these_tests_think_it_is():
    assert len(ADMIN_ROUTES) >= 11
    assert {"/metrics", "/v1/admin/routing", "/v1/admin/keys"} <= {path for _, path in ADMIN_ROUTES}


async def test_g113_whatever_is_not_a_valid_key_is_a_401_on_every_route(tmp_path):
    """Before the body is looked at: here it is not even JSON."""
    async with FakeBackend() as engine, running(one(engine), tmp_path, with_admin=True) as gateway:
        good = gateway.admin_key
        expired = await gateway.new_key(admin=True, expires_at=datetime.now(UTC) + timedelta(milliseconds=20))
        revoked = await gateway.new_key(admin=True)
        gateway.keys().revoke(revoked)
        await gateway.assembly.follow_store()
        await asyncio.sleep(0.03)
        credentials = [
            (),
            (b"Authorization: Basic x",),
            (b"Authorization:",),
            (b"Authorization: Bearer",),
            (b"Authorization: Bearer ",),
            (b"Authorization: Bearer a.b.c",),
            (b"Authorization: Bearer null",),
            *((b"Authorization: " + text.encode(),) for text in (good, f"bearer {good}", f"Bearer {good}x")),
            *((b"Authorization: Bearer " + text.encode(),) for text in (expired, revoked, good[:-1], f"{good} {good}")),
            (b"Authorization: Bearer " + good.encode(),) * 2,
            (b"Authorization: Bearer " + good.encode(), b"Authorization: Basic x"),
            (b"X-Api-Key: " + good.encode(),),
            (b"Proxy-Authorization: Bearer " + good.encode(),),
        ]
        for method, path in DATA_ROUTES + ADMIN_ROUTES:
            got = await asyncio.gather(*(status(gateway, with_headers(method, path, *lines)) for lines in credentials))
            assert got == [401] * len(credentials), (method, path)
        assert await status(gateway, with_headers("GET", "/metrics", b"Authorization: Bearer " + good.encode())) == 200
        assert not engine.calls


async def test_g113_a_key_in_the_query_is_no_key(tmp_path):
    async with FakeBackend() as engine, running(one(engine), tmp_path, with_admin=True) as gateway:
        for name in ("key", "api_key", "access_token", "authorization"):
            raw = with_headers("GET", f"/v1/admin/routing?{name}={gateway.admin_key}")
            assert await status(gateway, raw) == 401


HOSTS = [
    b"localhost/#@x",
    b"//",
    b"%2e%2e",
    b"",
    b"a b",
    b"localhost#/live",
    b"[::1",
    b"x?y=/live",
    b"\xff",
    b"a:99999",
]


@pytest.mark.parametrize("key", ["none", "plain"])
async def test_g110_no_host_and_no_forwarding_header_opens_an_admin_route(tmp_path, key):
    async with FakeBackend() as engine, running(one(engine), tmp_path, with_admin=True) as gateway:
        credentials = [] if key == "none" else [b"Authorization: Bearer " + gateway.key.encode()]
        refused = 401 if key == "none" else 403
        tricks = [
            b"X-Forwarded-Prefix: /live",
            b"X-Original-URL: /live",
            b"X-Rewrite-URL: /live",
            b"X-Forwarded-Host: localhost/#@x",
            b"X-Forwarded-For: 127.0.0.1",
            b"Forwarded: for=127.0.0.1;host=localhost",
            b"X-HTTP-Method-Override: GET",
        ]
        for lines in [
            *([b"Host: " + host] for host in HOSTS),
            *([trick] for trick in tricks),
            [b"Host: a", b"Host: b"],
        ]:
            for method, path in (("POST", "/v1/admin/routing"), ("GET", "/v1/admin/keys"), ("GET", "/metrics")):
                assert await status(gateway, with_headers(method, path, *lines, *credentials)) == refused, lines


@pytest.mark.parametrize(
    "path",
    [
        "/v1/admin/../admin/routing",
        "//v1/admin/routing",
        "/v1//admin/routing",
        "/live/../v1/admin/routing",
        "/v1/models/../admin/routing",
        "/v1/%61dmin/routing",
        "/v1/admin%2frouting",
        "/v1/admin/routing/",
        "/v1/admin/routing;x",
        "/v1/admin/routing?x=/live",
        "/v1/admin/routing#/live",
        "/V1/ADMIN/routing",
        "http://elsewhere/v1/admin/routing",
        "http://elsewhere/live/../v1/admin/routing",
        "/v1/admin",
        "/v1/admin/",
        "/docs",
        "/openapi.json",
        "/v1/admin/docs",
    ],
)
async def test_g110_no_spelling_of_a_path_opens_an_admin_route(tmp_path, path):
    async with FakeBackend() as engine, running(one(engine), tmp_path, with_admin=True) as gateway:
        assert await status(gateway, with_headers("GET", path)) in (401, 404)
        plain = await status(gateway, with_headers("GET", path, b"Authorization: Bearer " + gateway.key.encode()))
        assert plain in (403, 404)


async def test_g111_hostile_keys_are_401_at_once_and_leave_no_trace(tmp_path, caplog):
    async with FakeBackend() as engine, running(one(engine), tmp_path) as gateway:
        hostile = [
            b"' OR 1=1 --",
            b"lr-0-' OR '1'='1",
            b"lr-" + b"a" * 1_000_000,
            b"lr-\xff\xfe",
            "lr-ключ".encode(),
            b"lr-" + b"%00" * 20,
            b"lr-" + b"\t" * 10 + b"x",
        ]
        took = []
        for key in hostile:
            async with Wire(gateway) as client:
                client.writer.write(with_headers("POST", "/v1/chat/completions", b"Authorization: Bearer " + key))
                began = time.perf_counter()
                code, _, body = await client.answer()
                took.append(time.perf_counter() - began)
            assert code == 401
            assert b"Traceback" not in body
        assert sorted(took)[len(took) // 2] < 0.05
        nul = with_headers("POST", "/v1/chat/completions", b"Authorization: Bearer lr-\x00")
        assert await status(gateway, nul) == 400
        assert (await gateway.chat()).status_code == 200
    assert not [record for record in caplog.records if record.exc_info]
    assert "OR 1=1" not in caplog.text


async def test_g112_a_tenants_key_can_neither_raise_itself_nor_make_a_stronger_one(tmp_path):
    async with FakeBackend() as engine, running(one(engine), tmp_path, with_admin=True) as gateway:
        key_id = gateway.key.split("-")[1]
        before = gateway.keys().list()
        for method, path in ADMIN_ROUTES:
            assert (await gateway.http.request(method, path, json={})).status_code == 403
        for method in ("PATCH", "PUT", "POST"):
            changed = await gateway.http.request(method, f"/v1/admin/keys/{key_id}", json={"admin": True})
            assert changed.status_code == 403
        stronger = await gateway.http.post("/v1/admin/keys", json={"tenant_id": "default", "admin": True})
        assert (stronger.status_code, stronger.json()["error"]["code"]) == (403, "permission_denied")
        assert gateway.keys().list() == before


async def test_g112_scopes_cannot_be_changed_and_a_child_key_never_exceeds_its_maker(tmp_path):
    async with FakeBackend() as a, FakeBackend() as b, running(two(a, b), tmp_path, with_admin=True) as gateway:
        maker = await gateway.new_key(admin=True, tiers=["auto"], acl=["hr"])
        headers = {"authorization": f"Bearer {maker}"}

        async def make(**wishes: Any) -> int:
            body = {"tenant_id": "default", "tiers": ["auto"], **wishes}
            return (await gateway.http.post("/v1/admin/keys", json=body, headers=headers)).status_code

        assert await make() == 200
        assert await make(acl=["hr"], admin=True) == 200
        assert await make(tiers=None) == 403
        assert await make(tiers=["auto", "premium"]) == 403
        assert await make(acl=["hr", "board"]) == 403
        for method in ("PATCH", "PUT"):
            path = f"/v1/admin/keys/{maker.split('-')[1]}"
            assert (await gateway.http.request(method, path, json={"tiers": None}, headers=headers)).status_code == 404


async def test_g115_with_an_admin_port_the_data_port_knows_no_admin_route(tmp_path):
    text = '[admin]\nlisten = "127.0.0.1:0"\n'
    async with FakeBackend() as engine, running(text + one(engine), tmp_path) as gateway:
        for method, path in ADMIN_ROUTES:
            answer = await gateway.http.request(
                method, path, headers={"authorization": f"Bearer {gateway.admin_key}"}, json={}
            )
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_g115_prompts_are_never_rendered(tmp_path):
    text = "{{7*7}} ${jndi:ldap://x} {% raw %} <%= 7*7 %> %s {0} \\u0041"
    async with FakeBackend() as engine, running(one(engine), tmp_path) as gateway:
        answer = await gateway.chat(text, metadata={"note": "{{7*7}}"})
    assert engine.calls[0].body["messages"] == [{"role": "user", "content": text}]
    assert engine.calls[0].body["metadata"] == {"note": "{{7*7}}"}
    assert answer.json()["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize(
    ("row", "headers"),
    [
        ("g116", {"x-tenant-id": "rival", "x-llmrouter-tenant": "rival", "openai-organization": "rival"}),
        ("g116", {"openai-project": "rival", "x-user-id": "rival", "x-acl": "board", "x-llmrouter-key": "x"}),
        ("g118", {"x-forwarded-for": "127.0.0.1", "x-real-ip": "127.0.0.1", "x-tenant-id": "rival"}),
        ("g118", {"forwarded": "for=127.0.0.1", "x-forwarded-user": "rival", "x-tenant-id": "rival"}),
    ],
)
async def test_g116_g118_identity_is_the_keys_alone(tmp_path, row, headers):
    async with FakeBackend() as engine, running(one(engine, more=TENANTS), tmp_path) as gateway:
        await gateway.chat()
        await gateway.chat(headers=headers, user="rival", safety_identifier="rival")
        entries = gateway.books()
    assert {(entry.tenant_id, entry.key_id) for entry in entries} == {("acme", gateway.key.split("-")[1])}
    assert len({call.body["cache_salt"] for call in engine.calls}) == 1
    assert not {name.lower() for name, _ in engine.calls[1].headers} & headers.keys()


ELSEWHERE = """/invocations /pooling /classify /score /rerank /pause /resume /scale_elastic_ep /update_weights /tokenize
    /detokenize /health /ping /version /load /sleep /wake_up /is_sleeping /reset_prefix_cache /collective_rpc
    /server_info /v1/load_lora_adapter /v1/unload_lora_adapter /v1/responses /v1/audio/speech /v1/files /v1/rerank
    /v1/chat/completions/ /v1/chat /v1 / /props /slots /completion /infill /lora-adapters /v1/messages""".split()


async def test_g119_only_listed_paths_exist_and_nothing_else_reaches_an_engine(tmp_path):
    async with FakeBackend() as engine, running(one(engine), tmp_path, with_admin=True) as gateway:
        for path in ELSEWHERE:
            for method in ("GET", "POST"):
                headers = {"authorization": f"Bearer {gateway.admin_key}"}
                answer = await gateway.http.request(method, path, json={"model": "auto"}, headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), path
        for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert (await gateway.http.request(method, "/v1/chat/completions")).status_code == 404
        assert engine.requests == 0


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
async def test_g071_each_scope_has_a_prefix_cache_of_its_own(tmp_path, endpoint):
    path = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}[endpoint]
    body: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": "Hi"}]}
    if endpoint == "completions":
        body = {"model": "auto", "prompt": "Hi"}
    async with FakeBackend() as engine, running(one(engine, more=TENANTS), tmp_path) as gateway:
        keys = [
            gateway.key,
            await gateway.new_key("acme"),
            await gateway.new_key("rival"),
            await gateway.new_key("acme", acl=["board"]),
            await gateway.new_key("acme", acl=["board", "hr"]),
            await gateway.new_key("acme", acl=["hr", "board"]),
        ]
        for key in keys:
            answer = await gateway.http.post(path, json=body, headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == 200
    acme, same, rival, board, both, both_again = (call.body["cache_salt"] for call in engine.calls)
    assert (acme, both) == (same, both_again)
    assert len({acme, rival, board, both}) == 4
    assert not any("acme" in salt or "rival" in salt for salt in (acme, rival, board, both))


async def test_g071_controls_that_reach_past_the_own_request_are_refused(tmp_path):
    refused = {
        "cache_salt": "x",
        "kv_transfer_params": {},
        "chat_template": "{{x}}",
        "priority": -1,
        "vllm_xargs": {},
        "request_id": "x",
        "mm_processor_kwargs": {},
        "lora_request": {},
    }
    async with FakeBackend() as engine, running(one(engine), tmp_path) as gateway:
        for name, value in refused.items():
            fields: dict[str, Any] = {name: value}
            told = await gateway.chat(**fields)
            assert (told.status_code, told.json()["error"]["param"]) == (400, name)
        assert not engine.calls


async def test_g071_an_allowed_control_is_sent_on_but_a_salt_is_always_ours(tmp_path):
    more = '[limits]\nallow_engine_fields = ["chat_template_kwargs", "cache_salt"]\n'
    async with FakeBackend() as engine, running(one(engine, more=more), tmp_path) as gateway:
        await gateway.chat()
        await gateway.chat(chat_template_kwargs={"enable_thinking": False}, cache_salt="rival's")
    plain, allowed = (call.body for call in engine.calls)
    assert allowed["chat_template_kwargs"] == {"enable_thinking": False}
    assert allowed["cache_salt"] == plain["cache_salt"]


async def test_g071_only_engines_that_know_salts_get_one(tmp_path):
    async with FakeBackend() as hosted, FakeBackend() as llama:
        text = model("a") + model("b") + pool("a", [hosted.url], api="openai") + pool("b", [llama.url], api="llama_cpp")
        async with running(text + tier("a", small="a") + tier("b", small="b"), tmp_path) as gateway:
            await gateway.chat(tier="a")
            await gateway.chat(tier="b")
    assert "cache_salt" not in hosted.calls[0].body
    assert "cache_salt" not in llama.calls[0].body


async def test_g110_uploads_to_the_admin_plane_are_bounded_and_unread_without_a_key(tmp_path):
    more = "[limits]\nmax_body_bytes = 2048\n"
    async with FakeBackend() as engine, running(one(engine, more=more), tmp_path, with_admin=True) as gateway:
        large = b" " * 4096
        admin = b"Authorization: Bearer " + gateway.admin_key.encode()
        assert await status(gateway, with_headers("POST", "/v1/admin/routing", admin, body=large)) == 413
        endless = with_headers("POST", "/v1/admin/routing").replace(b"Content-Length: 1", b"Content-Length: 9999999999")
        assert await status(gateway, endless) == 401


async def test_secrets_appear_in_no_answer_and_no_log(tmp_path, caplog):
    caplog.set_level("DEBUG")
    pools = 'api_key = "sk-upstream-secret"\nheaders = { x-team = "team-secret" }\n'
    async with FakeBackend() as engine, running(one(engine, pools=pools), tmp_path, with_admin=True) as gateway:
        admin = {"authorization": f"Bearer {gateway.admin_key}"}
        pages = [await gateway.http.get(path, headers=admin) for path in ("/metrics", "/v1/admin/keys", "/ready")]
        pages += [await gateway.chat("my private prompt"), await gateway.chat(tier="nobody")]
        sent = dict(engine.calls[0].headers)
        shown = caplog.text + repr(gateway.assembly.state) + "".join(f"{page.headers}{page.text}" for page in pages[:3])
        shown += f"{pages[4].headers}{pages[4].text}"
    assert (sent["authorization"], sent["x-team"]) == ("Bearer sk-upstream-secret", "team-secret")
    for secret in ("sk-upstream-secret", "team-secret", gateway.key, gateway.admin_key, "my private prompt"):
        assert secret not in shown
