"""`llmrouter limits`: whose limits there are, and what is used of them."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llmrouter.tenancy.redis_limits import RedisLimits
from llmrouter.testing import FakeBackend
from llmrouter.types import Limit
from tests.cli.command import Ran, llmrouter, two_models
from tests.ledger.books import reservation
from tests.support import model, pool, running, tier

TENANTS = """
[groups.shop.limits]
usd_per_month = 100
[tenants.default]
[tenants.acme]
group = "shop"
limits.requests_per_minute = 600
limits.requests_burst = 50
limits.usd_per_day = "5.50"
key_limits.concurrent_requests = 4
user_limits.tokens_per_minute = 90000
tier_limits.auto.usd_per_hour = 2
[tenants.other]
limits.usd_per_day = 1
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return two_models(tmp_path, TENANTS)


def told(config: Path, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = llmrouter("limits", *arguments, "--json", "--config", config).json["limits"]
    return found


def names(config: Path, *arguments: str) -> list[tuple[str, str]]:
    return [(each["whose"], each["kind"]) for each in told(config, *arguments)]


def key_of(config: Path, *arguments: str) -> str:
    made = llmrouter("keys", "create", *arguments, "--json", "--config", config)
    assert made.code == 0, made.err
    return str(made.json["key_id"])


OF_ACME = [
    ("tenant acme on tier auto", "usd_per_hour"),
    ("tenant acme", "requests_per_minute"),
    ("tenant acme", "usd_per_day"),
]


def test_all_are_shown_before_anything_was_ever_used(config: Path):
    shown = llmrouter("limits", "--config", config)
    assert "no store" in shown.err
    lines = [line.split() for line in shown.out.splitlines()]
    assert lines[0] == ["LIMIT", "OF", "KIND", "MOST", "USED", "LEFT", "RESET"]
    assert lines[2] == ["tenant", "acme", "requests_per_minute", "600", "(burst", "50)", "0", "50", "-"]
    assert names(config) == [*OF_ACME, ("tenant other", "usd_per_day"), ("group shop", "usd_per_month")]
    assert not (config.parent / "llmrouter.db").exists()


def test_a_tenants_are_those_that_its_requests_count_against(config: Path):
    first, own = key_of(config, "--tenant", "acme"), key_of(config, "--tenant", "acme", "--limit", "usd_per_day=1")
    key_of(config, "--tenant", "other")
    assert sorted(names(config, "--tenant", "acme")) == sorted(
        [
            *[(f"key {first}", "concurrent_requests"), (f"key {own}", "usd_per_day")],
            *OF_ACME,
            ("group shop", "usd_per_month"),
        ]
    )


def test_a_keys_are_its_own_and_those_around_it(config: Path):
    key = key_of(config, "--tenant", "acme", "--limit", "usd_per_day=1", "--user", "bob")
    assert names(config, "--key", key) == [
        *[("user bob of tenant acme", "tokens_per_minute"), (f"key {key}", "usd_per_day")],
        *OF_ACME,
        ("group shop", "usd_per_month"),
    ]


def test_a_user_is_shown_beside_his_tenant(config: Path):
    assert ("user alice of tenant acme", "tokens_per_minute") in names(config, "--tenant", "acme", "--user", "alice")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--tenant", "nobody"), "no tenant 'nobody'"),
        (("--key", "000000000000"), "no key '000000000000'"),
        (("--tenant", "acme", "--key", "0"), "not both"),
        (("--user", "bob"), "--user needs --tenant or --key"),
    ],
)
def test_what_is_not_there_is_refused(config: Path, arguments: tuple[str, ...], complaint: str):
    refused = llmrouter("limits", *arguments, "--config", config)
    assert (refused.code, refused.out) == (2, "")
    assert complaint in refused.err


def test_without_limits_it_says_so(tmp_path: Path):
    shown = llmrouter("limits", "--config", two_models(tmp_path))
    assert (shown.code, shown.out) == (0, "")
    assert "no limit is set" in shown.err


USED = """
[tenants.default]
limits.requests_per_minute = 6
limits.usd_per_day = 5
limits.concurrent_requests = 3
"""


