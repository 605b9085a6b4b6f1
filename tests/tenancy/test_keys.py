"""API keys: how they are made, what they may pass on, and that nothing but a valid one gets in."""

import sqlite3
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrouter.config import StoreConfig
from llmrouter.database import change_counters, migrate, open_database, reading
from llmrouter.errors import AuthenticationFailed, ConfigError, PermissionDenied, StoreUnavailable, UsageError
from llmrouter.tenancy.keys import KeyRing, KeyStore, load_keys, load_pepper
from llmrouter.types import Principal

PEPPER = b"a pepper for the tests"
START = datetime(2026, 12, 1, 12, tzinfo=UTC)
NOW = START.timestamp()


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "llmrouter.db"
    migrate(path)
    return path


@pytest.fixture
def store(database, clock):
    return KeyStore(database, PEPPER, now=clock)


def ring(database: Path) -> KeyRing:
    made = KeyRing(PEPPER)
    made.replace(load_keys(database))
    return made


def header(key: str) -> bytes:
    return f"Bearer {key}".encode()


def counter(database: Path) -> int:
    with reading(database) as connection:
        return change_counters(connection)["keys"]


def test_a_key_opens_with_the_scopes_it_was_made_with(store, database):
    key, info = store.create("acme", tiers=["auto", "economy"], acl=["hr"], note="for the demo")
    assert ring(database).authenticate(header(key), NOW) == Principal(
        "acme", info.key_id, tiers=frozenset({"auto", "economy"}), admin=False, acl=frozenset({"hr"})
    )


def test_a_key_without_tiers_may_use_all_and_one_with_no_tiers_none(store, database):
    every, _ = store.create("acme")
    none, _ = store.create("acme", tiers=[], admin=True)
    keys = ring(database)
    assert keys.authenticate(header(every), NOW).may_use("anything")
    assert not keys.authenticate(header(none), NOW).may_use("anything")


def test_a_key_names_its_id_and_holds_256_random_bits(store):
    key, info = store.create("acme")
    prefix, key_id, secret = key.split("-", 2)
    assert (prefix, key_id, len(secret)) == ("lr", info.key_id, 43)
    assert store.create("acme")[0] != key


