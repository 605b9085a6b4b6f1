"""What `doctor` finds of one replica, against a real socket."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from llmrouter.cli.checkup.finding import Finding
from llmrouter.cli.checkup.replica import Examiner, subjects
from llmrouter.config import parse
from llmrouter.testing import (
    Answer,
    Decide,
    FakeBackend,
    HttpError,
    Incoming,
    Json,
    NotHttp,
    RawSse,
    Refuses,
    Reset,
    Step,
    Text,
)
from tests.support import model, pool, tier

GOOD = Answer("{}")
ALL = '["tools", "json_schema", "logprobs"]'


def config_text(url: str, api: str, able: str, extra: str) -> str:
    return (
        model("s", extra=f"capabilities = {able}")
        + pool("s", [url], api=api, extra=f'upstream_model = "fake-model"\n{extra}')
        + tier("auto", small="s")
    )


async def examine(
    engine: FakeBackend, *, api: str = "vllm", able: str = ALL, extra: str = "", url: str | None = None, **clocks: Any
) -> dict[str, Finding]:
    config = parse(config_text(url or engine.url, api, able, extra), environ={})
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
        examiner = Examiner(subjects(config, "s")[0], client, **clocks)
        return {finding.aspect: finding async for finding in examiner.findings()}


def statuses(found: dict[str, Finding]) -> dict[str, str]:
    return {aspect: finding.status for aspect, finding in found.items() if finding.status != "ok"}


def when(test: Callable[[Incoming], bool], step: Step, otherwise: Step = GOOD) -> Decide:
    return Decide(lambda request: step if test(request) else otherwise)


def streams(request: Incoming) -> bool:
    return request.stream


def has(field: str) -> Callable[[Incoming], bool]:
    return lambda request: field in request.fields


@pytest.mark.parametrize("api", ["vllm", "llama_cpp", "openai"])
async def test_a_healthy_replica_is_ok_in_everything(api: str):
    async with FakeBackend(default=GOOD, dialect=api) as engine:  # type: ignore[arg-type]
        found = await examine(engine, api=api)
    assert statuses(found) == {"clock": "info"}
    expected = {"reachable", "clock", "model", "answers", "stream", "logprobs", "tools", "json_schema"}
    assert set(found) == expected | ({"health"} if api != "openai" else set()) | (
        {"priority"} if api == "vllm" else set()
    )


async def test_calls_ask_for_few_tokens_in_the_field_that_the_engine_takes():
    async with FakeBackend(default=Refuses("max_tokens", GOOD), dialect="openai") as engine:
        assert (await examine(engine, api="openai"))["answers"].status == "ok"
    async with FakeBackend(default=Refuses("max_completion_tokens", GOOD)) as engine:
        assert (await examine(engine))["answers"].status == "ok"
        assert {call.request.fields["max_tokens"] for call in engine.calls} == {4}


async def test_nothing_there_ends_the_examination():
    async with FakeBackend() as engine:
        pass
    found = await examine(engine)
    assert statuses(found) == {"reachable": "fail"}
    assert len(found) == 1


async def test_a_port_that_speaks_no_http_fails_and_a_broken_one_too():
    for step in (NotHttp(), Reset()):
        async with FakeBackend() as engine:
            engine.routes["/v1/models"] = step
            assert statuses(await examine(engine)) == {"reachable": "fail"}


async def test_credentials_that_are_refused_end_the_examination():
    async with FakeBackend() as engine:
        engine.routes["/v1/models"] = HttpError(401)
        found = await examine(engine, extra='api_key = "sk-wrong"')
    assert found["model"].status == "fail"
    assert "answers" not in found
    assert "sk-wrong" not in str(found)
    assert not engine.calls


async def test_the_key_and_headers_of_the_pool_are_sent():
    async with FakeBackend(default=GOOD) as engine:
        await examine(engine, extra='api_key = "sk-1"\nheaders = { x-team = "blue" }')
        sent = engine.calls[0]
    assert (sent.header("authorization"), sent.header("x-team")) == ("Bearer sk-1", "blue")


@pytest.mark.parametrize(("api", "status"), [("vllm", "fail"), ("llama_cpp", "warning"), ("openai", "warning")])
async def test_a_model_that_is_not_listed_fails_where_the_name_matters(api: str, status: str):
    async with FakeBackend(default=GOOD, models=("other",), dialect=api) as engine:  # type: ignore[arg-type]
        found = await examine(engine, api=api)
    assert found["model"].status == status
    assert "other" in found["model"].message


async def test_a_list_of_models_that_is_none_is_warned_of():
    async with FakeBackend(default=GOOD) as engine:
        engine.routes["/v1/models"] = Text("<html>hello</html>")
        assert (await examine(engine))["model"].status == "warning"


@pytest.mark.parametrize(("status", "verdict"), [(503, "fail"), (404, "warning")])
async def test_a_server_that_is_loading_fails_and_one_without_health_is_warned_of(status: int, verdict: str):
    async with FakeBackend(default=GOOD) as engine:
        engine.routes["/health"] = HttpError(status, "Loading model")
        assert (await examine(engine))["health"].status == verdict


@pytest.mark.parametrize(
    ("step", "status"),
    [
        (HttpError(500, "out of memory"), "fail"),
        (HttpError(429), "warning"),
        (Json({"hello": "world"}), "fail"),
        (Text("plain"), "fail"),
        (Reset(), "fail"),
    ],
)
async def test_an_engine_that_answers_badly(step: Step, status: str):
    async with FakeBackend(default=step) as engine:
        found = await examine(engine)
    assert found["answers"].status == status
    assert ("stream" in found) == (status != "fail")


async def test_answers_without_usage_are_warned_of_both_ways():
    async with FakeBackend(default=Answer("{}", usage={})) as engine:
        found = await examine(engine)
    assert statuses(found) == {"clock": "info", "answers": "warning", "stream": "warning"}


@pytest.mark.parametrize("step", [RawSse(b""), HttpError(400), Reset(after=1)])
async def test_an_engine_that_cannot_stream_fails(step: Step):
    async with FakeBackend(default=when(streams, step)) as engine:
        assert statuses(await examine(engine)) == {"clock": "info", "stream": "fail"}


@pytest.mark.parametrize(
    ("aspect", "broken"),
    [
        ("logprobs", Answer("{}", logprobs=())),
        ("tools", when(has("tools"), HttpError(400, "tools need --enable-auto-tool-choice"))),
        ("json_schema", when(has("response_format"), HttpError(400))),
        ("json_schema", Answer("Hello there")),
    ],
)
async def test_a_capability_must_work_if_it_is_claimed_and_is_else_only_mentioned(aspect: str, broken: Step):
    async with FakeBackend(default=broken) as engine:
        assert statuses(await examine(engine)) == {"clock": "info", aspect: "fail"}
        assert (await examine(engine, able="[]"))[aspect].status == "info"


async def test_a_capability_that_works_unclaimed_is_worth_knowing():
    async with FakeBackend(default=GOOD) as engine:
        found = await examine(engine, able="[]")
    assert "does not list it" in found["tools"].message
    assert found["tools"].status == "info"


async def test_priority_is_only_mentioned_when_it_is_refused():
    async with FakeBackend(default=when(has("priority"), HttpError(400))) as engine:
        assert (await examine(engine))["priority"].status == "info"


async def test_a_pool_of_embeddings_is_asked_for_embeddings_only():
    async with FakeBackend() as engine:
        found = await examine(engine, able='["embeddings"]')
        assert {call.path for call in engine.calls} == {"/v1/embeddings"}
    assert found["answers"].status == "ok"
    assert "stream" not in found


@pytest.mark.parametrize(("skew_s", "status"), [(0, "ok"), (4, "ok"), (-90, "warning"), (3600, "warning")])
async def test_a_clock_that_differs_is_warned_of(skew_s: int, status: str):
    now = time.time()
    async with FakeBackend(default=GOOD) as engine:
        date = email.utils.formatdate(now + skew_s, usegmt=True)
        engine.routes["/v1/models"] = Json({"data": [{"id": "fake-model"}]}, headers={"date": date})
        assert (await examine(engine, wall=lambda: now))["clock"].status == status
