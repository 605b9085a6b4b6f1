"""Which limits and which latency class a request has, and how limits are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.config import Config, parse
from llmrouter.errors import PermissionDenied
from llmrouter.tenancy.limits import LimitBook, amount_text, describe, tenant_scope, user_scope
from llmrouter.types import ChatRequest, LatencyClass, Limit, Principal
from tests.support import model, pool, tier

_BASE = (
    model("small") + pool("small", ["http://127.0.0.1:9/v1"]) + tier("auto", small="small") + tier("eco", small="small")
)


def config(tail: str = "") -> Config:
    return parse(_BASE + tail, environ={})


def asking(wish: LatencyClass | None = None, tier_id: str = "auto") -> ChatRequest:
    return ChatRequest("chat", tier_id, {}, latency_class=wish)


NESTED = """
[tiers.auto.limits]
requests_per_minute = 6000
[groups.g.limits]
usd_per_month = 1000
[tenants.acme]
group = "g"
limits.usd_per_day = "5.50"
limits.requests_per_minute = 600
limits.requests_burst = 50
key_limits.concurrent_requests = 4
user_limits.tokens_per_minute = 1000
tier_limits.eco.usd_per_hour = 1
"""


class TestLimits:
    def test_they_come_innermost_first_with_money_in_nano_dollars(self):
        tail = NESTED.replace("tiers.auto.limits", "tiers.eco.limits")
        book = LimitBook(config(tail))
        found = book.of(Principal("acme", "k1"), "eco", "bob")
        assert found == (
            Limit("user:acme/bob", "tokens_per_minute", 1000, 1000),
            Limit("key:k1", "concurrent_requests", 4),
            Limit("tenant:acme/tier:eco", "usd_per_hour", 1_000_000_000),
            Limit("tenant:acme", "requests_per_minute", 600, 50),
            Limit("tenant:acme", "usd_per_day", 5_500_000_000),
            Limit("group:g", "usd_per_month", 1_000_000_000_000),
            Limit("tier:eco", "requests_per_minute", 6000, 6000),
        )

    def test_a_key_with_limits_of_its_own_has_those_instead_of_its_tenants(self):
        own = Limit("key:k1", "requests_per_minute", 2, 2)
        found = LimitBook(config(NESTED)).of(Principal("acme", "k1", limits=(own,)), "auto", None)
        assert [limit for limit in found if limit.scope.startswith("key:")] == [own]

    def test_g044_the_user_of_the_key_wins_over_the_one_that_a_request_names(self):
        book = LimitBook(config(NESTED))
        first = book.of(Principal("acme", "k1", user_id="alice"), "auto", "bob")[0]
        assert first.scope == "user:acme/alice"

    def test_without_a_section_there_is_no_limit(self):
        book = LimitBook(config())
        assert book.of(Principal("default", "k1"), "auto", "bob") == ()
        assert book.of(Principal("forgotten", "k1"), "auto", "bob") == ()

    def test_a_tenant_that_is_no_longer_configured_still_counts_on_the_tier(self):
        found = LimitBook(config(NESTED)).of(Principal("forgotten", "k1"), "auto", None)
        assert [limit.scope for limit in found] == ["tier:auto"]

    def test_the_cache_does_not_grow_with_names_that_the_file_does_not_have(self):
        book = LimitBook(config(NESTED))
        for number in range(50):
            book.of(Principal(f"forgotten-{number}", "k"), "auto", None)
        book.of(Principal("acme", "k"), "auto", None)
        assert len(book._shared) == 1

    def test_the_configured_ones_name_every_scope_that_the_file_does(self):
        scopes = [limit.scope for limit in LimitBook(config(NESTED)).configured()]
        assert scopes == ["tenant:acme/tier:eco", "tenant:acme", "tenant:acme", "group:g", "tier:auto"]

    def test_dollars_are_never_rounded_up(self):
        book = LimitBook(config('[tenants.a]\nlimits.usd_per_day = "0.0000000019"'))
        assert book.of(Principal("a", "k"), "auto", None)[0].most == 1


def test_the_example_of_the_docs_page_is_a_configuration():
    page = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
    example = page.split("```toml\n")[1].split("```")[0]
    tiers = tier("premium", small="small") + tier("economy", small="small")
    text = model("small") + pool("small", ["http://127.0.0.1:9/v1"]) + tiers + example
    found = LimitBook(parse(text, environ={})).of(Principal("checkout", "k"), "premium", "bob")
    assert [limit.scope.partition(":")[0] for limit in found] == ["user", "key", *["tenant"] * 3, "group", "tier"]


TENANTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,20}", fullmatch=True)


class TestScopes:
    @given(TENANTS, st.text(min_size=1), TENANTS, st.text(min_size=1))
    def test_no_two_users_share_one(self, tenant, user, other_tenant, other_user):
        same = (tenant, user) == (other_tenant, other_user)
        assert (user_scope(tenant, user) == user_scope(other_tenant, other_user)) == same

    @given(TENANTS, TENANTS | st.none(), TENANTS, TENANTS | st.none())
    def test_no_two_tenants_share_one_with_or_without_a_tier(self, tenant, tier_id, other, other_tier):
        same = (tenant, tier_id) == (other, other_tier)
        assert (tenant_scope(tenant, tier_id) == tenant_scope(other, other_tier)) == same

    def test_slashes_in_names_move_nobody_into_another_scope(self):
        assert user_scope("a/b", "c") != user_scope("a", "b/c")
        assert tenant_scope("a/tier:b") != tenant_scope("a", "b")

    def test_their_length_is_bounded(self):
        assert len(user_scope("acme", "é" * 10_000)) < 200
        assert user_scope("acme", "é" * 10_000) != user_scope("acme", "é" * 10_001)


class TestWords:
    @pytest.mark.parametrize(
        ("scope", "words"),
        [
            ("tenant:acme", "tenant acme"),
            (tenant_scope("a/b", "eco"), "tenant a/b on tier eco"),
            (user_scope("acme", "bob@example.com"), "user bob@example.com of tenant acme"),
            (user_scope("acme", "a b/c"), "user a b/c of tenant acme"),
            (user_scope("acme", "\x1b[2J"), "user %1B%5B2J of tenant acme"),
            ("group:a/b", "group a/b"),
            ("tier:auto", "tier auto"),
            ("key:3f9c", "key 3f9c"),
        ],
    )
    def test_g043_a_limit_is_named_with_its_kind_and_whose_it_is(self, scope, words):
        assert describe(Limit(scope, "requests_per_minute", 5, 5)) == f"requests_per_minute of {words}"

    @pytest.mark.parametrize(
        ("nano", "text"),
        [(250_000_000, "$0.25"), (5_000_000_000, "$5.00"), (0, "$0.00"), (1, "$0.000000001"), (10**15, "$1000000.00")],
    )
    def test_dollars_are_printed_as_dollars(self, nano, text):
        assert amount_text(Limit("tenant:a", "usd_per_day", 1), nano) == text

    def test_other_amounts_are_whole_numbers(self):
        assert amount_text(Limit("tenant:a", "tokens_per_minute", 1, 1), 1200) == "1200"


class TestClasses:
    def test_a_request_gets_what_it_asks_for(self):
        assert LimitBook(config()).class_of(Principal("default", "k"), asking("batch")) == "batch"

    def test_one_that_asks_for_nothing_gets_the_keys_then_the_tiers(self):
        book = LimitBook(config())
        assert book.class_of(Principal("default", "k"), asking()) == "standard"
        assert book.class_of(Principal("default", "k", latency_class="batch"), asking()) == "batch"

    def test_a_class_that_is_not_allowed_is_refused_with_those_that_are(self):
        book = LimitBook(config('[tenants.acme]\nclasses = ["batch", "standard"]'))
        with pytest.raises(PermissionDenied, match=r"`interactive`; it may ask for: standard, batch") as refused:
            book.class_of(Principal("acme", "k"), asking("interactive"))
        assert refused.value.code == "latency_class_not_allowed"

    def test_a_key_never_gets_a_class_that_its_tenant_has_not(self):
        book = LimitBook(config('[tenants.acme]\nclasses = ["batch", "standard"]'))
        key = Principal("acme", "k", classes=frozenset({"interactive", "batch"}))
        assert book.class_of(key, asking()) == "batch"
        with pytest.raises(PermissionDenied, match=r"may ask for: batch$"):
            book.class_of(key, asking("interactive"))

    @pytest.mark.parametrize(
        ("allowed", "default", "expected"),
        [
            ({"batch"}, "standard", "batch"),
            ({"interactive"}, "standard", "interactive"),
            ({"interactive", "batch"}, "standard", "batch"),
            ({"standard", "batch"}, "interactive", "standard"),
            ({"interactive", "standard"}, "batch", "standard"),
        ],
    )
    def test_a_default_that_is_not_allowed_becomes_the_nearest_less_urgent_one(self, allowed, default, expected):
        principal = Principal("default", "k", classes=frozenset(allowed), latency_class=default)
        assert LimitBook(config()).class_of(principal, asking()) == expected

    def test_a_key_without_any_class_of_its_tenant_is_told_so(self):
        book = LimitBook(config('[tenants.acme]\nclasses = ["batch"]'))
        with pytest.raises(PermissionDenied, match="no latency class in common"):
            book.class_of(Principal("acme", "k", classes=frozenset({"interactive"})), asking())

    def test_weights_are_the_tenants(self):
        book = LimitBook(config("[tenants.acme]\nweight = 3"))
        assert (book.weight_of("acme"), book.weight_of("other")) == (3, 1)