def test_the_store_holds_neither_the_key_nor_its_secret(store, database):
    key, _ = store.create("acme")
    with closing(open_database(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert key.split("-", 2)[2].encode() not in database.read_bytes()


def test_what_is_listed_is_what_was_made(store, clock):
    _, first = store.create("acme", expires_at=START + timedelta(days=1), note="first")
    clock.now += timedelta(hours=1)
    _, second = store.create("other", admin=True)
    assert store.list() == [first, second]


def test_a_revoked_key_is_out_with_the_next_snapshot(store, database, clock):
    key, info = store.create("acme")
    before = ring(database)
    revoked = store.revoke(info.key_id)
    assert revoked.revoked_at == START
    assert before.authenticate(header(key), NOW).key_id == info.key_id
    with pytest.raises(AuthenticationFailed):
        ring(database).authenticate(header(key), NOW)
    clock.now += timedelta(days=1)
    assert store.revoke(info.key_id) == revoked


def test_a_key_can_be_revoked_by_its_whole_text(store):
    key, info = store.create("acme")
    assert store.revoke(key).key_id == info.key_id


def test_revoking_an_unknown_key_names_the_nearest_and_never_a_secret(store):
    key, info = store.create("acme")
    mistyped = info.key_id[:-1] + "x"
    with pytest.raises(UsageError, match=f"no key '{mistyped}'; did you mean '{info.key_id}'"):
        store.revoke(mistyped)
    with pytest.raises(UsageError) as caught:
        store.revoke(f"lr-000000000000-{key.split('-', 2)[2]}")
    assert key.split("-", 2)[2] not in caught.value.message


def test_workers_learn_of_each_change_by_the_counter(store, database):
    seen = [counter(database)]
    _, info = store.create("acme")
    seen.append(counter(database))
    store.revoke(info.key_id)
    seen.append(counter(database))
    store.revoke(info.key_id)
    seen.append(counter(database))
    assert seen == [0, 1, 2, 2]


def test_a_key_that_is_refused_changes_nothing(store, database):
    with pytest.raises(PermissionDenied):
        store.create("acme", admin=True, parent=Principal("acme", "k"))
    assert store.list() == []
    assert counter(database) == 0


@pytest.mark.parametrize("given_values", [{"tenant_id": ""}, {"tenant_id": "acme", "expires_at": START}])
def test_a_key_that_makes_no_sense_is_refused(store, given_values):
    with pytest.raises(UsageError):
        store.create(**given_values)


PARENT = Principal("acme", "parent", tiers=frozenset({"auto", "economy"}), acl=frozenset({"hr", "sales"}))
ADMIN = Principal("ops", "admin", admin=True, acl=frozenset({"hr"}))


@pytest.mark.parametrize(
    ("parent", "wanted", "why"),
    [
        (PARENT, {"tiers": ["auto"], "admin": True}, "admin"),
        (PARENT, {"tiers": ["auto", "premium"]}, "tiers: auto, economy"),
        (PARENT, {"tiers": None}, "tiers: auto, economy"),
        (PARENT, {"tiers": ["auto"], "acl": ["board"]}, "ACL labels: hr, sales"),
        (PARENT, {"tiers": ["auto"], "tenant_id": "other"}, "another tenant"),
        (ADMIN, {"acl": ["board"]}, "ACL labels: hr"),
    ],
)
def test_g112_a_key_cannot_make_one_that_may_do_more(store, parent, wanted, why):
    with pytest.raises(PermissionDenied, match=why):
        store.create(**{"tenant_id": "acme", **wanted}, parent=parent)


@pytest.mark.parametrize(
    ("parent", "wanted"),
    [
        (PARENT, {"tiers": ["auto", "economy"], "acl": ["hr", "sales"]}),
        (PARENT, {"tiers": []}),
        (ADMIN, {"tiers": None, "admin": True, "acl": ["hr"]}),
        (ADMIN, {"tenant_id": "other"}),
    ],
)
def test_g112_a_key_may_pass_on_what_it_has(store, parent, wanted):
    _, info = store.create(**{"tenant_id": "acme", **wanted}, parent=parent)
    assert info.created_by == parent.key_id


def test_g112_a_key_cannot_make_one_that_outlives_it(store, database, clock):
    tomorrow = START + timedelta(days=1)
    key, info = store.create("acme", expires_at=tomorrow)
    parent = ring(database).authenticate(header(key), NOW)
    for expires_at in (None, tomorrow + timedelta(seconds=1)):
        with pytest.raises(PermissionDenied, match="outlive"):
            store.create("acme", expires_at=expires_at, parent=parent)
    store.create("acme", expires_at=tomorrow, parent=parent)
    store.revoke(info.key_id)
    with pytest.raises(PermissionDenied, match="revoked"):
        store.create("acme", expires_at=tomorrow, parent=parent)


@pytest.mark.parametrize(
    "change",
    ["admin = 1", "tiers = NULL", "acl = '[\"board\"]'", "tenant_id = 'other'", "expires_at = NULL", "digest = x'00'"],
)
def test_g112_the_scopes_of_a_key_cannot_be_changed_in_the_store(store, database, change):
    _, info = store.create("acme", tiers=["auto"], expires_at=START + timedelta(days=1))
    with closing(open_database(database)) as connection, pytest.raises(sqlite3.IntegrityError, match="only revoked"):
        connection.execute(f"UPDATE api_keys SET {change}")
    assert store.list() == [info]


def test_a_revoked_key_cannot_be_brought_back(store, database):
    _, info = store.create("acme")
    store.revoke(info.key_id)
    with closing(open_database(database)) as connection, pytest.raises(sqlite3.IntegrityError, match="already revoked"):
        connection.execute("UPDATE api_keys SET revoked_at = NULL")


def wrong_headers(key: str) -> list[bytes | None]:
    good = key.encode()
    return [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer  " + good,
        b"Bearer " + good + b" ",
        b"Bearer " + good[:-1],
        b"Bearer " + good + b"x",
        b"Bearer " + good.upper(),
        b"bearer " + good,
        b"BEARER " + good,
        b"Basic " + good,
        b"Basic x",
        b"Bearer a.b.c",
        b"Bearer lr-",
        b"Bearer lr--",
        good,
        b"Bearer " + good + b", Bearer " + good,
    ]


HOSTILE = [
    b"Bearer ' OR 1=1 --",
    b"Bearer lr-' OR 1=1 --",
    b"Bearer " + b"x" * 2**20,
    b"Bearer lr-" + b"x" * 2**20,
    b"Bearer \0",
    b"Bearer lr-\0\0\0",
    "Bearer lr-schlüssel-größer".encode(),
    b"Bearer lr-\xff\xfe",
]


def test_g113_every_malformed_header_is_a_failed_authentication(store, database):
    key, _ = store.create("acme")
    keys = ring(database)
    keys.authenticate(header(key), NOW)
    for wrong in wrong_headers(key):
        with pytest.raises(AuthenticationFailed):
            keys.authenticate(wrong, NOW)


@pytest.mark.parametrize("wrong", HOSTILE, ids=range(len(HOSTILE)))
def test_g111_hostile_keys_are_failed_authentications(store, database, wrong):
    store.create("acme")
    with pytest.raises(AuthenticationFailed) as caught:
        ring(database).authenticate(wrong, NOW)
    assert caught.value.status == 401
    assert len(caught.value.message) < 100


def test_g111_an_oversized_key_is_refused_before_it_is_hashed(store, database, monkeypatch):
    store.create("acme")
    keys = ring(database)

    def digest(pepper: bytes, text: bytes) -> bytes:
        raise AssertionError("hashed")

    monkeypatch.setattr("llmrouter.tenancy.keys._digest", digest)
    with pytest.raises(AuthenticationFailed):
        keys.authenticate(b"Bearer lr-" + b"x" * 2**20, NOW)
    with pytest.raises(AssertionError, match="hashed"):
        keys.authenticate(b"Bearer lr-" + b"x" * 50, NOW)


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: b"Bearer lr-" + tail))
def test_no_header_is_anybody_by_accident(value):
    keys = KeyRing(PEPPER)
    keys.replace([])
    with pytest.raises(AuthenticationFailed):
        keys.authenticate(value, NOW)