async def used(folder: Path, tenants: str = USED, calls: int = 2) -> Path:
    """A store in which so many calls have been made."""
    async with FakeBackend() as engine:
        text = model("s") + pool("s", [engine.url]) + tier("auto", small="s") + tenants
        async with running(text, folder) as gateway:
            for _ in range(calls):
                assert (await gateway.chat(max_tokens=5)).status_code == 200
    return folder / "llmrouter.toml"


def by_kind(config: Path) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in told(config)}


def test_what_was_used_is_shown_with_when_it_is_back(tmp_path: Path):
    config = asyncio.run(used(tmp_path))
    found = by_kind(config)
    requests, dollars, slots = (found[kind] for kind in ("requests_per_minute", "usd_per_day", "concurrent_requests"))
    assert (requests["limit"], requests["used"], requests["remaining"]) == (6, 2, 4)
    assert 0 < requests["reset_s"] <= 20
    assert (slots["used"], slots["remaining"], slots["reset_s"]) == (0, 3, 0)
    assert 0 < float(dollars["used"]) < 0.01
    assert float(dollars["used"]) + float(dollars["remaining"]) == pytest.approx(5)
    row = next(line for line in llmrouter("limits", "--config", config).out.splitlines() if "usd_per_day" in line)
    assert "$5.00  $0.000" in row
    assert " in " in row


def test_a_dollar_limit_that_is_new_begins_with_what_the_books_say(tmp_path: Path):
    config = asyncio.run(used(tmp_path, tenants="[tenants.default]\n"))
    config.write_text(config.read_text() + "limits.usd_per_month = 5\n")
    assert float(by_kind(config)["usd_per_month"]["used"]) > 0


def test_many_unused_dollar_limits_are_not_added_up(tmp_path: Path):
    tenants = "".join(f"[tenants.t{number}]\nlimits.usd_per_day = 5\n" for number in range(60))
    config = asyncio.run(used(tmp_path, tenants=f"[tenants.default]\n{tenants}", calls=0))
    shown: Ran = llmrouter("limits", "--config", config)
    assert "60 dollar limits that no request met yet" in shown.err
    assert len(shown.out.splitlines()) == 61


NOBODY_SPENT = """
[tenants.default]
limits.requests_per_minute = 6
limits.usd_per_day = 5
limits.usd_per_month = 50
"""


async def take(url: str, request_id: str, *limits: Limit) -> list[str]:
    """What a gateway does for a call that is under way; returns the limits that it began to count with the books."""
    begun: list[str] = []

    async def spent(limit: Limit, _window_ms: int) -> int:
        begun.append(limit.kind)
        return 0

    store = RedisLimits(url, "a gateway", spent, lease_s=0)
    admission = await store.reserve(reservation(request_id, limits=limits, cost_usd=Decimal("0.25")))
    assert admission.exceeded is None
    await store.aclose()
    return begun


def test_limits_that_gateways_share_are_asked_where_they_count(tmp_path: Path, redis_url: str):
    rate, day, month = (
        Limit("tenant:default", "requests_per_minute", 6, 6),
        Limit("tenant:default", "usd_per_day", 5 * 10**9),
        Limit("tenant:default", "usd_per_month", 50 * 10**9),
    )
    config = two_models(tmp_path, f'[store]\nlimits_url = "{redis_url}"', NOBODY_SPENT)
    assert asyncio.run(take(redis_url, "r1", rate, day)) == ["usd_per_day"]
    found = by_kind(config)
    assert found["requests_per_minute"]["used"] == 1
    assert (found["usd_per_day"]["used"], found["usd_per_day"]["remaining"]) == ("0.25", "4.75")
    assert found["usd_per_month"]["used"] == "0.00"
    # To look begins no counter: that is left to a gateway, which knows what has been spent.
    assert asyncio.run(take(redis_url, "r2", rate, day, month)) == ["usd_per_month"]


def test_a_server_that_is_away_is_said_to_be(tmp_path: Path):
    config = two_models(tmp_path, '[store]\nlimits_url = "redis://127.0.0.1:9/0"', NOBODY_SPENT)
    refused = llmrouter("limits", "--config", config)
    assert refused.code == 1
    assert refused.err.startswith("error: ")
