from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx

import benchmarks.gateway
from benchmarks.gateway.cases import TOKENS, Case
from benchmarks.gateway.floor import Forwarder
from benchmarks.gateway.instruments import client_arguments
from benchmarks.gateway.payload import request, write_bodies
from benchmarks.gateway.targets import nginx_config
from llmrouter.backends.http import HttpClient
from llmrouter.config import parse
from llmrouter.gateway.listen import bind, server
from llmrouter.routing.intent import label
from llmrouter.tenancy.limits import LimitBook
from llmrouter.testing import Answer, FakeBackend, HttpError
from llmrouter.types import Principal

CONFIG = Path(benchmarks.gateway.__file__).with_name("gateway.toml")


def test_the_gateway_is_measured_with_a_configuration_that_is_valid_and_has_everything_on():
    environ = {"BENCH_LISTEN": "127.0.0.1:1", "BENCH_ENGINE": "http://127.0.0.1:2"}
    config = parse(CONFIG.read_text(), environ=environ)
    assert config.pools["small"].urls == ("http://127.0.0.1:2/v1",)
    assert any("intent" in rule.match for rule in config.routing.rules)
    assert len({rule.weight for rule in config.routing.rules}) > 1
    assert "bench" in config.tenants


def test_with_limits_it_counts_against_one_in_each_scope():
    environ = {"BENCH_LISTEN": "127.0.0.1:1", "BENCH_ENGINE": "http://127.0.0.1:2"}
    config = parse(CONFIG.read_text() + CONFIG.with_name("limits.toml").read_text(), environ=environ)
    limits = LimitBook(config).of(Principal("bench", "k1", user_id="bob"), "auto", None)
    scopes = ["user:bench/bob", "key:k1", "tenant:bench/tier:auto", "tenant:bench", "group:bench", "tier:auto"]
    assert [limit.scope for limit in limits] == scopes


def test_nginx_neither_buffers_nor_logs_and_keeps_connections():
    text = nginx_config("127.0.0.1:1", "http://127.0.0.1:2", Path("/folder"), "somebody")
    assert "proxy_buffering off;" in text
    assert "access_log off;" in text
    assert "keepalive 1024;" in text
    assert "server 127.0.0.1:2;" in text
    assert "user " not in text
    assert "user root;" in nginx_config("127.0.0.1:1", "http://127.0.0.1:2", Path("/folder"), "root")


def test_the_prompt_is_six_kilobytes_of_prose_that_no_rule_takes_for_code():
    body = request(stream=False)
    assert 5900 < len(json.dumps(body)) < 6300
    assert body["max_tokens"] == TOKENS
    assert "stream" not in body
    assert label(body["messages"][-1]["content"], has_tools=False) != "code"


def test_the_bodies_differ_in_nothing_but_the_stream(tmp_path):
    paths = write_bodies(tmp_path)
    whole, stream = (json.loads(paths[key].read_text()) for key in (False, True))
    assert stream == {**whole, "stream": True}


def test_the_client_is_told_of_the_load_and_of_what_a_good_stream_is():
    case = Case("any", "any", 2.5, rate=20.0, stream=True, requests=900)
    words = " ".join(client_arguments(case, "http://127.0.0.1:1/x", "key", Path("body.json"), seed=3))
    assert "--rate 20 --seconds 2.5 --seed 3" in words
    assert "--stream --tokens 400 --requests 900 --bearer key" in words


def test_a_closed_loop_without_a_key_has_connections_and_no_bearer():
    words = client_arguments(Case("any", "any", 1.0, connections=16), "http://127.0.0.1:1/x", None, Path("b"), seed=1)
    assert words[words.index("--connections") + 1] == "16"
    assert not {"--rate", "--stream", "--bearer", "--requests"} & set(words)


async def test_the_floor_forwards_whole_answers_streams_and_refusals():
    async with FakeBackend(Answer("Paris"), Answer("one two"), HttpError(429)) as engine:
        client = HttpClient(engine.url.removesuffix("/v1"))
        listener = bind("127.0.0.1:0")
        serving = server(Forwarder(client), drain_s=1.0)
        task = asyncio.create_task(serving.serve(sockets=[listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions"
        try:
            async with httpx.AsyncClient(trust_env=False, verify=False) as http:
                whole = await http.post(url, json=request(stream=False))
                stream = await http.post(url, json=request(stream=True))
                refused = await http.post(url, json=request(stream=False))
        finally:
            serving.should_exit = True
            await task
            await client.aclose()
        assert whole.json()["choices"][0]["message"]["content"] == "Paris"
        assert stream.text.endswith("data: [DONE]\n\n")
        assert refused.status_code == 429
        assert engine.calls[0].body == request(stream=False)
