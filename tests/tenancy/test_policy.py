"""What a key may use of its own: read, kept, shown, and never more than the key that makes it."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.config import CLASSES, LIMIT_KINDS, LimitSet
from llmrouter.database import migrate, writing
from llmrouter.errors import PermissionDenied, StoreUnavailable, UsageError
from llmrouter.tenancy.keys import KeyRing, KeyStore, key_as_json, load_keys
from llmrouter.tenancy.policy import KeyPolicy, make_policy, refuse_wider_policy
from llmrouter.types import Limit, Principal

PEPPER = b"a pepper for the tests"
NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "llmrouter.db"
    migrate(path)
    return path


@pytest.fixture
def store(database: Path) -> KeyStore:
    return KeyStore(database, PEPPER, now=lambda: NOW)


def who(database: Path, key: str) -> Principal:
    ring = KeyRing(PEPPER)
    ring.replace(load_keys(database))
    return ring.authenticate(f"Bearer {key}".encode(), NOW.timestamp())


LIMITS = st.builds(
    lambda given: LimitSet.model_validate({name: amount for name, amount in given.items() if amount is not None}),
    st.fixed_dictionaries(
        {
            "requests_per_minute": st.integers(1, 10**9),
            "requests_burst": st.none() | st.integers(1, 10**9),
            "tokens_per_minute": st.none() | st.integers(1, 10**9),
            "concurrent_requests": st.none() | st.integers(1, 10**9),
            "usd_per_hour": st.none() | st.decimals(0, 1_000_000, places=9),
            "usd_per_month": st.none() | st.decimals(0, 1_000_000, places=2),
        }
    ),
)
POLICIES = st.builds(
    KeyPolicy,
    limits=st.just(LimitSet()) | LIMITS,
    classes=st.none() | st.frozensets(st.sampled_from(CLASSES), min_size=1),
    user_id=st.none() | st.text("abc /:é", min_size=1),
)


class TestPolicy:
    @given(POLICIES)
    def test_what_the_store_keeps_reads_as_what_was_given(self, policy):
        assert KeyPolicy.from_text(policy.to_text()) == policy

    def test_one_that_grants_nothing_of_its_own_is_an_empty_object(self):
        """So that keys from before there were policies read the same."""
        assert KeyPolicy().to_text() == "{}"
        assert KeyPolicy.from_text("{}") == KeyPolicy()

    @pytest.mark.parametrize(
        ("given", "complaint"),
        [
            (
                {"limits": {"request_per_minute": 5}},
                "no limit 'request_per_minute'; did you mean 'requests_per_minute'",
            ),
            ({"limits": {"requests_per_minute": "ten"}}, r"requests_per_minute: .* \(got 'ten'\)"),
            ({"limits": {"requests_per_minute": 0}}, r"requests_per_minute: .* \(got '0'\)"),
            ({"limits": {"usd_per_day": "nan"}}, "usd_per_day: "),
            ({"limits": {"tokens_burst": 5}}, "tokens_burst without tokens_per_minute limits nothing"),
            ({"classes": []}, "without any latency class"),
            ({"classes": ["rush"]}, "no latency class 'rush'; known: interactive, standard, batch"),
            ({"latency_class": "rush"}, "no latency class 'rush'"),
            ({"classes": ["batch"], "latency_class": "standard"}, "default class standard is not among .*: batch"),
            ({"user_id": ""}, "printable"),
            ({"user_id": "a\nb"}, "printable"),
            ({"user_id": "x" * 257}, "256"),
        ],
    )
    def test_what_makes_no_sense_is_refused_by_name(self, given, complaint):
        with pytest.raises(UsageError, match=complaint):
            make_policy(**given)


class TestKeys:
    def test_a_key_opens_with_its_policy(self, store, database):
        key, info = store.create(
            "acme",
            limits={"requests_per_minute": 60, "usd_per_day": "0.5"},
            classes=["batch", "standard"],
            latency_class="batch",
            user_id="bob",
        )
        assert who(database, key) == Principal(
            "acme",
            info.key_id,
            limits=(
                Limit(f"key:{info.key_id}", "requests_per_minute", 60, 60),
                Limit(f"key:{info.key_id}", "usd_per_day", 500_000_000),
            ),
            classes=frozenset({"batch", "standard"}),
            latency_class="batch",
            user_id="bob",
        )

    def test_it_is_shown_in_the_names_that_made_it(self, store):
        _, info = store.create("acme", limits={"usd_per_day": "0.50"}, classes=["batch", "interactive"])
        shown = key_as_json(info)
        assert (shown["limits"], shown["classes"]) == ({"usd_per_day": "0.50"}, ["interactive", "batch"])
        assert "policy" not in shown

    def test_it_is_never_changed(self, store, database):
        store.create("acme", limits={"requests_per_minute": 60})
        with writing(database) as connection, pytest.raises(sqlite3.IntegrityError, match="only revoked"):
            connection.execute("UPDATE api_keys SET policy = '{}'")

    @pytest.mark.parametrize("text", ["", "[]", '{"limits": {"more": 5}}', '{"new_word": 1}', "{"])
    def test_one_that_cannot_be_read_lets_nobody_guess(self, store, database, text):
        _, info = store.create("acme")
        with writing(database) as connection:
            connection.execute("DROP TRIGGER api_keys_scopes_are_fixed")
            connection.execute("UPDATE api_keys SET policy = ?", (text,))
        with pytest.raises(StoreUnavailable, match=f"policy of key {info.key_id}"):
            load_keys(database)

    def test_one_that_is_none_makes_no_key(self, store):
        with pytest.raises(UsageError):
            store.create("acme", limits={"requests_per_minute": "many"})
        assert store.list() == []


def parent(**given: object) -> Principal:
    policy = make_policy(**given)  # type: ignore[arg-type]
    return Principal(
        "acme", "p", admin=True, limits=policy.limits_of("p"), classes=policy.classes, user_id=policy.user_id
    )


class TestChildren:
    @pytest.mark.parametrize(
        "wish",
        [
            {},
            {"limits": {"requests_per_minute": 61}},
            {"limits": {"requests_per_minute": 60, "requests_burst": 61}},
            {"limits": {"tokens_per_minute": 1}},
        ],
    )
    def test_a_limit_of_the_parent_must_be_kept(self, wish):
        with pytest.raises(PermissionDenied, match="requests_per_minute of key p, which asks, is 60;"):
            refuse_wider_policy(make_policy(**wish), parent(limits={"requests_per_minute": 60}))

    def test_money_is_named_in_dollars(self):
        with pytest.raises(PermissionDenied, match=r"usd_per_day of key p, which asks, is \$5\.00;"):
            refuse_wider_policy(make_policy({"usd_per_day": Decimal("5.01")}), parent(limits={"usd_per_day": 5}))

    @pytest.mark.parametrize("wish", [None, ["batch", "interactive"]])
    def test_classes_are_passed_on_only_where_the_parent_has_them(self, wish):
        with pytest.raises(PermissionDenied, match=r"its own latency classes: batch$"):
            refuse_wider_policy(make_policy(classes=wish), parent(classes=["batch"]))

    @pytest.mark.parametrize("wish", [None, "alice"])
    def test_the_user_of_the_parent_stays(self, wish):
        with pytest.raises(PermissionDenied, match="one user"):
            refuse_wider_policy(make_policy(user_id=wish), parent(user_id="bob"))

    @given(POLICIES, POLICIES)
    def test_a_child_that_is_made_has_nothing_beyond_its_parent(self, wish, held):
        maker = Principal("acme", "p", limits=held.limits_of("p"), classes=held.classes, user_id=held.user_id)
        try:
            refuse_wider_policy(wish, maker)
        except PermissionDenied:
            return
        for kind in LIMIT_KINDS:
            most = getattr(held.limits, kind)
            assert most is None or getattr(wish.limits, kind) <= most
        assert held.classes is None or (wish.classes is not None and wish.classes <= held.classes)
        assert held.user_id in (None, wish.user_id)

    def test_the_store_asks(self, store):
        with pytest.raises(PermissionDenied):
            store.create("acme", parent=parent(limits={"requests_per_minute": 60}))
        _, info = store.create("acme", limits={"requests_per_minute": 60}, parent=parent())
        assert info.created_by == "p"
