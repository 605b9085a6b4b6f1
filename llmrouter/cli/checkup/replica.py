"""One replica: does it answer, does it serve the model, and does it do what the configuration says that it can.

A call asks for very few tokens, so it shows whether an engine takes a parameter, not how well it honours it.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from llmrouter.cli.checkup.finding import Finding, fail, info, ok, warning
from llmrouter.cli.checkup.reading import (
    body_of,
    content_of,
    error_words,
    first_choice,
    has_logprobs,
    has_usage,
    object_in,
)
from llmrouter.cli.effective import output_cap_field
from llmrouter.config import Config, PoolConfig

__all__ = ["Examiner", "Subject", "subjects"]

_MOST_SKEW_S = 5.0
_TOOL = {
    "type": "function",
    "function": {
        "name": "now",
        "description": "The time now.",
        "parameters": {"type": "object", "properties": {}},
    },
}
_SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "word",
        "schema": {
            "type": "object",
            "properties": {"word": {"type": "string"}},
            "required": ["word"],
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True, slots=True)
class Subject:
    """A replica with what the configuration says of it."""

    name: str
    base_url: str
    pool: PoolConfig
    model_id: str
    capabilities: frozenset[str]

    @property
    def upstream_model(self) -> str:
        return self.pool.upstream_model or self.pool.model

    @property
    def headers(self) -> dict[str, str]:
        headers = {name: value.get_secret_value() for name, value in self.pool.headers.items()}
        if self.pool.api_key is not None:
            headers["authorization"] = f"Bearer {self.pool.api_key.get_secret_value()}"
        return headers


def subjects(config: Config, pool_id: str) -> list[Subject]:
    """The replicas of a pool that are reached by address."""
    pool = config.pools[pool_id]
    able = config.capabilities_of(pool.model)
    return [
        Subject(f"{pool_id}/{position}", url.rstrip("/"), pool, pool.model, able)
        for position, url in enumerate(pool.urls)
    ]


class Examiner:
    """Looks at one replica, one call after another.

    Args:
        client: without the environment's proxies, as the gateway's own calls take none.
    """

    def __init__(
        self,
        subject: Subject,
        client: httpx.AsyncClient,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subject = subject
        self._client = client
        self._wall = wall
        self._monotonic = monotonic

    async def findings(self) -> AsyncIterator[Finding]:
        """What is found, in order; ends early when nothing further can be said."""
        name = self._subject.name
        try:
            listing = await self._get(f"{self._subject.base_url}/models")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            yield fail(name, "reachable", f"{self._shown_url()}: {_words(error)}")
            return
        yield ok(name, "reachable", self._shown_url())
        yield self._clock(listing)
        if self._subject.pool.engine in ("vllm", "llama_cpp"):
            yield await self._careful("health", self._health())
        yield self._listed(listing)
        if listing.status_code in (401, 403):
            return
        answers = True
        for aspect, check in self._calls():
            finding = await self._careful(aspect, check())
            yield finding
            answers = answers and not (aspect == "answers" and finding.status == "fail")
            if not answers:
                return

    def _calls(self) -> list[tuple[str, Callable[[], Any]]]:
        if "embeddings" in self._subject.capabilities:
            return [("answers", self._embeddings)]
        checks: list[tuple[str, Callable[[], Any]]] = [
            ("answers", self._answers),
            ("stream", self._stream),
            ("logprobs", self._log_probabilities),
            ("tools", self._tools),
            ("json_schema", self._json_schema),
        ]
        if self._subject.pool.engine == "vllm":
            checks.append(("priority", self._priority))
        return checks

    async def _careful(self, aspect: str, check: Any) -> Finding:
        try:
            found: Finding = await check
        except httpx.HTTPError as error:
            return fail(self._subject.name, aspect, _words(error))
        return found

    def _clock(self, listing: httpx.Response) -> Finding:
        name = self._subject.name
        try:
            says = email.utils.parsedate_to_datetime(listing.headers["date"]).timestamp()
        except (KeyError, ValueError):
            return info(name, "clock", "it sends no date")
        skew_s = says - self._wall()
        if abs(skew_s) > _MOST_SKEW_S:
            return warning(name, "clock", f"its clock is {skew_s:+.0f} s from ours; Retry-After dates will be off")
        return ok(name, "clock", "agrees with ours")

    async def _health(self) -> Finding:
        answer = await self._get(f"{self._subject.base_url.removesuffix('/v1')}/health")
        if answer.status_code == 200:
            return ok(self._subject.name, "health", "says that it is well")
        if answer.status_code == 503:
            return fail(self._subject.name, "health", f"not ready: {error_words(answer)}")
        return warning(self._subject.name, "health", f"/health answers {answer.status_code}, so probes say nothing")

    def _listed(self, listing: httpx.Response) -> Finding:
        name, wanted = self._subject.name, self._subject.upstream_model
        if listing.status_code in (401, 403):
            return fail(
                name, "model", f"it refuses our credentials ({listing.status_code}); look at the pool's api_key"
            )
        try:
            known = [str(model["id"]) for model in listing.json()["data"]]
        except (ValueError, KeyError, TypeError):
            return warning(name, "model", f"/models answers {listing.status_code} without a list of models")
        if wanted in known:
            return ok(name, "model", f"serves {wanted}")
        text = f"does not list {wanted!r}; it lists {', '.join(known[:5]) or 'nothing'}; set the pool's upstream_model"
        # vLLM answers 404 to other names; llama.cpp takes any, and a hosted API may leave names out of its list.
        return fail(name, "model", text) if self._subject.pool.engine == "vllm" else warning(name, "model", text)

    async def _answers(self) -> Finding:
        began = self._monotonic()
        answer = await self._chat({})
        seconds = self._monotonic() - began
        name = self._subject.name
        if answer.status_code == 429:
            return warning(name, "answers", f"is rate-limited now: {error_words(answer)}")
        if answer.status_code != 200:
            return fail(name, "answers", f"{answer.status_code}: {error_words(answer)}")
        if not first_choice(answer):
            return fail(name, "answers", "200, but not a chat completion")
        if not has_usage(body_of(answer)):
            return warning(name, "answers", f"after {seconds:.2f} s, without usage: the books will hold estimates")
        return ok(name, "answers", f"after {seconds:.2f} s, with usage")

    async def _embeddings(self) -> Finding:
        body = {"model": self._subject.upstream_model, "input": "Hello."}
        answer = await self._post("/embeddings", body)
        if answer.status_code == 200 and isinstance(body_of(answer).get("data"), list):
            return ok(self._subject.name, "answers", "with embeddings")
        return fail(self._subject.name, "answers", f"{answer.status_code}: {error_words(answer)}")

    async def _stream(self) -> Finding:
        chunks, usage, done = 0, False, False
        extra = {"stream": True, "stream_options": {"include_usage": True}}
        name = self._subject.name
        began, first_s = self._monotonic(), None
        url = f"{self._subject.base_url}/chat/completions"
        async with self._client.stream("POST", url, json=self._body(extra), headers=self._subject.headers) as answer:
            if answer.status_code != 200:
                await answer.aread()
                return fail(name, "stream", f"{answer.status_code}: {error_words(answer)}")
            async for line in answer.aiter_lines():
                data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                done = done or data == "[DONE]"
                event = object_in(data)
                chunks += bool(event.get("choices"))
                usage = usage or has_usage(event)
                first_s = self._monotonic() - began if first_s is None and chunks else first_s
        if not chunks:
            return fail(name, "stream", "brought no chunk of an answer")
        if not usage:
            return warning(name, "stream", "brings no usage although asked: the books will hold estimates")
        return ok(
            name, "stream", f"first chunk after {first_s or 0:.2f} s, with usage{'' if done else ', without [DONE]'}"
        )

    async def _log_probabilities(self) -> Finding:
        answer = await self._chat({"logprobs": True, "top_logprobs": 1})
        found = answer.status_code == 200 and has_logprobs(first_choice(answer))
        return self._capability("logprobs", found, answer, "gives none although asked")

    async def _tools(self) -> Finding:
        answer = await self._chat({"tools": [_TOOL], "tool_choice": "auto"})
        return self._capability("tools", answer.status_code == 200, answer, "refused")

    async def _json_schema(self) -> Finding:
        answer = await self._chat({"response_format": _SCHEMA})
        text = content_of(first_choice(answer)).lstrip()
        honoured = answer.status_code == 200 and (not text or text.startswith("{"))
        return self._capability("json_schema", honoured, answer, "its answer does not begin as an object")

    async def _priority(self) -> Finding:
        answer = await self._chat({"priority": 1})
        if answer.status_code == 200:
            return ok(self._subject.name, "priority", "taken")
        return info(self._subject.name, "priority", "refused; vLLM takes it with --scheduling-policy priority")

    def _capability(self, capability: str, works: bool, answer: httpx.Response, otherwise: str) -> Finding:
        """A declared capability must work; one that only works is worth knowing."""
        name, model_id = self._subject.name, self._subject.model_id
        if capability in self._subject.capabilities:
            if works:
                return ok(name, capability, "taken")
            why = otherwise if answer.status_code == 200 else f"{answer.status_code}: {error_words(answer)}"
            return fail(name, capability, f"{why}; take it out of models.{model_id}.capabilities, or mend the engine")
        if works:
            return info(name, capability, f"taken, but models.{model_id}.capabilities does not list it")
        return info(name, capability, "neither listed nor taken")

    async def _get(self, url: str) -> httpx.Response:
        return await self._client.get(url, headers=self._subject.headers)

    async def _chat(self, extra: Mapping[str, Any]) -> httpx.Response:
        return await self._post("/chat/completions", self._body(extra))

    async def _post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        return await self._client.post(f"{self._subject.base_url}{path}", json=body, headers=self._subject.headers)

    def _body(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._subject.upstream_model,
            "messages": [{"role": "user", "content": "Say hello."}],
        }
        cap = output_cap_field(self._subject.pool)
        if self._subject.pool.engine == "openai":
            # A model that thinks first may need some tokens for that, and may refuse a temperature.
            return {**body, cap: 16, **extra}
        # A first token by chance may be a special one, of which an engine shows neither text nor log-probability.
        return {**body, cap: 4, "temperature": 0, **extra}

    def _shown_url(self) -> str:
        return str(httpx.URL(self._subject.base_url).copy_with(userinfo=b""))


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
