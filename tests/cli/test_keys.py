"""`llmrouter keys`: made once, listed without their text, revoked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from llmrouter.cli.keys import parse_expiry
from llmrouter.config import load
from llmrouter.database import database_path
from llmrouter.errors import UsageError
from llmrouter.tenancy.keys import KeyRing, load_keys, load_pepper
from llmrouter.types import Principal
from tests.cli.command import llmrouter, two_models

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return two_models(tmp_path, "[tenants.default]\n[tenants.search]\n")


def who(config: Path, key: str) -> Principal:
    loaded = load(config)
    store = database_path(loaded.store.url)
    ring = KeyRing(load_pepper(loaded.store, store))
    ring.replace(load_keys(store))
    return ring.authenticate(f"Bearer {key}".encode(), datetime.now(UTC).timestamp())


def test_create_prints_nothing_but_the_key_and_makes_the_store(config: Path):
    made = llmrouter("keys", "create", "--tenant", "search", "--config", config)
    assert made.code == 0
    key = made.out.removesuffix("\n")
    assert "\n" not in key
    assert key not in made.err
    assert who(config, key).tenant_id == "search"


def test_create_gives_the_scopes_it_was_asked_for(config: Path):
    made = llmrouter(
        *("keys", "create", "--tenant", "search", "--tier", "auto", "--acl", "hr", "--acl", "legal", "--admin"),
        *("--expires", "30d", "--note", "nightly job", "--json", "--config", config),
    ).json
    asker = who(config, made["key"])
    assert (asker.tiers, asker.acl, asker.admin) == (frozenset({"auto"}), frozenset({"hr", "legal"}), True)
    assert (made["tiers"], made["acl"], made["note"]) == (["auto"], ["hr", "legal"], "nightly job")
    assert made["expires_at"].startswith(str((datetime.now(UTC) + timedelta(days=30)).date()))


POLICY = (
    *("--limit", "requests_per_minute=60", "--limit", "usd_per_day=5.50"),
    *("--class", "interactive", "--class", "batch", "--default-class", "batch", "--user", "bob"),
)


def test_create_gives_the_policy_it_was_asked_for(config: Path):
    made = llmrouter("keys", "create", "--tenant", "search", *POLICY, "--json", "--config", config).json
    assert (made["limits"], made["classes"], made["latency_class"], made["user_id"]) == (
        {"requests_per_minute": 60, "usd_per_day": "5.50"},
        ["interactive", "batch"],
        "batch",
        "bob",
    )
    asker = who(config, made["key"])
    assert [(limit.kind, limit.most) for limit in asker.limits] == [
        ("requests_per_minute", 60),
        ("usd_per_day", 5_500_000_000),
    ]
    assert (asker.classes, asker.latency_class, asker.user_id) == (frozenset({"interactive", "batch"}), "batch", "bob")


def test_list_shows_the_policy(config: Path):
    llmrouter("keys", "create", "--tenant", "search", *POLICY, "--config", config)
    row = llmrouter("keys", "list", "--config", config).out.splitlines()[1]
    assert "requests_per_minute=60, usd_per_day=5.50" in row
    assert "interactive, batch (default)" in row
    assert " bob " in row


def test_a_limit_above_the_tenants_is_made_with_a_warning(tmp_path: Path):
    config = two_models(tmp_path, "[tenants.search]\nlimits.usd_per_day = 2\n")
    made = llmrouter("keys", "create", "--tenant", "search", "--limit", "usd_per_day=5", "--config", config)
    assert made.code == 0
    assert "usd_per_day = 5 is never reached, because tenant search has 2" in made.err


def test_a_class_that_the_tenant_has_not_is_refused(tmp_path: Path):
    config = two_models(tmp_path, '[tenants.search]\nclasses = ["batch"]\n')
    refused = llmrouter("keys", "create", "--tenant", "search", "--class", "interactive", "--config", config)
    assert (refused.code, refused.out) == (2, "")
    assert "tenant search has no latency class interactive; it has: batch" in refused.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--tenant", "serch"), "did you mean 'search'?"),
        (("--tenant", "search", "--tier", "premium"), "no tier 'premium' in the configuration; known: auto"),
        (("--tenant", "search", "--expires", "soon"), "neither a time such as 30d"),
        (("--tenant", "search", "--limit", "usd_per_day"), "--limit 'usd_per_day' is not KIND=MOST"),
        (("--tenant", "search", "--limit", "usd_day=5"), "no limit 'usd_day'; did you mean 'usd_per_day'?"),
        (("--tenant", "search", "--limit", "usd_per_day=5", "--limit", "usd_per_day=6"), "is given twice"),
        (("--tenant", "search", "--limit", "usd_per_day=five"), "limit usd_per_day: "),
        (("--tenant", "search", "--class", "rush"), "no latency class 'rush'"),
    ],
)
def test_names_that_do_not_exist_are_refused_before_a_store_is_made(
    config: Path, arguments: tuple[str, ...], complaint: str
):
    refused = llmrouter("keys", "create", *arguments, "--config", config)
    assert (refused.code, refused.out) == (2, "")
    assert complaint in refused.err
    assert not (config.parent / "llmrouter.db").exists()


def test_list_shows_state_and_scopes_but_no_text(config: Path):
    key = llmrouter("keys", "create", "--tenant", "search", "--note", "first", "--config", config).out.strip()
    llmrouter("keys", "create", "--tenant", "default", "--admin", "--config", config)
    listed = llmrouter("keys", "list", "--config", config)
    lines = listed.out.splitlines()
    assert lines[0].split() == [
        *("KEY", "TENANT", "STATE", "TIERS", "ADMIN", "ACL", "LIMITS", "CLASSES", "USER"),
        *("CREATED", "EXPIRES", "NOTE"),
    ]
    assert [line.split()[1:5] for line in lines[1:]] == [
        ["search", "active", "all", "no"],
        ["default", "active", "all", "yes"],
    ]
    assert key not in listed.out
    assert key.split("-")[2] not in llmrouter("keys", "list", "--json", "--config", config).out


def test_a_revoked_key_is_listed_as_such(config: Path):
    made = llmrouter("keys", "create", "--tenant", "search", "--json", "--config", config).json
    revoked = llmrouter("keys", "revoke", made["key_id"], "--config", config)
    assert (revoked.code, revoked.out) == (0, "")
    assert llmrouter("keys", "list", "--config", config).out.splitlines()[1].split()[2] == "revoked"
    assert llmrouter("keys", "revoke", made["key_id"], "--json", "--config", config).json["revoked_at"] is not None


def test_revoking_what_is_not_there_is_refused(config: Path):
    llmrouter("keys", "create", "--tenant", "search", "--config", config)
    assert llmrouter("keys", "revoke", "000000000000", "--config", config).code == 2


def test_listing_without_a_store_makes_none(config: Path):
    refused = llmrouter("keys", "list", "--config", config)
    assert refused.code == 2
    assert "there is no store" in refused.err
    assert not (config.parent / "llmrouter.db").exists()


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("90m", NOW + timedelta(minutes=90)),
        ("12h", NOW + timedelta(hours=12)),
        ("30d", NOW + timedelta(days=30)),
        ("4w", NOW + timedelta(weeks=4)),
        ("2027-01-01", datetime(2027, 1, 1, tzinfo=UTC)),
        ("2026-12-01T14:00:00+01:00", datetime(2026, 12, 1, 13, 0, tzinfo=UTC)),
        ("2026-12-01T12:00:01", datetime(2026, 12, 1, 12, 0, 1, tzinfo=UTC)),
    ],
)
def test_an_end_is_a_span_or_an_iso_time(text: str, when: datetime):
    assert parse_expiry(text, NOW) == when


@pytest.mark.parametrize(
    "text",
    ["0d", "2026-12-01T12:00:00", "2026-11-30", "d", "", "-3d", "3y", "9999999999999w", "²d", "9999-12-31T23:59-12:00"],
)
def test_an_end_that_is_none_or_past_is_refused(text: str):
    with pytest.raises(UsageError, match="--expires"):
        parse_expiry(text, NOW)
