"""Keys in the database that several gateways share: each knows what another has made or revoked."""

from datetime import UTC, datetime, timedelta

import pytest

from llmrouter.config import StoreConfig
from llmrouter.database import change_counters
from llmrouter.errors import AuthenticationFailed, ConfigError, InternalError, PermissionDenied, StoreUnavailable
from llmrouter.postgres import Postgres, migrate_postgres
from llmrouter.shared_store import reading, shared_store, store_exists, writing
from llmrouter.tenancy.keys import KeyRing, KeyStore, load_keys
from llmrouter.tenancy.pepper import load_pepper

PEPPER = b"0123456789abcdef"
START = datetime(2026, 12, 1, 12, tzinfo=UTC)
NOW = START.timestamp()


@pytest.fixture
def config(postgres_url):
    made = StoreConfig.model_validate({"ledger_url": postgres_url, "secret": PEPPER.decode()})
    migrate_postgres(Postgres(postgres_url))
    return made


def store(config: StoreConfig) -> KeyStore:
    """As another gateway has it."""
    return KeyStore(shared_store(config), PEPPER, now=lambda: START)


def ring(config: StoreConfig) -> KeyRing:
    made = KeyRing(PEPPER)
    made.replace(load_keys(shared_store(config)))
    return made


def counter(config: StoreConfig) -> int:
    with reading(shared_store(config)) as connection:
        return change_counters(connection)["keys"]


def test_a_key_that_one_gateway_makes_opens_another(config):
    text, info = store(config).create(
        "acme", tiers=["auto"], admin=True, acl=["board"], expires_at=START + timedelta(days=1), note="100 % für ?"
    )
    principal = ring(config).authenticate(f"Bearer {text}".encode(), NOW)
    assert (principal.tenant_id, principal.tiers, principal.admin) == ("acme", frozenset({"auto"}), True)
    assert store(config).list() == [info]


def test_a_key_that_one_gateway_revokes_is_out_everywhere(config):
    text, info = store(config).create("acme")
    seen = counter(config)
    assert store(config).revoke(text).revoked_at == START
    assert store(config).revoke(info.key_id).revoked_at == START
    assert counter(config) == seen + 1
    with pytest.raises(AuthenticationFailed):
        ring(config).authenticate(f"Bearer {text}".encode(), NOW)


def test_a_refused_key_changes_nothing(config):
    text, _ = store(config).create("acme", tiers=["auto"])
    parent = ring(config).authenticate(f"Bearer {text}".encode(), NOW)
    before = counter(config)
    with pytest.raises(PermissionDenied):
        store(config).create("acme", tiers=["premium"], parent=parent)
    assert counter(config) == before == 1


@pytest.mark.parametrize(
    "change",
    ["admin = true", "tiers = NULL", "acl = '[\"board\"]'", "tenant_id = 'other'", "expires_at = NULL", "policy = '1'"],
)
def test_g112_the_scopes_of_a_key_cannot_be_changed_in_the_database(config, change):
    _, info = store(config).create("acme", tiers=["auto"], expires_at=START + timedelta(days=1))
    with pytest.raises(InternalError) as refused, writing(shared_store(config)) as connection:
        connection.execute(f"UPDATE api_keys SET {change}")
    assert "only revoked" in str(refused.value.__cause__)
    assert store(config).list() == [info]


def test_a_revoked_key_cannot_be_brought_back(config):
    _, info = store(config).create("acme")
    store(config).revoke(info.key_id)
    with pytest.raises(InternalError) as refused, writing(shared_store(config)) as connection:
        connection.execute("UPDATE api_keys SET revoked_at = NULL")
    assert "already revoked" in str(refused.value.__cause__)


def test_g102_a_database_that_is_away_is_no_failed_authentication(config, postgres_server):
    text, _ = store(config).create("acme")
    known = ring(config)
    postgres_server.stop()
    with pytest.raises(StoreUnavailable):
        load_keys(shared_store(config))
    with pytest.raises(StoreUnavailable):
        KeyRing(PEPPER).authenticate(f"Bearer {text}".encode(), NOW)
    assert known.authenticate(f"Bearer {text}".encode(), NOW).tenant_id == "acme"
    postgres_server.start()
    assert len(load_keys(shared_store(config))) == 1


def test_gateways_that_share_keys_need_one_secret(config, tmp_path):
    assert load_pepper(config, tmp_path / "llmrouter.db") == PEPPER
    with pytest.raises(ConfigError, match=r"store\.secret: not set, but gateways that share"):
        load_pepper(config.model_copy(update={"secret": None}), tmp_path / "llmrouter.db")


def test_a_database_that_was_never_used_is_no_store_yet(postgres_url):
    assert not store_exists(Postgres(postgres_url))
    migrate_postgres(Postgres(postgres_url))
    assert store_exists(Postgres(postgres_url))
