"""A running gateway: is it alive and ready, and does each tier answer through it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import httpx

from llmrouter.cli.checkup.finding import Finding, fail, info, ok

__all__ = ["check_gateway"]

_SUBJECT = "gateway"


async def check_gateway(
    address: str, key: str | None, client: httpx.AsyncClient, *, monotonic: Callable[[], float] = time.monotonic
) -> AsyncIterator[Finding]:
    """Ask `/live` and `/ready`, then each tier of the key for one token."""
    root = address.rstrip("/").removesuffix("/v1")
    try:
        live = await client.get(f"{root}/live")
        ready = await client.get(f"{root}/ready")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        yield fail(_SUBJECT, "reachable", f"{root}: {str(error) or type(error).__name__}")
        return
    yield _judged("live", live)
    yield _judged("ready", ready)
    if key is None:
        yield info(_SUBJECT, "tiers", "not asked without a key; give one in LLMROUTER_KEY")
        return
    headers = {"authorization": f"Bearer {key}"}
    models = await client.get(f"{root}/v1/models", headers=headers)
    try:
        tiers = [str(model["id"]) for model in models.json()["data"]]
    except (ValueError, KeyError, TypeError):
        yield fail(_SUBJECT, "tiers", f"/v1/models answers {models.status_code}: {models.text.strip()[:200]}")
        return
    for tier in tiers:
        yield await _tier(f"{root}/v1", tier, headers, client, monotonic)


async def _tier(
    base_url: str, tier: str, headers: dict[str, str], client: httpx.AsyncClient, monotonic: Callable[[], float]
) -> Finding:
    body = {"model": tier, "messages": [{"role": "user", "content": "Say hello."}], "max_completion_tokens": 1}
    began = monotonic()
    try:
        answer = await client.post(f"{base_url}/chat/completions", json=body, headers=headers)
    except httpx.HTTPError as error:
        return fail(_SUBJECT, f"tier {tier}", str(error) or type(error).__name__)
    seconds = monotonic() - began
    if answer.status_code != 200:
        return fail(_SUBJECT, f"tier {tier}", f"{answer.status_code}: {answer.text.strip()[:200]}")
    model = answer.headers.get("x-llmrouter-model", "an unnamed model")
    return ok(_SUBJECT, f"tier {tier}", f"answered by {model} after {seconds:.2f} s")


def _judged(aspect: str, answer: httpx.Response) -> Finding:
    if answer.status_code == 200:
        return ok(_SUBJECT, aspect, "yes")
    return fail(_SUBJECT, aspect, f"{answer.status_code}: {answer.text.strip()[:200]}")