def test_a_key_of_another_pepper_is_wrong(store, database):
    key, _ = store.create("acme")
    other = KeyRing(b"another pepper entirely")
    other.replace(load_keys(database))
    with pytest.raises(AuthenticationFailed):
        other.authenticate(header(key), NOW)


def test_a_key_ends_at_the_moment_it_expires(store, database):
    key, _ = store.create("acme", expires_at=START + timedelta(seconds=10))
    keys = ring(database)
    assert keys.authenticate(header(key), NOW + 9.999).tenant_id == "acme"
    with pytest.raises(AuthenticationFailed, match="expired"):
        keys.authenticate(header(key), NOW + 10)


def test_g102_a_store_that_is_down_locks_nobody_out(store, database):
    key, _ = store.create("acme")
    keys = ring(database)
    database.write_bytes(b"not a database any more" * 1000)
    for leftover in ("-wal", "-shm"):
        database.with_name(database.name + leftover).unlink(missing_ok=True)
    with pytest.raises(StoreUnavailable):
        load_keys(database)
    assert keys.authenticate(header(key), NOW).tenant_id == "acme"
    with pytest.raises(AuthenticationFailed):
        keys.authenticate(header(key + "x"), NOW)


def test_g102_without_any_snapshot_a_key_is_a_503_and_nonsense_still_a_401():
    keys = KeyRing(PEPPER)
    with pytest.raises(StoreUnavailable):
        keys.authenticate(b"Bearer lr-abc-def", NOW)
    for wrong in (None, b"Basic x", b"Bearer nonsense"):
        with pytest.raises(AuthenticationFailed):
            keys.authenticate(wrong, NOW)


def test_a_digest_is_not_shown(store, database):
    store.create("acme")
    (active,) = load_keys(database)
    assert "digest" not in repr(active)


def configured(**values: Any) -> StoreConfig:
    return StoreConfig.model_validate(values)


def test_the_configured_secret_is_the_pepper(database):
    assert load_pepper(configured(secret="0123456789abcdef"), database) == b"0123456789abcdef"
    assert not database.with_name("llmrouter.db.secret").exists()


def test_a_short_secret_is_refused_and_not_shown(database):
    with pytest.raises(ConfigError, match=r"store\.secret: too short") as caught:
        load_pepper(configured(secret="0123456789abcde"), database)
    assert "0123456789abcde" not in caught.value.message


def test_a_pepper_is_made_once_and_only_for_its_owner(database):
    pepper = load_pepper(configured(), database)
    file = database.with_name("llmrouter.db.secret")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(pepper) == 64
    assert load_pepper(configured(), database) == pepper
    assert [found.name for found in file.parent.glob("*.secret*")] == [file.name]


def test_a_pepper_that_others_can_read_is_refused(database):
    load_pepper(configured(), database)
    database.with_name("llmrouter.db.secret").chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_pepper(configured(), database)


def test_an_empty_pepper_file_is_refused(database):
    file = database.with_name("llmrouter.db.secret")
    file.touch(mode=0o600)
    with pytest.raises(ConfigError, match="too short"):
        load_pepper(configured(), database)


def test_a_lost_pepper_is_not_replaced_while_keys_depend_on_it(store, database):
    store.create("acme")
    with pytest.raises(ConfigError, match="holds 1 keys"):
        load_pepper(configured(), database)
    assert not database.with_name("llmrouter.db.secret").exists()


def test_a_pepper_can_be_made_before_the_database(tmp_path):
    assert len(load_pepper(configured(), tmp_path / "llmrouter.db")) == 64


def test_a_folder_that_is_missing_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match=r"or set store\.secret"):
        load_pepper(configured(), tmp_path / "nowhere" / "llmrouter.db")


def test_several_that_start_at_once_agree_on_one_pepper(tmp_path):
    together = threading.Barrier(8)

    def load(_: int) -> bytes:
        together.wait()
        return load_pepper(configured(), tmp_path / "llmrouter.db")

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(load, range(8)))) == 1
